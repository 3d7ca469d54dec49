"""A tiny model of Phi-2: parallel parts, biases also of the output matrix, no gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base import BASE, Random
from models.tiny.base_layer_norm import QKV, TinyLayerNorm, add_biases

if TYPE_CHECKING:
    from gguf_writer import Tensor


@dataclass(frozen=True)
class TinyPhi(TinyLayerNorm):
    """GGUF has q, k and v in one tensor."""

    architecture = "phi"
    gguf_architecture = "phi2"
    gguf_names = TinyLayerNorm.gguf_names | {
        "model.final_layernorm": "output_norm",
        "self_attn.qkv": "attn_qkv",
        "self_attn.dense": "attn_output",
        "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down",
    }

    def config(self) -> dict[str, object]:
        rope = {"rope_theta": BASE, "rope_type": "default", "partial_rotary_factor": 0.5}
        return super().config() | {"rope_parameters": rope, "hidden_act": "gelu_new"}

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {"phi2.rope.dimension_count": self.head_dim // 2}

    def further(self) -> dict[str, np.ndarray]:
        return super().further() | {"lm_head.bias": Random(22).near(0, self.vocabulary)}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        weights = super().layer(random)
        del weights["mlp.gate_proj.weight"]
        for kind in ("weight", "bias"):
            del weights[f"post_attention_layernorm.{kind}"]
        weights["self_attn.dense.weight"] = weights.pop("self_attn.o_proj.weight")
        weights["mlp.fc1.weight"] = weights.pop("mlp.up_proj.weight")
        weights["mlp.fc2.weight"] = weights.pop("mlp.down_proj.weight")
        add_biases(weights, random, *QKV, "self_attn.dense", "mlp.fc1", "mlp.fc2")
        return weights

    def folder_name(self, name: str) -> str:
        return name.replace("model.norm", "model.final_layernorm")

    def tensors(self) -> list[Tensor]:
        state = self.state()
        joint = {}
        for i in range(self.layers):
            prefix = f"model.layers.{i}.self_attn."
            for kind in ("weight", "bias"):
                parts = [state.pop(f"{prefix}{part}_proj.{kind}") for part in "qkv"]
                joint[f"{prefix}qkv.{kind}"] = np.concatenate(parts)
        return self.gguf_tensors(state | joint)


MODELS = (TinyPhi("biased", heads=3, kv_heads=3, head_dim=16, tied=False),)
