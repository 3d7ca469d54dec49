"""Tiny models of Qwen3: norms of query and key heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import HEAD_NORMS, TinyModel

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyQwen3(TinyModel):
    architecture = "qwen3"
    gguf_names = TinyModel.gguf_names | HEAD_NORMS

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return super().layer(random) | {
            "self_attn.q_norm.weight": random.near(1, self.head_dim),
            "self_attn.k_norm.weight": random.near(1, self.head_dim),
        }


MODELS = (
    TinyQwen3("tied", heads=4, kv_heads=2, head_dim=16, tied=True),
    TinyQwen3("odd heads", heads=3, kv_heads=1, head_dim=48, tied=False),
)
