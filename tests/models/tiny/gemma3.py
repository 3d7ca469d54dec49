"""Tiny models of Gemma 3: norms around each part, windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base import BASE, HEAD_NORMS, TinyModel

if TYPE_CHECKING:
    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyGemma3(TinyModel):
    """Every `period`-th layer is global, and `factor` stretches positions there."""

    architecture = "gemma3"
    gguf_names = (
        TinyModel.gguf_names
        | HEAD_NORMS
        | {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
    )
    norm_mean = 0.0

    tied: bool = True
    window: int = 4
    period: int = 6
    base: float = 100.0
    factor: float = 1.0

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return super().layer(random) | {
            "self_attn.q_norm.weight": random.near(1, self.head_dim),
            "self_attn.k_norm.weight": random.near(1, self.head_dim),
            "pre_feedforward_layernorm.weight": random.near(0, self.width),
            "post_feedforward_layernorm.weight": random.near(0, self.width),
        }

    def metadata(self) -> dict[str, object]:
        keys: dict[str, object] = {
            "gemma3.attention.sliding_window": self.window,
            "gemma3.rope.freq_base": self.base,
        }
        if self.period != 6:
            keys["gemma3.attention.sliding_window_pattern"] = self.period
        if self.factor != 1:
            keys["gemma3.rope.scaling.type"] = "linear"
            keys["gemma3.rope.scaling.factor"] = self.factor
        return super().metadata() | keys

    def config(self) -> dict[str, object]:
        whole = {"rope_type": "linear", "rope_theta": self.base, "factor": self.factor}
        local = {"rope_type": "default", "rope_theta": BASE}
        return super().config() | {
            "model_type": "gemma3_text",
            "query_pre_attn_scalar": self.head_dim,
            "sliding_window": self.window,
            "layer_types": [
                "sliding_attention" if (layer + 1) % self.period else "full_attention"
                for layer in range(self.layers)
            ],
            "rope_parameters": {"sliding_attention": local, "full_attention": whole},
        }

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """Norm weights hold the 1 that `transformers` adds when it uses them."""
        return values + np.float32(1) if "norm" in name else values


MODELS = (
    TinyGemma3("six to one", heads=4, kv_heads=2, head_dim=16, layers=7),
    TinyGemma3("stretched", heads=2, kv_heads=1, head_dim=16, layers=4, period=2, factor=8.0),
)
