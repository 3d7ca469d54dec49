"""Tiny models of Gemma 1: GeGLU, scaled embeddings. One has the older activation name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import TinyModel
from models.tiny.gemma3 import TinyGemma3

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TinyGemma(TinyModel):
    architecture = "gemma"
    norm_mean = 0.0

    tied: bool = True
    activation: str = "gelu_pytorch_tanh"

    def config(self) -> dict[str, object]:
        return super().config() | {"hidden_act": self.activation}

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        return TinyGemma3.gguf_values(self, name, values)  # type: ignore[arg-type]


MODELS = (
    TinyGemma("named", heads=4, kv_heads=1, head_dim=16),
    TinyGemma("of old", heads=2, kv_heads=2, head_dim=32, activation="gelu"),
)
