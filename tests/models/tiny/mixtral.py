"""Tiny models of Mixtral."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TinyMixtral(TinyMixture):
    architecture = "mixtral"
    gguf_architecture = "llama"
    gguf_names = GGUF_NAMES
    router = "block_sparse_moe.gate"
    stacks = (
        "block_sparse_moe.experts.*.w1",
        "block_sparse_moe.experts.*.w3",
        "block_sparse_moe.experts.*.w2",
    )
    count_key = "num_local_experts"

    expert_width: int = 48

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """Query and key rows interleave the halves that Hugging Face rotates against each other."""
        if "q_proj" not in name and "k_proj" not in name:
            return values
        halves = values.reshape(-1, 2, self.head_dim // 2, self.width)
        return halves.swapaxes(1, 2).reshape(values.shape)


MODELS = (
    TinyMixtral("two of five", heads=4, kv_heads=2, head_dim=16, tied=False, experts=5, used=2),
)
