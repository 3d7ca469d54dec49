"""Tiny models of BitNet, whose matrices are ternary in folders and files as in the published ones.

`transformers` computes their logits from the same values, without rounding activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from models.tiny.base import TinyModel

if TYPE_CHECKING:
    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyBitNet(TinyModel):
    architecture = "bitnet"
    gguf_architecture: ClassVar[str] = "bitnet-b1.58"
    gguf_names = TinyModel.gguf_names | {
        "self_attn.attn_sub_norm": "attn_sub_norm",
        "mlp.ffn_sub_norm": "ffn_sub_norm",
    }

    activation: str = "relu2"

    def config(self) -> dict[str, object]:
        return super().config() | {"hidden_act": self.activation}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        plain = super().layer(random)
        matrices = {name: ternary(values) for name, values in plain.items() if values.ndim == 2}
        norms = {
            "self_attn.attn_sub_norm.weight": random.near(self.norm_mean, self.q_width),
            "mlp.ffn_sub_norm.weight": random.near(self.norm_mean, self.ffn_width),
        }
        return plain | matrices | norms


@dataclass(frozen=True)
class TinyOldBitNet(TinyBitNet):
    """The first models: llama.cpp's own architecture, with SiLU."""

    gguf_architecture = "bitnet"
    activation: str = "silu"


def ternary(values: np.ndarray) -> np.ndarray:
    """Each value is the mean of all magnitudes, its negative, or 0."""
    scale = np.abs(values).mean()
    return (np.rint(values / scale).clip(-1, 1) * scale).astype(np.float32)


MODELS = (
    TinyBitNet("bitnet", heads=4, kv_heads=2, head_dim=16, tied=True, width=64),
    TinyOldBitNet("bitnet with silu", heads=2, kv_heads=2, head_dim=16, tied=False),
)
