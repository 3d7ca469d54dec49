"""A tiny model of StarCoder2: layer norms, biases, no gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import EPS
from models.tiny.base_layer_norm import QKV, TinyLayerNorm, add_biases

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyStarcoder2(TinyLayerNorm):
    architecture = "starcoder2"
    gguf_names = TinyLayerNorm.gguf_names | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}

    def config(self) -> dict[str, object]:
        return super().config() | {
            "norm_epsilon": EPS,
            "hidden_act": "gelu_pytorch_tanh",
            "use_bias": True,
            "sliding_window": None,
        }

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        weights = super().layer(random)
        del weights["mlp.gate_proj.weight"]
        weights["mlp.c_fc.weight"] = weights.pop("mlp.up_proj.weight")
        weights["mlp.c_proj.weight"] = weights.pop("mlp.down_proj.weight")
        add_biases(weights, random, *QKV, "self_attn.o_proj", "mlp.c_fc", "mlp.c_proj")
        return weights


MODELS = (TinyStarcoder2("biased", heads=3, kv_heads=1, head_dim=16, tied=True),)
