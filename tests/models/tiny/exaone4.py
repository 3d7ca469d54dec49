"""Tiny models of EXAONE 4: norms after each part, norms of heads, windows in one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.olmo2 import TinyOlmo2

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyExaone4(TinyOlmo2):
    """With a window, three of four layers have it, and only these have positions."""

    architecture = "exaone4"

    window: int = 0

    def config(self) -> dict[str, object]:
        kinds = [self.window and (layer + 1) % 4 > 0 for layer in range(self.layers)]
        return super().config() | {
            "sliding_window": self.window or None,
            "sliding_window_pattern": 4,
            "layer_types": ["sliding_attention" if one else "full_attention" for one in kinds],
        }

    def metadata(self) -> dict[str, object]:
        window = {"exaone4.attention.sliding_window": self.window} if self.window else {}
        return super().metadata() | window

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return super().layer(random) | {
            "self_attn.q_norm.weight": random.near(1, self.head_dim),
            "self_attn.k_norm.weight": random.near(1, self.head_dim),
        }


MODELS = (
    TinyExaone4("windowed", heads=3, kv_heads=1, head_dim=16, tied=False, layers=5, window=5),
    TinyExaone4("plain", heads=3, kv_heads=3, head_dim=16, tied=True),
)
