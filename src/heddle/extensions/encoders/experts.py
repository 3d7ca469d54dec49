"""Experts without gates, as in nomic-embed-text-v2 (Nussbaum & Duderstadt 2025, arXiv:2502.07972).

A token uses the experts with the highest weights, which are not divided by their sum. A bias joins
the sum of their results, if the files have it: those of llama.cpp leave it out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from heddle.models.ops import ExpertSpec, ExpertWeights
from heddle.weights.huggingface.made import MadeTensor
from heddle.weights.huggingface.safetensors import DTYPE_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from heddle.models.ops import Loader, Ops
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import Stored

A = TypeVar("A")
W = TypeVar("W")

_STACK = re.compile(r"(?:.*\.)?encoder\.layers\.(\d{1,9})\.mlp\.experts\.mlp\.(w1|w2)")


@dataclass(frozen=True, slots=True)
class PlainExpertWeights(Generic[W]):
    """`bias` and the zeros beside it are None without a bias."""

    router: W
    experts: ExpertWeights[W]
    bias: W | None
    zeros: W


@dataclass(frozen=True, slots=True)
class PlainExperts:
    """Feed-forward layer of experts, each down(activation(up(x)))."""

    width: int
    hidden: int
    spec: ExpertSpec

    def load(self, loader: Loader[W], name: str) -> PlainExpertWeights[W]:
        """Claim the tensors under `name`."""
        count, stacks = self.spec.count, f"{name}.experts"
        has_bias = loader.has(f"{name}.result_bias")
        return PlainExpertWeights(
            router=loader.linear(f"{name}.router", count, self.width),
            experts=ExpertWeights(
                gate=None,
                up=loader.experts(f"{stacks}.up", count, self.hidden, self.width),
                down=loader.experts(f"{stacks}.down", count, self.width, self.hidden),
            ),
            bias=loader.vector(f"{name}.result_bias", self.width) if has_bias else None,
            zeros=loader.filled(self.width, 0.0),
        )

    def forward(self, ops: Ops[A, W], weights: PlainExpertWeights[W], x: A) -> A:
        """Map x (T, width) to (T, width)."""
        y = ops.experts(x, ops.linear(x, weights.router), weights.experts, self.spec)
        if weights.bias is None:
            return y
        # A norm with weights of 0 is its bias, in each row.
        return ops.add(y, ops.layer_norm(x, weights.zeros, weights.bias, 1.0))


def stacks(stored: Mapping[str, Stored], _: Config) -> Mapping[str, MadeTensor]:
    """The matrices of experts, which a folder has below one another, with down transposed."""
    found = {}
    for label in stored:
        match = _STACK.fullmatch(label)
        router = label.rpartition("experts.")[0] + "router.layer.weight"
        if match is None or router not in stored:
            continue
        part = "up" if match[2] == "w1" else "down"
        made = _stack(label, stored[label], stored[router].shape[0], transposed=part == "down")
        found[f"layers.{match[1]}.mlp.experts.{part}.weight"] = made
    return found


def _stack(label: str, stored: Stored, experts: int, *, transposed: bool) -> MadeTensor:
    rows, columns = stored.shape
    shape = (experts, rows // experts, columns)
    bits = np.dtype(f"u{DTYPE_BITS[stored.dtype] // 8}")

    def make(raw: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        values = raw[0].view(bits).reshape(shape)
        ordered = np.ascontiguousarray(values.swapaxes(1, 2) if transposed else values)
        return ordered.view(np.uint8).ravel()

    made = (experts, columns, rows // experts) if transposed else shape
    return MadeTensor(stored.dtype, made, (label,), make)
