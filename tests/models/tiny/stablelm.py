"""Tiny models of StableLM 2: layer norms, rotation of a quarter of each head, parallel parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import BASE
from models.tiny.base_layer_norm import QKV, TinyLayerNorm, add_biases

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyStableLM(TinyLayerNorm):
    architecture = "stablelm"

    biased: bool = False
    parallel: bool = False

    def config(self) -> dict[str, object]:
        rope = {"rope_theta": BASE, "rope_type": "default", "partial_rotary_factor": 0.25}
        return super().config() | {
            "rope_parameters": rope,
            "use_qkv_bias": self.biased,
            "use_parallel_residual": self.parallel,
        }

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {
            "stablelm.rope.dimension_count": self.head_dim // 4,
            "stablelm.use_parallel_residual": self.parallel,
        }

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        weights = super().layer(random)
        if self.biased:
            add_biases(weights, random, *QKV)
        if self.parallel:
            for kind in ("weight", "bias"):
                del weights[f"post_attention_layernorm.{kind}"]
        return weights


MODELS = (
    TinyStableLM("biased", heads=3, kv_heads=3, head_dim=16, tied=False, biased=True),
    TinyStableLM("parallel", heads=3, kv_heads=1, head_dim=16, tied=False, parallel=True),
)
