"""A tiny model of MiniCPM: a Granite whose heads make the factor on scores its default."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import DATA, TinyModel

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class TinyMiniCPM(TinyModel):
    architecture = "minicpm"
    interleaves = True

    @property
    def logits_file(self) -> Path:
        return DATA / "granite_logits.json"

    def config(self) -> dict[str, object]:
        return super().config() | {
            "scale_emb": 12,
            "scale_depth": 0.75 * math.sqrt(self.layers),
            "dim_model_base": 2 * self.width,
        }

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {
            "minicpm.residual_scale": 0.75,
            "minicpm.logit_scale": 0.5,
        }


MODELS = (TinyMiniCPM("minicpm", heads=2, kv_heads=1, head_dim=64, tied=True),)
