"""Qwen3-VL, dense or with experts, the text part: as Qwen3.

Features of images are added to the states of the first layers (Qwen Team 2025, arXiv:2511.21631).
A text has none. Its positions are those of plain rope; see `qwen2_vl.py`.
"""

from __future__ import annotations

from heddle.extensions.decoders.transposed import transposed_experts
from heddle.models.families import qwen3
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

FAMILY = Family(
    build=qwen3.build,
    gguf={"qwen3vl": GGUFNames(), "qwen3vlmoe": GGUFNames()},
    hf={
        "qwen3_vl_text": FolderNames(with_images=("qwen3_vl",)),
        "qwen3_vl_moe_text": FolderNames(with_images=("qwen3_vl_moe",), make=transposed_experts),
    },
)
