"""Tiny models of Mamba alone."""

from __future__ import annotations

from dataclasses import dataclass

from models.tiny.base_scan import TinyScanAlone


@dataclass(frozen=True)
class TinyMamba1(TinyScanAlone):
    architecture = "mamba"


MODELS = (
    TinyMamba1("tied", heads=4, kv_heads=4, head_dim=16, tied=True),
    # Channels that fill no whole vector, and are not `expand` times the width.
    TinyMamba1(
        "biased", heads=4, kv_heads=4, head_dim=16, tied=False, channels=40, taps=3, biased=True
    ),
)
