"""Tiny models of Seed-OSS: biases of queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import TinyModel

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random


@dataclass(frozen=True)
class TinySeedOss(TinyModel):
    architecture = "seed_oss"
    gguf_names = TinyModel.gguf_names | {"post_attention_layernorm": "post_attention_norm"}

    def config(self) -> dict[str, object]:
        return super().config() | {"attention_bias": True, "attention_out_bias": False}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return super().layer(random) | {
            "self_attn.q_proj.bias": random.normal(self.q_width),
            "self_attn.k_proj.bias": random.normal(self.kv_width),
            "self_attn.v_proj.bias": random.normal(self.kv_width),
        }


MODELS = (TinySeedOss("odd heads", heads=5, kv_heads=1, head_dim=16, tied=False),)
