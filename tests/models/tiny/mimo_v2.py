"""Tiny models of MiMo V2 Flash: narrow values, and sinks in layers with a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base import BASE, TinyModel
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    from models.tiny.base import Random

_SHARE, _LOCAL_BASE = 0.334, 100.0


@dataclass(frozen=True)
class TinyMiMoV2(TinyMixture):
    architecture = "mimo_v2_flash"
    gguf_architecture = "mimo2"
    gguf_names = GGUF_NAMES | {"self_attn.attention_sink_bias": "attn_sinks"}
    count_key = "n_routed_experts"

    layers: int = 4
    value_dim: int = 32
    window: int = 5
    value_scale: float = 0.707

    def is_windowed(self, layer: int) -> bool:
        return layer in (1, 2)

    def kv_heads_of(self, layer: int) -> int:
        return self.kv_heads * (2 if self.is_windowed(layer) else 1)

    def config(self) -> dict[str, object]:
        kinds = ("full_attention", "sliding_attention")
        rope = {"rope_type": "default", "partial_rotary_factor": _SHARE}
        return super().config() | {
            "v_head_dim": self.value_dim,
            "sliding_window": self.window,
            "attention_value_scale": self.value_scale,
            "layer_types": [kinds[self.is_windowed(layer)] for layer in range(self.layers)],
            "mlp_layer_types": ["dense"] + ["sparse"] * (self.layers - 1),
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": None,
            "scoring_func": "sigmoid",
            "rope_parameters": {
                "full_attention": rope | {"rope_theta": BASE},
                "sliding_attention": rope | {"rope_theta": _LOCAL_BASE},
            },
        }

    def metadata(self) -> dict[str, object]:
        """As llama.cpp's converter writes it: lists have entries of the prediction heads, too."""
        layers, heads = range(self.layers), 1
        windowed = [self.is_windowed(layer) for layer in layers] + [True] * heads
        kv_heads = [self.kv_heads_of(layer) for layer in layers] + [2 * self.kv_heads] * heads
        keys: dict[str, object] = {
            "block_count": self.layers + heads,
            "nextn_predict_layers": heads,
            "attention.head_count_kv": np.array(kv_heads, np.int32),
            "attention.value_length": self.value_dim,
            "attention.value_scale": self.value_scale,
            "attention.sliding_window": self.window,
            "attention.sliding_window_pattern": np.array(windowed, np.int32),
            "rope.freq_base_swa": _LOCAL_BASE,
            "rope.dimension_count": int(self.head_dim * _SHARE),
            "expert_gating_func": 2,
        }
        return super().metadata() | {f"mimo2.{key}": value for key, value in keys.items()}

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        kv_heads, width = self.kv_heads_of(index), self.width
        found = self.layer(random) | {
            "self_attn.k_proj.weight": 3 * random.matrix(kv_heads * self.head_dim, width),
            "self_attn.v_proj.weight": random.matrix(kv_heads * self.value_dim, width),
            "self_attn.o_proj.weight": random.matrix(width, self.heads * self.value_dim),
        }
        if self.is_windowed(index):
            found["self_attn.attention_sink_bias"] = 2 * random.normal(self.heads)
        if index > 0:
            return found
        dense = TinyModel.layer(self, random)
        kept = {name: values for name, values in found.items() if not name.startswith("mlp.")}
        return kept | {name: values for name, values in dense.items() if name.startswith("mlp.")}

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        bias = {"mlp.gate.e_score_correction_bias": 0.3 * random.normal(self.experts)}
        return super().mixture(random) | bias

    def gguf_name(self, name: str) -> str:
        before, bias, _ = name.partition("mlp.gate.e_score_correction_bias")
        if bias:
            return f"blk.{before.split('.')[2]}.exp_probs_b.bias"
        return super().gguf_name(f"{name}.weight" if name.endswith("sink_bias") else name)


MODELS = (TinyMiMoV2("windows", heads=4, kv_heads=2, head_dim=48, tied=False),)
