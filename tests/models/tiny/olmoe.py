"""A tiny model of OLMoE: experts, and norms of all queries and of all keys together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import HEAD_NORMS
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyOlmoe(TinyMixture):
    architecture = "olmoe"
    gguf_names = GGUF_NAMES | HEAD_NORMS

    width: int = 48

    def config(self) -> dict[str, object]:
        config = super().config() | {"norm_topk_prob": False, "clip_qkv": None}
        del config["moe_intermediate_size"]
        return config | {"intermediate_size": self.expert_width}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return super().layer(random) | {
            "self_attn.q_norm.weight": random.near(1, self.q_width),
            "self_attn.k_norm.weight": random.near(1, self.kv_width),
        }


MODELS = (TinyOlmoe("mixture", heads=3, kv_heads=3, head_dim=16, tied=False),)
