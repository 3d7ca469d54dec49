"""A tiny model of MiniMax M2: experts with a selection bias, norms of whole queries and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import HEAD_NORMS
from models.tiny.mixtral import TinyMixtral

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyMiniMaxM2(TinyMixtral):
    architecture = "minimax_m2"
    gguf_architecture = "minimax-m2"
    gguf_names = TinyMixtral.gguf_names | HEAD_NORMS
    interleaves = False

    def config(self) -> dict[str, object]:
        return super().config() | {"rotary_dim": self.head_dim // 2}

    def metadata(self) -> dict[str, object]:
        keys = {"expert_gating_func": 2, "rope.dimension_count": self.head_dim // 2}
        return super().metadata() | {f"minimax-m2.{key}": value for key, value in keys.items()}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        bias = "block_sparse_moe.e_score_correction_bias"
        return super().layer(random) | {
            "self_attn.q_norm.weight": random.near(1, self.q_width),
            "self_attn.k_norm.weight": random.near(1, self.kv_width),
            bias: 0.3 * random.normal(self.experts),
        }

    def gguf_name(self, name: str) -> str:
        before, bias, _ = name.partition("block_sparse_moe.e_score_correction_bias")
        return f"blk.{before.split('.')[2]}.exp_probs_b.bias" if bias else super().gguf_name(name)


MODELS = (
    TinyMiniMaxM2(
        "bias", heads=4, kv_heads=2, head_dim=16, tied=False, width=64, experts=8, used=3
    ),
)
