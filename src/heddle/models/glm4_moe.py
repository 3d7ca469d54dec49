"""GLM-4.5: as Llama, with norms of heads in some models, and experts after the first layers.

Experts are scored by sigmoids, chosen with a bias, and joined by shared experts. GLM-4.5 Team 2025
(arXiv:2508.06471).
"""

from __future__ import annotations

from functools import partial

from heddle.models import llama
from heddle.models.blocks import QueryKeyNorm

build = partial(llama.build, norm=QueryKeyNorm.IF_STORED, scoring="sigmoid")
