"""The common part of tiny models with joined matrices: GPT-2, GPT-NeoX, BLOOM, Falcon.

GGUF has queries, keys and values of all heads one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from models.tiny.base_layer_norm import QKV, TinyLayerNorm, add_biases

if TYPE_CHECKING:
    from collections.abc import Callable

    from gguf_writer import Tensor
    from models.tiny.base import Random

JOINED = "self_attn.qkv"


@dataclass(frozen=True)
class TinyJoined(TinyLayerNorm):
    gguf_names = TinyLayerNorm.gguf_names | {JOINED: "attn_qkv"}
    biased: ClassVar[bool] = True
    folder_layers: ClassVar[str] = "transformer.h."
    folder_parts: ClassVar[dict[str, str]]
    """Names of parts in folders; those outside of layers in full."""

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        weights = super().layer(random)
        del weights["mlp.gate_proj.weight"]
        if self.biased:
            parts = ("self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
            add_biases(weights, random, *QKV, *parts)
        return weights

    def join_heads(self, parts: list[np.ndarray]) -> np.ndarray:
        """Queries, keys and values as a folder has them: a group of heads after another."""
        return grouped_heads(parts, self.kv_heads, self.head_dim)

    def stored(self) -> dict[str, np.ndarray]:
        return self._joined(self.state(), self.join_heads)

    def tensors(self) -> list[Tensor]:
        return self.gguf_tensors(self._joined(self.state(), np.concatenate))

    def _joined(
        self, state: dict[str, np.ndarray], join: Callable[[list[np.ndarray]], np.ndarray]
    ) -> dict[str, np.ndarray]:
        for i in range(self.layers):
            prefix = f"model.layers.{i}."
            for kind in ("weight", "bias") if self.biased else ("weight",):
                parts = [state.pop(f"{prefix}{part}.{kind}") for part in QKV]
                state[f"{prefix}{JOINED}.{kind}"] = join(parts)
        return state

    def folder_name(self, name: str) -> str:
        part, _, kind = name.rpartition(".")
        prefix = ""
        if part.startswith("model.layers."):
            _, _, index, part = part.split(".", 3)
            prefix = f"{self.folder_layers}{index}."
        return f"{prefix}{self.folder_parts[part]}.{kind}"


def grouped_heads(parts: list[np.ndarray], groups: int, head_dim: int) -> np.ndarray:
    """The rows of queries, keys and values, those of a group of heads after another's."""
    split = [part.reshape(groups, -1, head_dim, *part.shape[1:]) for part in parts]
    return np.concatenate(split, axis=1).reshape(-1, *parts[0].shape[1:])
