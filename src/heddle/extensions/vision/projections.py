"""How the states of patches become rows of the text model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from heddle.extensions.vision.tower import norm_of, turned
from heddle.models.blocks import apply_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.models.ops import Loader, Ops

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class Matrix:
    """The states of a square of patches, side by side, times a matrix (Idefics 3, Llama 4)."""

    width: int
    fold: int
    row_width: int

    def load(self, loader: Loader[W]) -> W:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        return loader.linear("projection.matrix", self.row_width, self.fold * self.width)

    def forward(self, ops: Ops[A, W], weights: W, states: Sequence[A], rows: A) -> A:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        return ops.linear(ops.take_rows(states[-1], rows, self.fold), weights)


@dataclass(frozen=True, slots=True)
class TwoLayers:
    """A feed-forward network over the states of a square of patches, side by side.

    Attributes:
        width: elements of a state.
        fold: patches of a square.
        inner: elements of the inner state.
        row_width: columns of a row.
        activation: between the two matrices.
        norms: whether there is a norm before the network: "" none, "patch" of each state, "square"
            of the states of a square together.
        norm_eps: its epsilon.
    """

    width: int
    fold: int
    inner: int
    row_width: int
    activation: str = "gelu_erf"
    norms: str = ""
    norm_eps: float = 1e-6

    def load(self, loader: Loader[W]) -> tuple[Any, W, W]:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        return self.load_from(loader, "projection")

    def load_from(self, loader: Loader[W], name: str) -> tuple[Any, W, W]:
        """Claim the tensors under `name`."""
        square = self.fold * self.width
        normed = {"": 0, "patch": self.width, "square": square}[self.norms]
        return (
            norm_of(loader, f"{name}.norm", normed) if normed else None,
            loader.linear(f"{name}.up", self.inner, square),
            loader.linear(f"{name}.down", self.row_width, self.inner),
        )

    def forward(self, ops: Ops[A, W], weights: tuple[Any, W, W], states: Sequence[A], rows: A) -> A:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        norm, up, down = weights
        x = states[-1]
        if self.norms == "patch":
            x = apply_norm(ops, norm, x, self.norm_eps)
        x = ops.take_rows(x, rows, self.fold)
        if self.norms == "square":
            x = apply_norm(ops, norm, x, self.norm_eps)
        return ops.linear(turned(ops, ops.linear(x, up), self.inner, self.activation), down)
