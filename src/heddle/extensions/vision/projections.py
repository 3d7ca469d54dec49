"""How the states of patches become rows of the text model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from heddle.extensions.vision.tower import norm_of, turned
from heddle.models.blocks import apply_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.models.blocks import LayerNormWeights
    from heddle.models.ops import Loader, Ops

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class Matrix:
    """The states of a square of patches, side by side, times a matrix (Idefics 3)."""

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
class Mean:
    """The mean of the states of a square of patches, a norm, and a matrix (Gemma 3)."""

    width: int
    fold: int
    row_width: int
    norm_eps: float

    def load(self, loader: Loader[W]) -> tuple[Any, W]:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        norm = norm_of(loader, "projection.norm", self.width)
        return norm, loader.linear("projection.matrix", self.row_width, self.width)

    def forward(self, ops: Ops[A, W], weights: tuple[Any, W], states: Sequence[A], rows: A) -> A:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        norm, matrix = weights
        x = ops.scale(_sum(ops, states[-1], rows, self.width, self.fold), 1 / self.fold)
        return ops.linear(apply_norm(ops, norm, x, self.norm_eps), matrix)


@dataclass(frozen=True, slots=True)
class Standardised:
    """The mean of a square of patches, standardised if the files say so, normed (Gemma 4)."""

    width: int
    fold: int
    row_width: int
    norm_eps: float

    def load(self, loader: Loader[W]) -> tuple[W | None, W, W]:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        name, width = "projection.standard", self.width
        standard = loader.linear(name, width, width) if loader.has(name) else None
        matrix = loader.linear("projection.matrix", self.row_width, width)
        return standard, loader.filled(width), matrix

    def forward(
        self, ops: Ops[A, W], weights: tuple[W | None, W, W], states: Sequence[A], rows: A
    ) -> A:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        standard, ones, matrix = weights
        x = _sum(ops, states[-1], rows, self.width, self.fold)
        x = ops.scale(x, math.sqrt(self.width) / self.fold)
        if standard is not None:
            x = ops.linear(x, standard)
        return ops.linear(ops.norm(x, ones, self.norm_eps), matrix)


@dataclass(frozen=True, slots=True)
class TwoLayersWeights(Generic[W]):
    """Weights of `TwoLayers`; the norm and the matrix before are None where there is none."""

    norm: W | LayerNormWeights[W] | None
    merge: W | None
    up: W
    down: W


@dataclass(frozen=True, slots=True)
class TwoLayers:
    """A feed-forward network over the states of a square of patches, side by side.

    Attributes:
        width: elements of what is known of a patch: its states, side by side.
        fold: patches of a square.
        inner: elements of the inner state.
        row_width: columns of a row.
        activation: between the two matrices.
        norms: whether there is a norm before the network: "" none, "patch" of each patch, "square"
            of the patches of a square together.
        norm_eps: its epsilon.
        merges: whether a matrix makes one state of a square's before the network (Mistral 3).
    """

    width: int
    fold: int
    inner: int
    row_width: int
    activation: str = "gelu_erf"
    norms: str = ""
    norm_eps: float = 1e-6
    merges: bool = False

    def load(self, loader: Loader[W]) -> TwoLayersWeights[W]:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        return self.load_from(loader, "projection")

    def load_from(self, loader: Loader[W], name: str) -> TwoLayersWeights[W]:
        """Claim the tensors under `name`."""
        square = self.fold * self.width
        normed = {"": 0, "patch": self.width, "square": square}[self.norms]
        before = self.width if self.merges else square
        return TwoLayersWeights(
            norm_of(loader, f"{name}.norm", normed) if normed else None,
            loader.linear(f"{name}.merge", self.width, square) if self.merges else None,
            loader.linear(f"{name}.up", self.inner, before),
            loader.linear(f"{name}.down", self.row_width, self.inner),
        )

    def forward(
        self, ops: Ops[A, W], weights: TwoLayersWeights[W], states: Sequence[A], rows: A
    ) -> A:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        x = self.normed(ops, weights, joined(ops, states))
        return self.through(ops, weights, ops.take_rows(x, rows, self.fold))

    def normed(self, ops: Ops[A, W], weights: TwoLayersWeights[W], x: A) -> A:
        """What is known of each patch, with the norm of each patch."""
        if weights.norm is None or self.norms != "patch":
            return x
        return apply_norm(ops, weights.norm, x, self.norm_eps)

    def through(self, ops: Ops[A, W], weights: TwoLayersWeights[W], x: A) -> A:
        """The rows, from squares of patches (R, fold * width)."""
        if weights.norm is not None and self.norms == "square":
            x = apply_norm(ops, weights.norm, x, self.norm_eps)
        if weights.merge is not None:
            x = ops.linear(x, weights.merge)
        up = turned(ops, ops.linear(x, weights.up), self.inner, self.activation)
        return ops.linear(up, weights.down)


@dataclass(frozen=True, slots=True)
class Levels:
    """Rows for the first layers of the text model beside its input (Qwen3-VL: DeepStack).

    A row has the columns for the input, then those for each of the layers.

    Attributes:
        last: makes the columns for the input from the last state.
        others: make the columns for the layers, each from one of the states before.
    """

    last: TwoLayers
    others: tuple[TwoLayers, ...]

    @property
    def fold(self) -> int:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        return self.last.fold

    def load(self, loader: Loader[W]) -> list[TwoLayersWeights[W]]:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        deeper = (one.load_from(loader, f"deepstack.{i}") for i, one in enumerate(self.others))
        return [self.last.load(loader), *deeper]

    def forward(
        self, ops: Ops[A, W], weights: list[TwoLayersWeights[W]], states: Sequence[A], rows: A
    ) -> A:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        width, fold = self.last.width, self.fold
        normed = self.last.normed(ops, weights[0], states[-1])
        x = ops.take_rows(joined(ops, [normed, *states[:-1]]), rows, fold)
        parts = enumerate(zip((self.last, *self.others), weights, strict=True))
        made = [
            part.through(ops, own, ops.take_columns(x, i * width, width, fold))
            for i, (part, own) in parts
        ]
        return joined(ops, made)


@dataclass(frozen=True, slots=True)
class Adapter:
    """Two matrices with activations after them, then a third one (Llama 4).

    Attributes:
        width: elements of a state.
        fold: patches of a square.
        inner: rows of the first and of the second matrix.
        row_width: columns of a row.
    """

    width: int
    fold: int
    inner: tuple[int, int]
    row_width: int

    def load(self, loader: Loader[W]) -> tuple[W, W, W]:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        first, second = self.inner
        return (
            loader.linear("adapter.up", first, self.fold * self.width),
            loader.linear("adapter.down", second, first),
            loader.linear("projection.matrix", self.row_width, second),
        )

    def forward(self, ops: Ops[A, W], weights: tuple[W, W, W], states: Sequence[A], rows: A) -> A:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        up, down, matrix = weights
        x = ops.take_rows(states[-1], rows, self.fold)
        for one in (up, down):
            x = ops.activate(ops.linear(x, one), "gelu_erf")
        return ops.linear(x, matrix)


@dataclass(frozen=True, slots=True)
class GatedMerger:
    """A matrix that makes one state of a square's, another, a norm, and a gated network (GLM-4V).

    Attributes:
        width: elements of a state.
        fold: patches of a square.
        inner: elements of the inner state of the network.
        row_width: columns of a row.
        activation: of its gates.
    """

    width: int
    fold: int
    inner: int
    row_width: int
    activation: str

    def load(self, loader: Loader[W]) -> tuple[Any, dict[str, W]]:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        rows, inner = self.row_width, self.inner
        shapes = {
            "merge": (rows, self.fold * self.width),
            "matrix": (rows, rows),
            "gate": (inner, rows),
            "up": (inner, rows),
            "down": (rows, inner),
        }
        norm = norm_of(loader, "projection.middle_norm", rows)
        return norm, {
            name: loader.linear(f"projection.{name}", *shape) for name, shape in shapes.items()
        }

    def forward(
        self, ops: Ops[A, W], weights: tuple[Any, dict[str, W]], states: Sequence[A], rows: A
    ) -> A:
        """See :class:`heddle.extensions.vision.tower.Projection`."""
        norm, own = weights
        x = ops.linear(ops.take_rows(states[-1], rows, self.fold), own["merge"])
        x = apply_norm(ops, norm, ops.linear(x, own["matrix"]), 1e-5)  # as torch has it
        x = ops.activate(x, "gelu_erf")
        x = ops.gated(ops.linear(x, own["gate"]), ops.linear(x, own["up"]), self.activation)
        return ops.linear(x, own["down"])


def _sum(ops: Ops[A, Any], x: A, rows: A, width: int, fold: int) -> A:
    """The sum of the states of each square of patches."""
    x = ops.take_rows(x, rows, fold)
    return reduce(ops.add, (ops.take_columns(x, i * width, width) for i in range(fold)))


def joined(ops: Ops[A, Any], parts: Sequence[A]) -> A:
    """The columns of all parts, one after the other."""
    return reduce(ops.join, parts)
