"""Tiny models of GLM-4.5: a dense layer first, groups, a selection bias, shared experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from models.tiny.base import BASE, HEAD_NORMS, Random, TinyModel
from models.tiny.base_heads import HEAD_NAMES, TinyHead
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    import numpy as np

_SCALE = 1.75


@dataclass(frozen=True)
class TinyGlm4Moe(TinyMixture, TinyHead):
    architecture = "glm4_moe"
    gguf_architecture = "glm4moe"
    gguf_names = (
        GGUF_NAMES
        | HEAD_NORMS
        | {"post_attention_layernorm": "post_attention_norm"}
        | {
            f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp"
            for part in ("gate", "up", "down")
        }
        | HEAD_NAMES
    )

    biased: ClassVar[bool] = True
    """Whether queries, keys and values have biases."""

    layers: int = 3
    experts: int = 8
    groups: int = 4
    groups_used: int = 2
    shared: int = 2
    dense: int = 1
    norms_heads: bool = True

    def config(self) -> dict[str, object]:
        rope = {"rope_type": "default", "rope_theta": BASE, "partial_rotary_factor": 0.5}
        return super().config() | {
            "n_routed_experts": self.experts,
            "n_shared_experts": self.shared,
            "n_group": self.groups,
            "topk_group": self.groups_used,
            "norm_topk_prob": True,
            "routed_scaling_factor": _SCALE,
            "first_k_dense_replace": self.dense,
            "use_qk_norm": self.norms_heads,
            "attention_bias": True,
            "rope_parameters": rope,
            "num_nextn_predict_layers": int(self.mtp),
        }

    def metadata(self) -> dict[str, object]:
        keys = {
            "expert_shared_count": self.shared,
            "expert_group_count": self.groups,
            "expert_group_used_count": self.groups_used,
            "expert_weights_norm": True,
            "expert_weights_scale": _SCALE,
            "expert_gating_func": 2,
            "leading_dense_block_count": self.dense,
            "rope.dimension_count": self.head_dim // 2,
        }
        return super().metadata() | {f"glm4moe.{key}": value for key, value in keys.items()}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        biases = {
            f"self_attn.{name}_proj.bias": random.normal(width)
            for name, width in (("q", self.q_width), ("k", self.kv_width), ("v", self.kv_width))
            if self.biased
        }
        norms = {
            f"self_attn.{name}_norm.weight": random.near(1, self.head_dim)
            for name in ("q", "k")
            if self.norms_heads
        }
        return super().layer(random) | biases | norms

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        width, hidden = self.width, self.expert_width * self.shared
        return super().mixture(random) | {
            "mlp.gate.e_score_correction_bias": 0.3 * random.normal(self.experts),
            "mlp.shared_experts.gate_proj.weight": random.matrix(hidden, width),
            "mlp.shared_experts.up_proj.weight": random.matrix(hidden, width),
            "mlp.shared_experts.down_proj.weight": random.matrix(width, hidden),
        }

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        mixed, dense = self.layer(random), TinyModel.layer(self, random)
        if index >= self.dense:
            return mixed
        kept = {name: values for name, values in mixed.items() if not name.startswith("mlp.")}
        return kept | {name: values for name, values in dense.items() if name.startswith("mlp.")}

    def gguf_name(self, name: str) -> str:
        before, bias, _ = name.partition("gate.e_score_correction_bias")
        return f"blk.{before.split('.')[2]}.exp_probs_b.bias" if bias else super().gguf_name(name)


MODELS = (
    TinyGlm4Moe("groups", heads=6, kv_heads=2, head_dim=16, tied=False),
    TinyGlm4Moe(
        "one group",
        heads=3,
        kv_heads=1,
        head_dim=48,
        tied=False,
        groups=1,
        groups_used=1,
        norms_heads=False,
        mtp=True,
    ),
)
