"""Claims: the tensors that a model asks for, by name and shape, before anything is loaded.

`Claims` is a `heddle.models.ops.Loader`. Its handles stand in a recorded graph until the ranks of
the model know which part of each tensor they need. Then `Handle.load` loads the tensor, or the part
of it that a :class:`Cut` names.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from heddle.weights.checkpoint import claim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.mix import Mix

    Indices: TypeAlias = NDArray[np.intp]
    """Sorted indices of columns or rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The part of a tensor that a rank needs. None: all of an axis.

    Attributes:
        rows: of a matrix, a table or a vector; of a stack, of each of its matrices.
        columns: of a matrix, in whole blocks of its type; of a stack, of each of its matrices.
        stack: the matrices of a stack.
        bias: whether the bias is loaded too.
    """

    rows: Indices | None = None
    columns: Indices | None = None
    stack: range | None = None
    bias: bool = True


WHOLE = Cut()


class PartLoader(Protocol):
    """Loads tensors, or parts of them. `shape` is that of the whole tensor.

    Raises as `heddle.models.ops.Loader`.
    """

    def linear(self, name: str, shape: tuple[int, int], cut: Cut = WHOLE) -> Any:
        """A matrix, with its bias if the checkpoint has one."""
        ...

    def experts(self, name: str, shape: tuple[int, int, int], cut: Cut = WHOLE) -> Any:
        """Stacked matrices, with their biases if the checkpoint has them."""
        ...

    def embedding(self, name: str, shape: tuple[int, int], cut: Cut = WHOLE) -> Any:
        """A lookup table."""
        ...

    def vector(self, name: str, width: int, cut: Cut = WHOLE) -> Any:
        """A float vector."""
        ...

    def filters(self, name: str, shape: tuple[int, int], channels: range, cut: Cut = WHOLE) -> Any:
        """Filters of some channels. The rows of the cut count from the first of them."""
        ...

    def filled(self, width: int, value: float, cut: Cut = WHOLE) -> Any:
        """A vector of one value."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A claimed tensor.

    Attributes:
        name: canonical name; empty for a vector of one value.
        shape: of the tensor.
        block: elements of a block of the type that it gets: a cut of columns has whole blocks.
        load: loads the tensor, or a part of it.
    """

    name: str
    shape: tuple[int, ...]
    block: int
    load: Callable[[PartLoader, Cut], Any]

    @property
    def count(self) -> int:
        """Number of matrices of a stack."""
        return self.shape[0]

    @property
    def out_features(self) -> int:
        """Rows of a matrix, or of each matrix of a stack."""
        return self.shape[-2]

    @property
    def in_features(self) -> int:
        """Columns of a matrix."""
        return self.shape[-1]

    @property
    def width(self) -> int:
        """Columns of a table."""
        return self.shape[-1]


class Claims:
    """Claims the tensors of a checkpoint; see `heddle.models.ops.Loader`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        mix: Mix,
        constants: Callable[[str, int], tuple[float, ...]],
    ) -> None:
        """`mix` says which type each matrix gets. `constants` reads the values of specs."""
        self._checkpoint = checkpoint
        self._mix = mix
        self.constants = constants

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self._checkpoint.tensors

    def linear(self, name: str, out_features: int, in_features: int) -> Claim:
        shape = out_features, in_features
        return self._claim(name, shape, lambda loader, cut: loader.linear(name, shape, cut))

    def experts(self, name: str, count: int, out_features: int, in_features: int) -> Claim:
        shape = count, out_features, in_features
        return self._claim(name, shape, lambda loader, cut: loader.experts(name, shape, cut))

    def embedding(self, name: str, rows: int, width: int) -> Claim:
        shape = rows, width
        return self._claim(name, shape, lambda loader, cut: loader.embedding(name, shape, cut))

    def vector(self, name: str, width: int) -> Claim:
        return self._claim(name, (width,), lambda loader, cut: loader.vector(name, width, cut))

    def filters(self, name: str, parts: Sequence[int], taps: int) -> tuple[Claim, ...]:
        shape = sum(parts), taps
        claim(self._checkpoint, f"{name}.weight", shape)

        def part(end: int, count: int) -> Claim:
            channels = range(end - count, end)
            return Claim(
                name,
                (count, taps),
                1,
                lambda loader, cut: loader.filters(name, shape, channels, cut),
            )

        return tuple(map(part, accumulate(parts), parts))

    def filled(self, width: int, value: float = 1.0) -> Claim:
        return Claim("", (width,), 1, lambda loader, cut: loader.filled(width, value, cut))

    def _claim(
        self, name: str, shape: tuple[int, ...], load: Callable[[PartLoader, Cut], Any]
    ) -> Claim:
        tensor = claim(self._checkpoint, f"{name}.weight", shape)
        kind = self._mix.type_of(tensor)
        return Claim(name, shape, kind.block_elements, load)
