"""Tiny models of Qwen2: biases of queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import TinyModel

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyQwen2(TinyModel):
    architecture = "qwen2"

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return super().layer(random) | {
            "self_attn.q_proj.bias": random.normal(self.q_width),
            "self_attn.k_proj.bias": random.normal(self.kv_width),
            "self_attn.v_proj.bias": random.normal(self.kv_width),
        }


MODELS = (
    TinyQwen2("tied", heads=4, kv_heads=2, head_dim=16, tied=True),
    TinyQwen2("untied", heads=8, kv_heads=1, head_dim=16, tied=False),
)
