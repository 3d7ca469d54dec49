"""Measures what each matrix of a model reads, with the reference ops: `heddle imatrix`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.models.registry import build
from heddle.testing.reference_ops import ReferenceLoader, ReferenceOps, SequenceCache, SequenceChunk
from heddle.weights.gguf.imatrix import InputSums

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from heddle.testing.reference_ops import Array, Weight
    from heddle.weights.checkpoint import Checkpoint


class _NamingLoader(ReferenceLoader):
    """Remembers the names of matrices."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self.names: dict[int, str] = {}

    def linear(self, name: str, out_features: int, in_features: int) -> Weight:
        weight = super().linear(name, out_features, in_features)
        self.names[id(weight)] = f"{name}.weight"
        return weight


class _MeasuringOps(ReferenceOps):
    """Adds the squares of what each named matrix reads to `squares`."""

    def __init__(
        self,
        runs: Sequence[SequenceChunk],
        names: dict[int, str],
        squares: dict[str, NDArray[np.float64]],
    ) -> None:
        super().__init__(runs)
        self._names = names
        self._squares = squares

    def linear(self, x: Array, w: Weight) -> Array:
        name = self._names.get(id(w))
        if name is not None:
            added = np.einsum("tc,tc->c", x, x, dtype=np.float64)
            self._squares[name] = self._squares.get(name, 0.0) + added
        return super().linear(x, w)


def input_sums(
    checkpoint: Checkpoint,
    tokens: Sequence[int],
    chunk: int,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, InputSums]:
    """Sums of squares of what each matrix reads, by its canonical name.

    The text is computed in pieces of `chunk` tokens that do not see one another. `progress` is
    called with the tokens computed so far. Stacks of experts are left out.

    Raises:
        UnsupportedModelError, ModelFileError: the model cannot be computed.
    """
    model = build(checkpoint)
    loader = _NamingLoader(checkpoint)
    weights: Any = model.load(loader)
    squares: dict[str, NDArray[np.float64]] = {}
    for start in range(0, len(tokens), chunk):
        run = SequenceChunk(SequenceCache(), 0, tokens[start : start + chunk])
        ops = _MeasuringOps([run], loader.names, squares)
        model.logits(ops, weights, model.forward(ops, weights, ops.batch()))
        progress(min(start + chunk, len(tokens)))
    return {name: InputSums(found, len(tokens)) for name, found in squares.items()}
