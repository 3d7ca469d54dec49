"""RWKV-7 in NumPy and float64, one token after the other.

Written from the formulas of the paper (Peng et al. 2025, arXiv:2503.14456, section 4) and from
BlinkDL/RWKV-LM, `RWKV-v7/rwkv_v7_demo.py`, for weights under the names of flash-linear-attention.
No code of Heddle's is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class Rwkv7:
    """A model whose heads have `size` elements. It remembers the tokens that it has read."""

    def __init__(self, state: Mapping[str, NDArray[np.float32]], layers: int, size: int) -> None:
        self.weights = {name: values.astype(np.float64) for name, values in state.items()}
        self.layers, self.size = layers, size
        width = self.weights["model.embeddings.weight"].shape[1]
        self.before = np.zeros((layers, 2, width))
        self.matrices = np.zeros((layers, width // size, size, size))  # values, keys
        self.first_value = np.zeros(width)

    def logits(self, tokens: Sequence[int]) -> Floats:
        return np.array([self.read(token) for token in tokens])

    def read(self, token: int) -> Floats:
        """The logits after one more token."""
        x = self.weights["model.embeddings.weight"][token]
        x = self.norm(x, "model.layers.0.pre_norm")
        for layer in range(self.layers):
            name = f"model.layers.{layer}"
            x = x + self.time_mix(self.norm(x, f"{name}.attn_norm"), layer, f"{name}.attn")
            x = x + self.channel_mix(self.norm(x, f"{name}.ffn_norm"), layer, f"{name}.ffn")
        return self.weights["lm_head.weight"] @ self.norm(x, "model.norm")

    def norm(self, x: Floats, name: str) -> Floats:
        y = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return y * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def time_mix(self, x: Floats, layer: int, name: str) -> Floats:
        own = self.weights
        change = self.before[layer, 0] - x
        self.before[layer, 0] = x
        r, w, k, v, a, g = (x + change * own[f"{name}.x_{one}"].ravel() for one in "rwkvag")
        r, k, value = (
            own[f"{name}.{one}_proj.weight"] @ mix
            for one, mix in zip("rkv", (r, k, v), strict=True)
        )
        if layer == 0:
            self.first_value = value
        else:
            share = sigmoid(self.through(v, f"{name}.v_lora"))
            value = value + (self.first_value - value) * share
        w = np.exp(-np.exp(-0.5) * sigmoid(self.through(w, f"{name}.w_lora", np.tanh)))
        a = sigmoid(self.through(a, f"{name}.a_lora"))
        g = self.through(g, f"{name}.g_lora", sigmoid)
        removed = k * own[f"{name}.k_k"]
        k = k * (1 + (a - 1) * own[f"{name}.k_a"])
        out = []
        for head in range(len(x) // self.size):
            of = slice(head * self.size, (head + 1) * self.size)
            unit = removed[of] / max(np.linalg.norm(removed[of]), 1e-12)
            transition = np.diag(w[of]) - np.outer(unit, a[of] * unit)
            matrix = self.matrices[layer, head] @ transition + np.outer(value[of], k[of])
            self.matrices[layer, head] = matrix
            y = matrix @ r[of]
            y = (y - y.mean()) / np.sqrt(y.var() + self.size * 1e-5)
            y = y * own[f"{name}.g_norm.weight"][of] + own[f"{name}.g_norm.bias"][of]
            out.append(y + (r[of] * k[of] * own[f"{name}.r_k"][head]).sum() * value[of])
        return own[f"{name}.o_proj.weight"] @ (np.concatenate(out) * g)

    def through(self, x: Floats, name: str, activation=lambda y: y) -> Floats:  # type: ignore[no-untyped-def]
        y = self.weights[f"{name}.lora.2.weight"] @ activation(
            self.weights[f"{name}.lora.0.weight"] @ x
        )
        return y + self.weights.get(f"{name}.lora.2.bias", 0.0)

    def channel_mix(self, x: Floats, layer: int, name: str) -> Floats:
        mixed = x + (self.before[layer, 1] - x) * self.weights[f"{name}.x_k"]
        self.before[layer, 1] = x
        hidden = np.maximum(self.weights[f"{name}.key.weight"] @ mixed, 0) ** 2
        return self.weights[f"{name}.value.weight"] @ hidden


def sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))
