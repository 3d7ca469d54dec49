"""Tiny models of Ling 1: joined queries, keys and values; shared experts; columns of length 1.

`transformers` does not have it. The definition follows `models/modeling_bailing_moe.py` of
github.com/inclusionAI/Ling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from models.tiny.base_defined import Defined, gated, softmax
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    from models.tiny.base import Random
    from models.tiny.base_defined import Weights

_PARTS = ("gate", "up", "down")


@dataclass(frozen=True)
class TinyLing1(TinyMixture, Defined):
    architecture = "bailing_moe"
    gguf_architecture = "bailingmoe"
    interleaves = True
    gguf_names = GGUF_NAMES | {
        f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in _PARTS
    }
    folder_parts: ClassVar[dict[str, str]] = {
        "model.embed_tokens": "model.word_embeddings",
        "self_attn.qkv": "attention.query_key_value",
        "self_attn.o_proj": "attention.dense",
    }

    shared: int = 2
    normalised: bool = True
    unit_columns: bool = False
    """Whether folders store the output matrix with columns of any length."""

    def config(self) -> dict[str, object]:
        return super().config() | {
            "num_shared_experts": self.shared,
            "norm_topk_prob": self.normalised,
            "first_k_dense_replace": 0,
            "norm_head": self.unit_columns,
            "use_bias": False,
        }

    def metadata(self) -> dict[str, object]:
        keys = {
            "expert_shared_count": self.shared,
            "expert_weights_norm": self.normalised,
            "expert_weights_scale": 1.0,
            "leading_dense_block_count": 0,
        }
        return super().metadata() | {f"bailingmoe.{key}": value for key, value in keys.items()}

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        width, hidden = self.width, self.expert_width * self.shared
        shapes = ((hidden, width), (hidden, width), (width, hidden))
        return super().mixture(random) | {
            f"mlp.shared_experts.{part}_proj.weight": random.matrix(*shape)
            for part, shape in zip(_PARTS, shapes, strict=True)
        }

    def stored(self) -> dict[str, np.ndarray]:
        state = self.state()
        for i in range(self.layers):
            prefix = f"model.layers.{i}.self_attn."
            parts = [state.pop(f"{prefix}{part}_proj.weight") for part in "qkv"]
            state[f"{prefix}qkv.weight"] = np.concatenate(parts)
        return state

    def folder_name(self, name: str) -> str:
        for ours, theirs in self.folder_parts.items():
            name = name.replace(f"{ours}.", f"{theirs}.")
        return name

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        if self.unit_columns and name == "lm_head.weight":
            return self.output({name: values})
        return super().gguf_values(name, values)

    def feed_forward(self, weights: Weights, x: np.ndarray) -> np.ndarray:
        scores = softmax(x @ weights["mlp.gate.weight"].T)
        y = gated(weights, "mlp.shared_experts.", x)
        for token, row in enumerate(scores):
            chosen = np.argsort(-row)[: self.used]
            shares = row[chosen] / (row[chosen].sum() if self.normalised else 1.0)
            for expert, share in zip(chosen, shares, strict=True):
                y[token] += share * gated(weights, f"mlp.experts.{expert}.", x[token])
        return y

    def output(self, state: Weights) -> np.ndarray:
        matrix = state["lm_head.weight"]
        if not self.unit_columns:
            return matrix
        return matrix / (np.sqrt((matrix**2).sum(axis=0)) + 1e-7)


MODELS = (
    TinyLing1("plain", heads=4, kv_heads=2, head_dim=16, tied=False, normalised=False),
    TinyLing1("unit columns", heads=3, kv_heads=1, head_dim=48, tied=False, unit_columns=True),
)
