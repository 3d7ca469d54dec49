"""Tiny models of ERNIE 4.5: as Llama, with neighbours rotated as pairs in both formats."""

from __future__ import annotations

from dataclasses import dataclass

from models.tiny.base import TinyModel


@dataclass(frozen=True)
class TinyErnie(TinyModel):
    architecture = "ernie4_5"

    def config(self) -> dict[str, object]:
        return super().config() | {"use_bias": False}


MODELS = (TinyErnie("tied", heads=4, kv_heads=2, head_dim=16, tied=True),)
