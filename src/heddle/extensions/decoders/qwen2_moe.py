"""Qwen1.5-MoE and Qwen2 MoE: as Qwen2, with experts and a gated shared expert.

Yang et al. 2024 (arXiv:2407.10671). The weights of a token's experts need not sum to 1.
"""

from __future__ import annotations

from functools import partial

from heddle.models.families import llama
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

build = partial(llama.build, weights_normalised=False, shared_gated=True)


FAMILY = Family(build=build, gguf={"qwen2moe": GGUFNames()}, hf={"qwen2_moe": FolderNames()})
