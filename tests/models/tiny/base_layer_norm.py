"""The common part of tiny models with layer norms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from models.tiny.base import EPS, Random, TinyModel

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TinyLayerNorm(TinyModel):
    norm_bias: ClassVar[bool] = True

    width: int = 48

    def config(self) -> dict[str, object]:
        return super().config() | {"layer_norm_eps": EPS}

    def further(self) -> dict[str, np.ndarray]:
        return {"model.norm.bias": Random(21).near(0, self.width)} if self.norm_bias else {}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        weights = super().layer(random)
        if self.norm_bias:
            for name in [name for name in weights if "layernorm" in name]:
                weights[name.replace("weight", "bias")] = random.near(0, self.width)
        return weights

    def metadata(self) -> dict[str, object]:
        metadata = super().metadata()
        architecture = self.gguf_architecture or self.architecture
        eps = metadata.pop(f"{architecture}.attention.layer_norm_rms_epsilon")
        return metadata | {f"{architecture}.attention.layer_norm_epsilon": eps}


def add_biases(weights: dict[str, np.ndarray], random: Random, *names: str) -> None:
    """Give these matrices of a layer random biases."""
    for name in names:
        weights[f"{name}.bias"] = random.near(0, len(weights[f"{name}.weight"]))


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
