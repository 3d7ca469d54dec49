"""Measures what each matrix of a model reads, with the reference ops: `heddle imatrix`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.extensions.quantise.imatrix import InputSums
from heddle.extensions.reference.ops import (
    ExpertStack,
    ReferenceLoader,
    ReferenceOps,
    SequenceCache,
    SequenceChunk,
    Weight,
)
from heddle.models.build import build

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.extensions.reference.ops import Array
    from heddle.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class _Measured(Weight):
    """A matrix, or one of a stack, and the sums that its inputs are added to."""

    sums: InputSums | None = None
    index: int = 0

    def add(self, x: Array) -> None:
        """Add rows x (rows, columns) that the matrix reads."""
        if self.sums is not None:
            self.sums.squares[self.index] += np.einsum("tc,tc->c", x, x, dtype=np.float64)
            self.sums.counts[self.index] += len(x)


@dataclass(frozen=True, slots=True)
class _MeasuredStack(ExpertStack):
    """Matrices of experts, and the sums of each."""

    sums: InputSums | None = None

    def __getitem__(self, expert: int) -> _Measured:
        bias = None if self.bias is None else self.bias[expert]
        return _Measured(self.values[expert], bias, sums=self.sums, index=expert)


class _MeasuringLoader(ReferenceLoader):
    """Gives each matrix its sums. `sums` has them by the tensor's canonical name."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self.sums: dict[str, InputSums] = {}

    def linear(self, name: str, out_features: int, in_features: int) -> Weight:
        found = super().linear(name, out_features, in_features)
        sums = self._new_sums(name, 1, in_features)
        return _Measured(found.values, found.bias, name, sums)

    def experts(self, name: str, count: int, out_features: int, in_features: int) -> ExpertStack:
        found = super().experts(name, count, out_features, in_features)
        sums = self._new_sums(name, count, in_features)
        return _MeasuredStack(found.values, found.bias, sums=sums)

    def _new_sums(self, name: str, matrices: int, columns: int) -> InputSums:
        sums = InputSums(np.zeros((matrices, columns)), np.zeros(matrices, np.int64))
        return self.sums.setdefault(f"{name}.weight", sums)


class _MeasuringOps(ReferenceOps):
    """Adds what each matrix reads to its sums."""

    def linear(self, x: Array, w: Weight) -> Array:
        if isinstance(w, _Measured):
            w.add(x)
        return super().linear(x, w)


def input_sums(
    checkpoint: Checkpoint,
    tokens: Sequence[int],
    chunk: int,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, InputSums]:
    """Sums of squares of what each matrix reads, by its canonical name.

    The text is computed in pieces of `chunk` tokens that do not see one another. `progress` is
    called with the tokens computed so far. An expert reads only the tokens that chose it.

    Raises:
        UnsupportedModelError, ModelFileError: the model cannot be computed.
    """
    model = build(checkpoint)
    loader = _MeasuringLoader(checkpoint)
    weights: Any = model.load(loader)
    for start in range(0, len(tokens), chunk):
        run = SequenceChunk(SequenceCache(), 0, tokens[start : start + chunk])
        ops = _MeasuringOps([run])
        states = model.forward(ops, weights, ops.batch())
        weights.output.add(states)  # nobody needs the logits
        progress(min(start + chunk, len(tokens)))
    return loader.sums
