"""MiMo 7B: as Qwen2. Its heads for further tokens are not used.

Xiaomi 2025 (arXiv:2505.07608).
"""

from __future__ import annotations

from heddle.models.families import llama
from heddle.models.family import Family
from heddle.weights.huggingface.names import FolderNames

FAMILY = Family(
    build=llama.build,
    gguf={},
    hf={"mimo": FolderNames(read=lambda config: {"prediction_layers": 0})},
)
