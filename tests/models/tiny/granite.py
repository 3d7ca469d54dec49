"""Tiny models of Granite: factors on embeddings, scores, what each part adds, and logits."""

from __future__ import annotations

from dataclasses import dataclass

from models.tiny.base import TinyModel


@dataclass(frozen=True)
class TinyGranite(TinyModel):
    architecture = "granite"
    interleaves = True

    def config(self) -> dict[str, object]:
        return super().config() | {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.125,
            "residual_multiplier": 0.75,
            "logits_scaling": 0.5,
        }

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {
            "granite.embedding_scale": 12.0,
            "granite.attention.scale": 0.125,
            "granite.residual_scale": 0.75,
            "granite.logit_scale": 0.5,
        }


MODELS = (
    TinyGranite("tied", heads=6, kv_heads=3, head_dim=16, tied=True),
    TinyGranite("untied", heads=3, kv_heads=1, head_dim=16, tied=False, layers=3),
    TinyGranite("minicpm", heads=2, kv_heads=1, head_dim=64, tied=True),  # see minicpm.py
)
