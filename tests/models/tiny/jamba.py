"""Tiny models of Jamba: Mamba, attention without positions, experts in some layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base import TinyModel
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture
from models.tiny.base_scan import TinyScan, scan_names

if TYPE_CHECKING:
    from models.tiny.base import Random

_NAMES = scan_names("mamba") | {
    "model.final_layernorm": "output_norm",
    "pre_ff_layernorm": "ffn_norm",
    "mamba.dt_layernorm": "ssm_dt_norm",
    "mamba.b_layernorm": "ssm_b_norm",
    "mamba.c_layernorm": "ssm_c_norm",
    **{f"feed_forward.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}


@dataclass(frozen=True)
class TinyJamba(TinyScan, TinyMixture):
    """Layers 1, 4, ... have attention, and layers 1, 3, ... experts, if there are several."""

    architecture = "jamba"
    gguf_names = GGUF_NAMES | _NAMES
    scan_part = "mamba"
    router = "feed_forward.router"
    stacks = (
        "feed_forward.experts.*.gate_proj",
        "feed_forward.experts.*.up_proj",
        "feed_forward.experts.*.down_proj",
    )

    layers: int = 4
    expert_width: int = 48

    def has_attention(self, layer: int) -> bool:
        return layer % 3 == 1

    def has_experts(self, layer: int) -> bool:
        return self.experts > 1 and layer % 2 == 1

    def config(self) -> dict[str, object]:
        kept = super().config()
        for key in ("head_dim", "moe_intermediate_size", "rope_parameters"):
            del kept[key]
        return kept | {
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_expand": self.channels // self.width,
            "mamba_d_state": self.states,
            "mamba_d_conv": self.taps,
            "mamba_dt_rank": self.rank,
        }

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        dense = TinyModel.layer(self, random)
        kept = {
            name.replace("mlp.", "feed_forward.").replace("post_attention_", "pre_ff_"): values
            for name, values in dense.items()
            if self.has_attention(index) or not name.startswith("self_attn.")
        }
        if self.has_experts(index):
            kept = {name: one for name, one in kept.items() if "feed_forward" not in name}
            kept |= self.mixture(random)
        return kept if self.has_attention(index) else kept | self.mixer(random)

    def mixer(self, random: Random) -> dict[str, np.ndarray]:
        """The weights of a mixer, with norms of what the scan reads."""
        sizes = {"dt": self.rank, "b": self.states, "c": self.states}
        return super().mixer(random) | {
            f"mamba.{part}_layernorm.weight": random.near(1, size) for part, size in sizes.items()
        }

    def state(self) -> dict[str, np.ndarray]:
        return {
            name.replace("model.norm.", "model.final_layernorm."): values
            for name, values in super().state().items()
        }

    def metadata(self) -> dict[str, object]:
        of_experts = "jamba.expert_feed_forward_length"
        kept = {
            key: value
            for key, value in super().metadata().items()
            if ".rope." not in key and key != of_experts
        }
        heads = [self.kv_heads * self.has_attention(layer) for layer in range(self.layers)]
        return kept | {"jamba.attention.head_count_kv": np.array(heads, np.int32)}

    def gguf_name(self, name: str) -> str:
        return super().gguf_name(name.replace("model.norm.", "model.final_layernorm."))


MODELS = (
    TinyJamba("experts", heads=2, kv_heads=1, head_dim=16, tied=False),
    TinyJamba("dense", heads=2, kv_heads=1, head_dim=16, tied=True, experts=1, used=1),
)
