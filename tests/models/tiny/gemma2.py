"""Tiny models of Gemma 2: soft caps, windows in every second layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import TinyModel
from models.tiny.gemma3 import TinyGemma3

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyGemma2(TinyModel):
    """`score_cap` and `logit_cap` are left out of the files if they are the defaults."""

    architecture = "gemma2"
    gguf_names = TinyGemma3.gguf_names
    norm_mean = 0.0

    tied: bool = True
    window: int = 4
    score_cap: float = 50.0
    logit_cap: float = 30.0

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return super().layer(random) | {
            "pre_feedforward_layernorm.weight": random.near(0, self.width),
            "post_feedforward_layernorm.weight": random.near(0, self.width),
        }

    def caps(self) -> dict[str, object]:
        """Hyperparameters that are not the defaults, under the names of both formats."""
        caps = {
            "attn_logit_softcapping": (self.score_cap, 50.0),
            "final_logit_softcapping": (self.logit_cap, 30.0),
        }
        return {key: cap for key, (cap, default) in caps.items() if cap != default}

    def metadata(self) -> dict[str, object]:
        keys = self.caps() | {"attention.sliding_window": self.window}
        return super().metadata() | {f"gemma2.{key}": value for key, value in keys.items()}

    def config(self) -> dict[str, object]:
        keys = {"sliding_window": self.window, "query_pre_attn_scalar": self.head_dim}
        return super().config() | self.caps() | keys

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        return TinyGemma3.gguf_values(self, name, values)  # type: ignore[arg-type]


MODELS = (
    TinyGemma2(
        "capped", heads=6, kv_heads=3, head_dim=16, width=96, layers=3, score_cap=4.0, logit_cap=1.5
    ),
    TinyGemma2("default caps", heads=3, kv_heads=1, head_dim=48, width=96),
)
