"""Tiny models of Granite with experts: gate and up of all experts are one tensor of the folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    from models.tiny.base import Random

FACTORS = {
    "embedding_multiplier": ("embedding_scale", 12.0),
    "attention_multiplier": ("attention.scale", 0.125),
    "residual_multiplier": ("residual_scale", 0.75),
    "logits_scaling": ("logit_scale", 0.5),
}


@dataclass(frozen=True)
class TinyGraniteMoe(TinyMixture):
    architecture = "granitemoe"
    gguf_names = GGUF_NAMES
    router = "block_sparse_moe.router.layer"
    stacks = ("gate", "up", "block_sparse_moe.output_linear")
    count_key = "num_local_experts"
    interleaves = True

    expert_width: int = 48

    def config(self) -> dict[str, object]:
        return super().config() | {key: value for key, (_, value) in FACTORS.items()}

    def metadata(self) -> dict[str, object]:
        factors = {f"granitemoe.{key}": value for key, value in FACTORS.values()}
        return super().metadata() | factors

    def state(self) -> dict[str, np.ndarray]:
        state = super().state()
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            pair = [state.pop(f"{prefix}.{part}.weight") for part in ("gate", "up")]
            name = f"{prefix}.block_sparse_moe.input_linear.weight"
            state[name] = np.concatenate(pair, axis=1)
        return state


@dataclass(frozen=True)
class TinyGraniteMoeShared(TinyGraniteMoe):
    architecture = "granitemoeshared"
    gguf_architecture = "granitemoe"
    gguf_names = TinyGraniteMoe.gguf_names | {
        "shared.first": "ffn_gate_shexp",
        "shared.second": "ffn_up_shexp",
        "shared_mlp.output_linear": "ffn_down_shexp",
    }

    shared_width: int = 24

    def config(self) -> dict[str, object]:
        return super().config() | {"shared_intermediate_size": self.shared_width}

    def metadata(self) -> dict[str, object]:
        width = {"granitemoe.expert_shared_feed_forward_length": self.shared_width}
        return super().metadata() | width

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        width, hidden = self.width, self.shared_width
        return super().mixture(random) | {
            "shared.first.weight": random.matrix(hidden, width),
            "shared.second.weight": random.matrix(hidden, width),
            "shared_mlp.output_linear.weight": random.matrix(width, hidden),
        }

    def state(self) -> dict[str, np.ndarray]:
        state = super().state()
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            pair = [state.pop(f"{prefix}.shared.{part}.weight") for part in ("first", "second")]
            state[f"{prefix}.shared_mlp.input_linear.weight"] = np.concatenate(pair)
        return state


MODELS = (
    TinyGraniteMoe("pairs", heads=6, kv_heads=3, head_dim=16, tied=True),
    TinyGraniteMoeShared("shared", heads=6, kv_heads=3, head_dim=16, tied=True),
)
