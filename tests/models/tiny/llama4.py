"""Tiny models of Llama 4: experts in every layer, or in every second one and without norms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import TinyModel
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture
from models.tiny.qwen3_vl import transposed

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random

_PARTS = ("gate", "up", "down")


@dataclass(frozen=True)
class TinyLlama4(TinyMixture):
    architecture = "llama4_text"
    gguf_architecture = "llama4"
    gguf_names = (
        GGUF_NAMES
        | {f"feed_forward.{part}_proj": f"ffn_{part}" for part in _PARTS}
        | {f"feed_forward.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in _PARTS}
    )
    router = "feed_forward.router"
    stacks = (
        "feed_forward.experts.*.gate_proj",
        "feed_forward.experts.*.up_proj",
        "feed_forward.experts.*.down_proj",
    )
    count_key = "num_local_experts"

    layers: int = 5
    used: int = 1
    step: int = 1
    normed: bool = True
    chunk: int = 0
    growth: int = 0

    def config(self) -> dict[str, object]:
        return super().config() | {
            "intermediate_size": self.expert_width,
            "intermediate_size_mlp": self.ffn_width,
            "interleave_moe_layer_step": self.step,
            "no_rope_layers": [],
            "no_rope_layer_interval": 4,
            "use_qk_norm": self.normed,
            **({"attention_chunk_size": self.chunk} if self.chunk else {}),
            **({"floor_scale": self.growth, "attn_scale": 0.3} if self.growth else {}),
        }

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {"llama4.interleave_moe_layer_step": self.step}

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        if (index + 1) % self.step == 0:
            return self.layer(random)
        return {
            name.replace("mlp.", "feed_forward."): values
            for name, values in TinyModel.layer(self, random).items()
        }

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        width, hidden, shared = self.width, self.expert_width, "feed_forward.shared_expert"
        return super().mixture(random) | {
            f"{shared}.gate_proj.weight": random.matrix(hidden, width),
            f"{shared}.up_proj.weight": random.matrix(hidden, width),
            f"{shared}.down_proj.weight": random.matrix(width, hidden),
        }

    def stored(self) -> dict[str, np.ndarray]:
        return transposed(super().stored())


FOLDERS = (
    TinyLlama4(
        "chunked", heads=4, kv_heads=2, head_dim=16, tied=False, experts=5, chunk=5, growth=3
    ),
)
"""GGUF files have the chunks of the published models."""
MODELS = (
    TinyLlama4("scout", heads=4, kv_heads=2, head_dim=16, tied=False, experts=5),
    TinyLlama4(
        "maverick",
        heads=4,
        kv_heads=2,
        head_dim=16,
        tied=False,
        experts=128,
        expert_width=4,
        step=2,
        normed=False,
    ),
)
