"""A tiny model of Solar Open: experts in all layers, no norms of heads. GGUF calls it glm4moe."""

from __future__ import annotations

from dataclasses import dataclass

from models.tiny.base import BASE
from models.tiny.glm4_moe import TinyGlm4Moe


@dataclass(frozen=True)
class TinySolarOpen(TinyGlm4Moe):
    architecture = "solar_open"
    biased = False

    layers: int = 2
    shared: int = 1
    groups: int = 1
    groups_used: int = 1
    dense: int = 0
    norms_heads: bool = False

    def config(self) -> dict[str, object]:
        common = super().config()
        for key in ("intermediate_size", "first_k_dense_replace", "use_qk_norm", "attention_bias"):
            del common[key]
        return common | {"rope_parameters": {"rope_type": "default", "rope_theta": BASE}}

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {"glm4moe.rope.dimension_count": self.head_dim}


MODELS = (TinySolarOpen("plain", heads=4, kv_heads=2, head_dim=16, tied=False),)
