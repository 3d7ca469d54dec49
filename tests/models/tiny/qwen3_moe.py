"""Tiny models of Qwen3 with experts; in one, some layers are dense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import HEAD_NORMS
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyQwen3Moe(TinyMixture):
    architecture = "qwen3_moe"
    gguf_architecture = "qwen3moe"
    gguf_names = GGUF_NAMES | HEAD_NORMS

    def config(self) -> dict[str, object]:
        return super().config() | {"norm_topk_prob": True}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return super().layer(random) | {
            "self_attn.q_norm.weight": random.near(1, self.head_dim),
            "self_attn.k_norm.weight": random.near(1, self.head_dim),
        }


MODELS = (
    TinyQwen3Moe("tied", heads=4, kv_heads=2, head_dim=16, tied=True),
    TinyQwen3Moe("untied", heads=3, kv_heads=1, head_dim=48, tied=False, experts=9, used=4),
)
