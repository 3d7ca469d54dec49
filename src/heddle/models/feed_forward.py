"""Dense feed-forward layers, with and without gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from heddle.models.ops import Loader, Ops

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class GatedMLPWeights(Generic[W]):
    gate: W
    up: W
    down: W


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """Feed-forward layer: down(activation(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202).

    `gate_scale` is a factor on gate(x), `scale` on the result.
    """

    width: int
    hidden: int
    activation: str
    gate_scale: float = 1.0
    scale: float = 1.0

    def load(self, loader: Loader[W], name: str) -> GatedMLPWeights[W]:
        """Claim the tensors under `name`."""
        return GatedMLPWeights(
            gate=loader.linear(f"{name}.gate", self.hidden, self.width),
            up=loader.linear(f"{name}.up", self.hidden, self.width),
            down=loader.linear(f"{name}.down", self.width, self.hidden),
        )

    def forward(self, ops: Ops[A, W], weights: GatedMLPWeights[W], x: A) -> A:
        """Map normed x (T, width) to (T, width)."""
        gate, up = ops.linear(x, weights.gate), ops.linear(x, weights.up)
        if self.gate_scale != 1.0:
            gate = ops.scale(gate, self.gate_scale)
        y = ops.linear(ops.gated(gate, up, self.activation), weights.down)
        return y if self.scale == 1.0 else ops.scale(y, self.scale)


@dataclass(frozen=True, slots=True)
class MLPWeights(Generic[W]):
    up: W
    down: W


@dataclass(frozen=True, slots=True)
class MLP:
    """Feed-forward layer without gates: down(activation(up(x)))."""

    width: int
    hidden: int
    activation: str

    def load(self, loader: Loader[W], name: str) -> MLPWeights[W]:
        """Claim the tensors under `name`."""
        return MLPWeights(
            up=loader.linear(f"{name}.up", self.hidden, self.width),
            down=loader.linear(f"{name}.down", self.width, self.hidden),
        )

    def forward(self, ops: Ops[A, W], weights: MLPWeights[W], x: A) -> A:
        """Map normed x (T, width) to (T, width)."""
        up = ops.activate(ops.linear(x, weights.up), self.activation)
        return ops.linear(up, weights.down)


_UNGATED = frozenset({"squared_relu"})


def has_gates(activation: str) -> bool:
    """Whether feed-forward layers and experts with this activation have gates."""
    return activation not in _UNGATED


def dense_mlp(width: int, hidden: int, activation: str) -> MLP | GatedMLP:
    """The feed-forward layer with this activation."""
    return (GatedMLP if has_gates(activation) else MLP)(width, hidden, activation)
