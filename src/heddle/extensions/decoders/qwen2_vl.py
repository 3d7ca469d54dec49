"""Qwen2-VL and Qwen2.5-VL, the text part: as Qwen2.

A token of text has the same position on each of the three axes of multimodal rope (Wang et al.
2024, arXiv:2409.12191). So each pair of a head turns as with plain rope.
"""

from __future__ import annotations

from heddle.models.families import llama
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

FAMILY = Family(
    build=llama.build,
    gguf={"qwen2vl": GGUFNames()},
    hf={
        # The first folders have no `text_config`: the keys of both parts are in one object.
        "qwen2_vl": FolderNames(),
        "qwen2_vl_text": FolderNames(with_images=("qwen2_vl",)),
        "qwen2_5_vl": FolderNames(),
        "qwen2_5_vl_text": FolderNames(with_images=("qwen2_5_vl",)),
    },
)
