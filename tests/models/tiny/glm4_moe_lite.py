"""Tiny models of GLM-4.7-Flash: as DeepSeek-V3, with a list of the layers that have experts."""

from __future__ import annotations

from dataclasses import dataclass

from models.tiny.deepseek_v3 import TinyDeepseekV3


@dataclass(frozen=True)
class TinyGlm4MoeLite(TinyDeepseekV3):
    architecture = "glm4_moe_lite"

    def config(self) -> dict[str, object]:
        kinds = ["dense"] * self.dense + ["sparse"] * (self.layers - self.dense)
        return super().config() | {"mlp_layer_types": kinds}


MODELS = (
    TinyGlm4MoeLite("flash", heads=5, kv_heads=5, head_dim=40, tied=False, query_rank=24, dense=2),
)
