"""The common part of tiny models with gated delta nets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base import HEAD_NORMS
from models.tiny.base_heads import HEAD_NAMES, TinyHead

if TYPE_CHECKING:
    from models.tiny.base import Random

NAMES = (
    HEAD_NORMS
    | HEAD_NAMES
    | {
        "post_attention_layernorm": "post_attention_norm",
        "linear_attn.in_proj_qkvz": "ssm_in",
        "linear_attn.in_proj_qkv": "attn_qkv",
        "linear_attn.in_proj_z": "attn_gate",
        "linear_attn.in_proj_ba": "ssm_ba",
        "linear_attn.in_proj_b": "ssm_beta",
        "linear_attn.in_proj_a": "ssm_alpha",
        "linear_attn.conv1d": "ssm_conv1d",
        "linear_attn.norm": "ssm_norm",
        "linear_attn.out_proj": "ssm_out",
    }
)
_WHOLE_NAMES = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
"""GGUF's names of tensors that do not end in `.weight`."""


_HEAD_IN_FOLDERS = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head.norm": "norm",
}


@dataclass(frozen=True)
class TinyDeltaNet(TinyHead):
    """Every `period`-th layer has attention, whose gates lie beside its queries."""

    norm_mean = 0.0

    layers: int = 4
    period: int = 4
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 8
    value_dim: int = 8
    taps: int = 4

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    def config(self) -> dict[str, object]:
        kinds = ("linear_attention", "full_attention")
        return super().config() | {
            "layer_types": [kinds[self.has_attention(layer)] for layer in range(self.layers)],
            "linear_conv_kernel_dim": self.taps,
            "linear_key_head_dim": self.key_dim,
            "linear_value_head_dim": self.value_dim,
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads,
            "rope_parameters": {
                "rope_theta": 10_000.0,
                "rope_type": "default",
                "partial_rotary_factor": 0.25,
            },
        }

    @property
    def head_like(self) -> int:
        return self.period - 1

    def folder_name(self, name: str) -> str:
        """The head is called `mtp` in folders."""
        before = f"model.layers.{self.layers}."
        if not name.startswith(before):
            return name
        part = name.removeprefix(before).removesuffix(".weight")
        if part in _HEAD_IN_FOLDERS:
            return f"mtp.{_HEAD_IN_FOLDERS[part]}.weight"
        return f"mtp.layers.0.{name.removeprefix(before)}"

    def has_attention(self, layer: int) -> bool:
        return (layer + 1) % self.period == 0

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        layer = self.layer(random)
        if self.has_attention(index):
            return layer | {
                "self_attn.q_proj.weight": 3 * random.matrix(2 * self.q_width, self.width),
                "self_attn.q_norm.weight": random.near(0, self.head_dim),
                "self_attn.k_norm.weight": random.near(0, self.head_dim),
            }
        kept = {name: one for name, one in layer.items() if not name.startswith("self_attn")}
        return kept | self.mixer(random)

    def mixer(self, random: Random) -> dict[str, np.ndarray]:
        channels = 2 * self.keys + self.values
        return self.projections(random) | {
            "linear_attn.conv1d.weight": random.matrix(channels, self.taps)[:, None],
            "linear_attn.dt_bias": random.near(1, self.value_heads),
            "linear_attn.A_log": random.near(0.5, self.value_heads),
            "linear_attn.norm.weight": random.near(1, self.value_dim),
            "linear_attn.out_proj.weight": random.matrix(self.width, self.values),
        }

    def projections(self, random: Random) -> dict[str, np.ndarray]:
        width, heads = self.width, self.value_heads
        return {
            "linear_attn.in_proj_qkv.weight": random.matrix(2 * self.keys + self.values, width),
            "linear_attn.in_proj_z.weight": random.matrix(self.values, width),
            "linear_attn.in_proj_b.weight": random.matrix(heads, width),
            "linear_attn.in_proj_a.weight": random.matrix(heads, width),
        }

    def metadata(self) -> dict[str, object]:
        common = super().metadata()
        prefix = str(common["general.architecture"])
        return common | {
            f"{prefix}.rope.dimension_count": self.head_dim // 4,
            f"{prefix}.full_attention_interval": self.period,
            f"{prefix}.ssm.conv_kernel": self.taps,
            f"{prefix}.ssm.state_size": self.key_dim,
            f"{prefix}.ssm.inner_size": self.values,
            f"{prefix}.ssm.time_step_rank": self.value_heads,
            f"{prefix}.ssm.group_count": self.key_heads,
        }

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """Norms are stored with their offset of 1, and rates of decay in place of logarithms."""
        if name.endswith("A_log"):
            return -np.exp(values)
        if name.endswith("conv1d.weight"):
            return values[:, 0]
        is_norm = name.endswith("norm.weight") and "linear_attn" not in name
        return values + np.float32(1) if is_norm else super().gguf_values(name, values)

    def gguf_name(self, name: str) -> str:
        for own, stored in _WHOLE_NAMES.items():
            if name.endswith(own):
                return f"blk.{name.split('.')[2]}.{stored}"
        return super().gguf_name(name)
