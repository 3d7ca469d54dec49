"""Qwen3, dense or with experts: as Llama, with a norm of each query and key head before rotation.

Yang et al. 2025 (arXiv:2505.09388).
"""

from __future__ import annotations

from functools import partial

from heddle.models import llama
from heddle.models.blocks import QueryKeyNorm

build = partial(llama.build, norm=QueryKeyNorm.HEADS)
