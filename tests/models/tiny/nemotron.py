"""A tiny model of Nemotron: layer norms stored without 1, squared ReLU, half a head rotated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base import BASE, EPS
from models.tiny.base_layer_norm import TinyLayerNorm

if TYPE_CHECKING:
    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyNemotron(TinyLayerNorm):
    architecture = "nemotron"
    norm_mean = 0.0

    def config(self) -> dict[str, object]:
        rope = {"rope_theta": BASE, "rope_type": "default", "partial_rotary_factor": 0.5}
        return super().config() | {
            "norm_eps": EPS,
            "hidden_act": "relu2",
            "rope_parameters": rope,
            "partial_rotary_factor": 0.5,
        }

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {"nemotron.rope.dimension_count": self.head_dim // 2}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        weights = super().layer(random)
        del weights["mlp.gate_proj.weight"]
        return weights

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        return values + np.float32(1) if name.endswith("norm.weight") else values


MODELS = (TinyNemotron("squared", heads=4, kv_heads=2, head_dim=16, tied=False),)
