"""A tiny model of AFMoE: gates of elements, norms around each part, windows with positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import HEAD_NORMS, TinyModel
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random

_WEIGHT = 2.5
_PARTS = ("gate", "up", "down")


@dataclass(frozen=True)
class TinyAfmoe(TinyMixture):
    architecture = "afmoe"
    gguf_names = (
        GGUF_NAMES
        | HEAD_NORMS
        | {
            "self_attn.gate_proj": "attn_gate",
            "post_attention_layernorm": "post_attention_norm",
            "pre_mlp_layernorm": "ffn_norm",
            "post_mlp_layernorm": "post_ffw_norm",
        }
        | {f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in _PARTS}
    )
    router = "mlp.router.gate"

    layers: int = 4
    window: int = 5

    def config(self) -> dict[str, object]:
        return super().config() | {
            "num_dense_layers": 1,
            "num_shared_experts": 1,
            "route_scale": _WEIGHT,
            "sliding_window": self.window,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "mup_enabled": True,
        }

    def metadata(self) -> dict[str, object]:
        keys: dict[str, object] = {
            "attention.sliding_window": self.window,
            "expert_shared_count": 1,
            "expert_weights_scale": _WEIGHT,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
            "leading_dense_block_count": 1,
        }
        return super().metadata() | {f"afmoe.{key}": value for key, value in keys.items()}

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        found = self.layer(random) | {
            "self_attn.gate_proj.weight": 3 * random.matrix(self.q_width, self.width),
            "self_attn.q_norm.weight": random.near(1, self.head_dim),
            "self_attn.k_norm.weight": random.near(1, self.head_dim),
            "pre_mlp_layernorm.weight": random.near(1, self.width),
            "post_mlp_layernorm.weight": random.near(1, self.width),
        }
        if index > 0:
            return found
        dense = TinyModel.layer(self, random)
        kept = {name: values for name, values in found.items() if not name.startswith("mlp.")}
        return kept | {name: values for name, values in dense.items() if name.startswith("mlp.")}

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        width, hidden = self.width, self.expert_width
        return super().mixture(random) | {
            "mlp.expert_bias": 0.3 * random.normal(self.experts),
            "mlp.shared_experts.gate_proj.weight": random.matrix(hidden, width),
            "mlp.shared_experts.up_proj.weight": random.matrix(hidden, width),
            "mlp.shared_experts.down_proj.weight": random.matrix(width, hidden),
        }

    def gguf_name(self, name: str) -> str:
        before, bias, _ = name.partition("mlp.expert_bias")
        return f"blk.{before.split('.')[2]}.exp_probs_b.bias" if bias else super().gguf_name(name)


MODELS = (TinyAfmoe("windows", heads=4, kv_heads=2, head_dim=16, tied=False),)
