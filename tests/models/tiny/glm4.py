"""Tiny models of GLM-4: norms around each part, rope in half a head, gate and up in one tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import BASE, TinyModel

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyGlm4(TinyModel):
    architecture = "glm4"
    gguf_names = TinyModel.gguf_names | {
        "post_self_attn_layernorm": "post_attention_norm",
        "post_mlp_layernorm": "post_ffw_norm",
        "mlp.gate_up_proj": "ffn_up",
    }

    biased: bool = True

    def config(self) -> dict[str, object]:
        rope = {"rope_type": "default", "rope_theta": BASE, "partial_rotary_factor": 0.5}
        return super().config() | {"attention_bias": self.biased, "rope_parameters": rope}

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {"glm4.rope.dimension_count": self.head_dim // 2}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        weights = super().layer(random)
        del weights["mlp.gate_proj.weight"], weights["mlp.up_proj.weight"]
        if self.biased:
            weights["self_attn.q_proj.bias"] = random.normal(self.q_width)
            weights["self_attn.k_proj.bias"] = random.normal(self.kv_width)
            weights["self_attn.v_proj.bias"] = random.normal(self.kv_width)
        return weights | {
            "post_self_attn_layernorm.weight": random.near(1, self.width),
            "post_mlp_layernorm.weight": random.near(1, self.width),
            "mlp.gate_up_proj.weight": random.matrix(2 * self.ffn_width, self.width),
        }


MODELS = (
    TinyGlm4("biased", heads=6, kv_heads=2, head_dim=16, tied=False),
    TinyGlm4("unbiased", heads=3, kv_heads=1, head_dim=48, tied=True, biased=False),
)
