"""Qwen3 (dense): Llama whose query and key heads are normed before they are rotated.

Yang et al. 2025 (arXiv:2505.09388).
"""

from __future__ import annotations

from functools import partial

from heddle.models import llama

build = partial(llama.build, norm_heads=True)
