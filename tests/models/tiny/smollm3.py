"""Tiny models of SmolLM3: every fourth layer has no positions."""

from __future__ import annotations

from dataclasses import dataclass

from models.tiny.base import TinyModel


@dataclass(frozen=True)
class TinySmolLM3(TinyModel):
    architecture = "smollm3"
    interleaves = True

    layers: int = 5

    def config(self) -> dict[str, object]:
        return super().config() | {"no_rope_layers": [int(i % 4 < 3) for i in range(self.layers)]}


MODELS = (TinySmolLM3("odd heads", heads=3, kv_heads=1, head_dim=16, tied=True),)
