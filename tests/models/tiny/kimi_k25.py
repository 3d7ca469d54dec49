"""A tiny model of Kimi K2.5: its text part is Kimi K2, which is as DeepSeek-V3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from models.tiny.base_images import TinySeeing
from models.tiny.deepseek_v3 import TinyDeepseekV3


@dataclass(frozen=True)
class TinyKimiK25(TinySeeing, TinyDeepseekV3):
    architecture = "kimi_k2"
    whole = "kimi_k25"
    eyes = "model."
    vision: ClassVar[dict[str, object]] = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "pos_emb_height": 4,
        "pos_emb_width": 4,
    }

    def folder_name(self, name: str) -> str:
        return f"language_model.{name}"


MODELS = (
    TinyKimiK25(
        "text", heads=3, kv_heads=3, head_dim=28, tied=False, query_rank=24, stretched=True
    ),
)
