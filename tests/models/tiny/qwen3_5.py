"""Tiny models of Qwen3.5: gated delta nets and gated attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.tiny.base import TinyModel
from models.tiny.base_delta_net import NAMES, TinyDeltaNet


@dataclass(frozen=True)
class TinyQwen35(TinyDeltaNet):
    architecture = "qwen3_5_text"
    gguf_architecture = "qwen35"
    gguf_names = TinyModel.gguf_names | NAMES

    def metadata(self) -> dict[str, object]:
        """llama.cpp wants the pairs that turn by time, height and width. In text all are equal."""
        pairs = self.head_dim // 8
        sections = np.array([-(-(pairs - i) // 3) for i in range(3)] + [0], np.int32)
        return super().metadata() | {f"{self.gguf_architecture}.rope.dimension_sections": sections}

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """In GGUF, value head i has key head i modulo their number."""
        values = super().gguf_values(name, values)
        axis, first, dim = 0, 0, self.value_dim
        if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
            first = 2 * self.keys
        elif name.endswith("out_proj.weight"):
            axis = 1
        elif name.endswith(("in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias")):
            dim = 1
        elif not name.endswith("in_proj_z.weight"):
            return values
        kept, heads = np.split(values, [first], axis=axis)
        by_head = np.moveaxis(heads, axis, 0)
        groups = by_head.reshape(self.key_heads, -1, dim, *by_head.shape[1:])
        tiled = np.moveaxis(groups.swapaxes(0, 1).reshape(by_head.shape), 0, axis)
        return np.concatenate([kept, tiled], axis=axis)


MODELS = (
    TinyQwen35("tied", heads=4, kv_heads=2, head_dim=16, tied=True, key_heads=2, value_heads=4),
    TinyQwen35(
        "odd heads",
        heads=3,
        kv_heads=1,
        head_dim=48,
        tied=False,
        layers=5,
        period=2,
        key_heads=3,
        value_heads=6,
        key_dim=12,
        value_dim=12,
        taps=3,
    ),
)
