"""Tiny models of FalconMamba."""

from __future__ import annotations

from dataclasses import dataclass

from models.tiny.base_scan import EPS, TinyScanAlone


@dataclass(frozen=True)
class TinyFalconMamba(TinyScanAlone):
    """The norms of the mixer have the epsilon of the others, the only one that GGUF has."""

    architecture = "falcon_mamba"

    def config(self) -> dict[str, object]:
        return super().config() | {"mixer_rms_eps": EPS}

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {"mamba.ssm.dt_b_c_rms": True}


MODELS = (TinyFalconMamba("tied", heads=4, kv_heads=4, head_dim=16, tied=True),)
