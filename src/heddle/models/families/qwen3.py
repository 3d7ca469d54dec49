"""Qwen3, dense or with experts: as Llama, with a norm of each query and key head before rotation.

Yang et al. 2025 (arXiv:2505.09388).
"""

from __future__ import annotations

from functools import partial

from heddle.models.blocks import QueryKeyNorm
from heddle.models.families import llama
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

build = partial(llama.build, norm=QueryKeyNorm.HEADS)


FAMILY = Family(
    build=build,
    gguf={"qwen3": GGUFNames(), "qwen3moe": GGUFNames()},
    hf={"qwen3": FolderNames(), "qwen3_moe": FolderNames()},
)
