"""Tiny models of Qwen2-VL and Qwen2.5-VL: Qwen2 with three axes of positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from models.tiny.base import BASE
from models.tiny.base_images import TinySeeing
from models.tiny.qwen2 import TinyQwen2

MROPE = {"rope_type": "default", "rope_theta": BASE}


@dataclass(frozen=True)
class TinyQwen2VL(TinySeeing, TinyQwen2):
    architecture = "qwen2_vl_text"
    gguf_architecture = "qwen2vl"
    whole = "qwen2_vl"
    vision: ClassVar[dict[str, object]] = {
        "depth": 1,
        "embed_dim": 32,
        "hidden_size": 32,
        "num_heads": 2,
        "mlp_ratio": 2,
    }

    @property
    def text_config(self) -> dict[str, object]:
        return super().text_config | {
            "rope_parameters": MROPE | {"mrope_section": self.sections(2, 3, 3)}
        }

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {
            "qwen2vl.rope.dimension_sections": np.int32(self.sections(2, 3, 3, 0))
        }


@dataclass(frozen=True)
class TinyQwen25VL(TinyQwen2VL):
    architecture = "qwen2_5_vl_text"
    whole = "qwen2_5_vl"
    vision: ClassVar[dict[str, object]] = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 32,
        "fullatt_block_indexes": [0],
    }


MODELS = (
    TinyQwen2VL("2", heads=4, kv_heads=2, head_dim=16, tied=True, width=64),
    TinyQwen25VL("2.5", heads=4, kv_heads=2, head_dim=16, tied=False, width=64),
)
