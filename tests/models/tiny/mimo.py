"""A tiny model of MiMo: a Qwen2. GGUF has no such architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import DATA
from models.tiny.qwen2 import TinyQwen2

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class TinyMiMo(TinyQwen2):
    architecture = "mimo"

    @property
    def logits_file(self) -> Path:
        return DATA / "qwen2_logits.json"

    def config(self) -> dict[str, object]:
        return super().config() | {"num_nextn_predict_layers": 1}


FOLDERS = (TinyMiMo("tied", heads=4, kv_heads=2, head_dim=16, tied=True),)
