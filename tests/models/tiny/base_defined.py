"""The logits of tiny models that `transformers` does not have, in float64 NumPy.

The definition is independent of Heddle's blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base import BASE, EPS, TOKENS, TinyModel

if TYPE_CHECKING:
    from collections.abc import Callable

    Weights = dict[str, np.ndarray]


class Defined(TinyModel):
    """A tiny model whose logits are computed here: rotary attention, norms before each part."""

    @property
    def logits_file(self) -> Path:
        """No file has them."""
        return Path(f"{self.architecture}_is_defined_in_numpy")

    def expected_logits(self) -> np.ndarray:
        state = {name: values.astype(np.float64) for name, values in self.state().items()}
        x = state["model.embed_tokens.weight"][TOKENS]
        for i in range(self.layers):
            prefix = f"model.layers.{i}."
            layer = {
                name.removeprefix(prefix): values
                for name, values in state.items()
                if name.startswith(prefix)
            }
            x = self.layer_of(i, layer, x)
        return normed(x, state["model.norm.weight"]) @ self.output(state).T

    def layer_of(self, index: int, weights: Weights, x: np.ndarray) -> np.ndarray:
        """The hidden states after a layer."""
        h = normed(x, weights["input_layernorm.weight"])
        x = x + attention(weights, h, self.kv_heads, self.head_dim)
        return x + self.feed_forward(weights, normed(x, weights["post_attention_layernorm.weight"]))

    def feed_forward(self, weights: Weights, x: np.ndarray) -> np.ndarray:
        """The feed-forward part of normed x."""
        return gated(weights, "mlp.", x)

    def output(self, state: Weights) -> np.ndarray:
        """The output matrix."""
        return state["lm_head.weight"]


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + EPS) * weight


def gated(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    gate, up, down = (weights[f"{name}{part}_proj.weight"] for part in ("gate", "up", "down"))
    inner = x @ gate.T
    return (inner / (1 + np.exp(-inner)) * (x @ up.T)) @ down.T


def attention(weights: Weights, x: np.ndarray, kv_heads: int, head_dim: int) -> np.ndarray:
    """Each token attends to those up to itself. Rotation pairs the halves of a head."""

    def projected(part: str, place: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        heads = (x @ weights[f"self_attn.{part}_proj.weight"].T).reshape(len(x), -1, head_dim)
        return place(heads)

    q, k = projected("q", rotated), projected("k", rotated)
    v = projected("v", np.asarray)
    k, v = (np.repeat(one, q.shape[1] // kv_heads, axis=1) for one in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(head_dim)
    scores += np.triu(np.full((len(x), len(x)), -np.inf), 1)
    shares = softmax(scores)
    return np.einsum("hqk,khd->qhd", shares, v).reshape(len(x), -1) @ (
        weights["self_attn.o_proj.weight"].T
    )


def rotated(heads: np.ndarray) -> np.ndarray:
    half = heads.shape[-1] // 2
    angles = np.arange(len(heads))[:, None, None] * BASE ** (-np.arange(half) / half)
    first, second = heads[..., :half], heads[..., half:]
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)
