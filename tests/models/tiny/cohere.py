"""Tiny models of Command R and Command R7B: parallel parts, layer norms without biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base_layer_norm import TinyLayerNorm

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyCohere(TinyLayerNorm):
    architecture = "cohere"
    gguf_architecture = "command-r"
    norm_bias = False

    def config(self) -> dict[str, object]:
        return super().config() | {"logit_scale": 0.25, "use_qk_norm": False}

    def metadata(self) -> dict[str, object]:
        architecture = self.gguf_architecture or self.architecture
        return super().metadata() | {f"{architecture}.logit_scale": 0.25}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        weights = super().layer(random)
        del weights["post_attention_layernorm.weight"]
        return weights


@dataclass(frozen=True)
class TinyCohere2(TinyCohere):
    """Three of four layers see a window. The others have no positions."""

    architecture = "cohere2"
    gguf_architecture = ""

    layers: int = 5
    window: int = 5

    def config(self) -> dict[str, object]:
        kinds = [(layer + 1) % 4 > 0 for layer in range(self.layers)]
        return super().config() | {
            "sliding_window": self.window,
            "layer_types": ["sliding_attention" if one else "full_attention" for one in kinds],
        }

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {"cohere2.attention.sliding_window": self.window}


MODELS = (
    TinyCohere("plain", heads=3, kv_heads=1, head_dim=16, tied=True),
    TinyCohere2("windowed", heads=3, kv_heads=1, head_dim=16, tied=True),
)
