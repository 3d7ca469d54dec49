"""Tiny models of Qwen2 MoE: a gated shared expert, expert weights with and without norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random

_SHARED = {"gate": "ffn_gate_shexp", "up": "ffn_up_shexp", "down": "ffn_down_shexp"}


@dataclass(frozen=True)
class TinyQwen2Moe(TinyMixture):
    architecture = "qwen2_moe"
    gguf_architecture = "qwen2moe"
    gguf_names = (
        GGUF_NAMES
        | {f"mlp.shared_expert.{part}_proj": name for part, name in _SHARED.items()}
        | {"mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
    )

    shared_width: int = 28

    def config(self) -> dict[str, object]:
        return super().config() | {
            "norm_topk_prob": False,
            "shared_expert_intermediate_size": self.shared_width,
        }

    def metadata(self) -> dict[str, object]:
        key = "qwen2moe.expert_shared_feed_forward_length"
        return super().metadata() | {key: self.shared_width}

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        width, hidden = self.width, self.shared_width
        return super().mixture(random) | {
            "mlp.shared_expert.gate_proj.weight": random.matrix(hidden, width),
            "mlp.shared_expert.up_proj.weight": random.matrix(hidden, width),
            "mlp.shared_expert.down_proj.weight": random.matrix(width, hidden),
            "mlp.shared_expert_gate.weight": 4 * random.matrix(1, width),
        }

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return super().layer(random) | {
            "self_attn.q_proj.bias": random.normal(self.q_width),
            "self_attn.k_proj.bias": random.normal(self.kv_width),
            "self_attn.v_proj.bias": random.normal(self.kv_width),
        }

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """The gate of the shared expert is a vector."""
        return values[0] if name.endswith("shared_expert_gate.weight") else values


MODELS = (TinyQwen2Moe("shared", heads=4, kv_heads=2, head_dim=16, tied=True),)
