"""Tiny models of Kimi Linear: delta attention with a decay of each row, and latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base import TinyModel
from models.tiny.base_latent import EPS, TinyLatent

if TYPE_CHECKING:
    from models.tiny.base import Random

_PARTS = {"f_a_proj": "f_a", "f_b_proj": "f_b", "g_a_proj": "g_a", "g_b_proj": "g_b"}
_CONVOLUTIONS = {f"self_attn.{part}_conv1d": f"ssm_conv1d_{part}" for part in ("q", "k", "v")}
_WHOLE_NAMES = {"self_attn.A_log": "ssm_a", "self_attn.dt_bias": "ssm_dt.bias"}
"""GGUF's names of tensors that do not end in `.weight`."""


@dataclass(frozen=True)
class TinyKimiLinear(TinyLatent):
    """The layers `attention_layers`, of which the first is 0, have latent attention.

    `own_keys`: whether config.json has the keys that `transformers` defines.
    """

    architecture = "kimi_linear"
    gguf_architecture = "kimi-linear"
    gguf_names = (
        TinyLatent.gguf_names
        | _CONVOLUTIONS
        | {f"self_attn.{name}": f"ssm_{part}" for name, part in _PARTS.items()}
        | {"self_attn.b_proj": "ssm_beta", "self_attn.o_norm": "ssm_norm"}
        | {
            f"block_sparse_moe.shared_experts.{part}_proj": f"ffn_{part}_shexp"
            for part in ("gate", "up", "down")
        }
    )
    router = "block_sparse_moe.gate"
    stacks = (
        "block_sparse_moe.experts.*.w1",
        "block_sparse_moe.experts.*.w3",
        "block_sparse_moe.experts.*.w2",
    )
    count_key = "num_experts"

    layers: int = 4
    attention_layers: tuple[int, ...] = (1, 3)
    key_size: int = 12
    taps: int = 4
    own_keys: bool = False

    @property
    def inner(self) -> int:
        return self.heads * self.key_size

    def config(self) -> dict[str, object]:
        common = super().config()
        for key in ("max_position_embeddings", "rope_parameters", "num_experts_per_tok"):
            del common[key]
        del common["n_shared_experts"]
        return (
            common
            | {
                "model_max_length": self.context,
                "num_experts_per_token": self.used,
                "num_shared_experts": self.shared,
                "num_expert_group": self.groups,
                "topk_group": self.groups_used,
                "moe_renormalize": True,
            }
            | (self._keys_of_transformers() if self.own_keys else self._keys_of_moonshot())
        )

    def _keys_of_moonshot(self) -> dict[str, object]:
        attention = [layer + 1 for layer in self.attention_layers]
        every = range(1, self.layers + 1)
        linear = {
            "full_attn_layers": attention,
            "kda_layers": [layer for layer in every if layer not in attention],
            "head_dim": self.key_size,
            "num_heads": self.heads,
            "short_conv_kernel_size": self.taps,
        }
        return {
            "linear_attn_config": linear,
            "mla_use_nope": True,
            "moe_layer_freq": 1,
            "moe_router_activation_func": "sigmoid",
            "use_grouped_topk": True,
        }

    def _keys_of_transformers(self) -> dict[str, object]:
        kinds = ("linear_attention", "full_attention")
        layers = range(self.layers)
        return {
            "layer_types": [kinds[layer in self.attention_layers] for layer in layers],
            "mlp_layer_types": [("sparse", "dense")[layer < self.dense] for layer in layers],
            "linear_head_dim": self.key_size,
            "linear_num_heads": self.heads,
            "linear_conv_kernel_dim": self.taps,
        }

    def metadata(self) -> dict[str, object]:
        heads = [int(layer in self.attention_layers) for layer in range(self.layers)]
        return super().metadata() | {
            "kimi-linear.attention.head_count_kv": np.array(heads, np.int32),
            "kimi-linear.kda.head_dim": self.key_size,
            "kimi-linear.ssm.conv_kernel": self.taps,
            "kimi-linear.expert_gating_func": 2,
        }

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        found = super().mixture(random)
        return {name.replace("mlp.", "block_sparse_moe."): one for name, one in found.items()}

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        layer = self.layer(random)
        if index < self.dense:
            mixture = "block_sparse_moe."
            layer = {name: one for name, one in layer.items() if not name.startswith(mixture)}
            plain = TinyModel.layer(self, random)
            layer |= {name: one for name, one in plain.items() if name.startswith("mlp.")}
        if index in self.attention_layers:
            return layer
        kept = {name: one for name, one in layer.items() if not name.startswith("self_attn.")}
        return kept | self.delta_attention(random)

    def delta_attention(self, random: Random) -> dict[str, np.ndarray]:
        width, inner, size = self.width, self.inner, self.key_size
        found = {}
        for part in ("q", "k", "v"):
            found[f"self_attn.{part}_proj.weight"] = random.matrix(inner, width)
            found[f"self_attn.{part}_conv1d.weight"] = random.matrix(inner, self.taps)[:, None]
        for part in ("f", "g"):
            found[f"self_attn.{part}_a_proj.weight"] = random.matrix(size, width)
            found[f"self_attn.{part}_b_proj.weight"] = random.matrix(inner, size)
        return found | {
            "self_attn.b_proj.weight": random.matrix(self.heads, width),
            "self_attn.A_log": random.near(0.5, self.heads).reshape(1, 1, -1, 1),
            "self_attn.dt_bias": random.near(-1, inner),
            "self_attn.o_norm.weight": random.near(1, size),
            "self_attn.o_proj.weight": random.matrix(width, inner),
        }

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """Filters have axes of one element, and rates of decay are in place of logarithms."""
        if name.endswith("A_log"):
            return -np.exp(values)
        if name.endswith("conv1d.weight"):
            return values[None]
        return super().gguf_values(name, values)

    def gguf_name(self, name: str) -> str:
        for own, stored in _WHOLE_NAMES.items():
            if name.endswith(own):
                return f"blk.{name.split('.')[2]}.{stored}"
        return super().gguf_name(name)


assert EPS == 1e-6, "Kimi Linear has it in the norms of latents, whatever config.json says"
MODELS = (
    TinyKimiLinear("linear", heads=3, kv_heads=3, head_dim=28, tied=False),
    TinyKimiLinear(
        "groups",
        heads=2,
        kv_heads=2,
        head_dim=40,
        tied=False,
        layers=5,
        attention_layers=(0, 4),
        dense=2,
        groups=4,
        groups_used=2,
        shared=1,
        key_size=20,
        taps=3,
        own_keys=True,
    ),
)
