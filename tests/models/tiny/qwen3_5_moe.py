"""Tiny models of Qwen3.5 with experts: stacked, gate and up together, and a gated shared expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base import TinyModel
from models.tiny.base_delta_net import NAMES
from models.tiny.qwen2_moe import TinyQwen2Moe
from models.tiny.qwen3_5 import TinyQwen35

if TYPE_CHECKING:
    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyQwen35Moe(TinyQwen35, TinyQwen2Moe):
    architecture = "qwen3_5_moe_text"
    gguf_architecture = "qwen35moe"
    gguf_names = TinyQwen2Moe.gguf_names | NAMES

    def metadata(self) -> dict[str, object]:
        shared = self.shared_width
        return super().metadata() | {"qwen35moe.expert_shared_feed_forward_length": shared}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return {
            name: values
            for name, values in super().layer(random).items()
            if not name.endswith("bias")
        }

    def config(self) -> dict[str, object]:
        return {key: one for key, one in super().config().items() if key != "norm_topk_prob"}

    def state(self) -> dict[str, np.ndarray]:
        """Folders have the matrices of all experts stacked, gate and up in one tensor."""
        stacked = TinyModel.state(self)
        found = {}
        for name, values in stacked.items():
            layer, _, part = name.partition("mlp.experts.*.")
            if not part:
                found[name] = values
            elif part == "down_proj.weight":
                found[f"{layer}mlp.experts.down_proj"] = values
            elif part == "gate_proj.weight":
                up = stacked[f"{layer}mlp.experts.*.up_proj.weight"]
                pair = np.concatenate([values, up], axis=1)
                found[f"{layer}mlp.experts.gate_up_proj"] = pair
        return found


MODELS = (TinyQwen35Moe("tied", heads=4, kv_heads=2, head_dim=16, tied=True),)
