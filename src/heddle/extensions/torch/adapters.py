"""Adapters (LoRA) on a torch device: their matrices, and the rows of a step that have them.

After each product of a matrix, its changes join the rows whose sequences have adapters. The rows of
one adapter are gathered into tiles of their own, so a row has the bits that it has alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from heddle.errors import OutOfMemoryError, UnsupportedModelError
from heddle.executors.adapting import check_adaptable
from heddle.executors.graph.forward import plain_products
from heddle.extensions.torch.allocation import is_out_of_memory, release
from heddle.extensions.torch.blocks import FLOATS
from heddle.extensions.torch.staging import sent
from heddle.extensions.torch.tiles import TILE, check_columns, padded
from heddle.extensions.torch.weights import Matrix
from heddle.weights import low_rank
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from heddle.executors.graph.forward import Forward
    from heddle.step import Chunk


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one matrix (n, k): its product with x gains `scale` * b (a x).

    Attributes:
        a: (rank, k). The rank is filled up to whole tiles with zeros, so that few shapes of
            products occur.
        b: (n, rank).
        scale: the factor that the adapter's files give.
    """

    a: Matrix
    b: Matrix
    scale: float


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class TorchAdapter:
    """Changes of matrices on a device; see :class:`heddle.executors.adapting.Adapter`.

    Attributes:
        forward: the graph whose matrices it changes.
        changes: by the names of the matrices.
    """

    forward: Forward
    changes: Mapping[str, Change]

    @property
    def bytes(self) -> int:
        """See :class:`heddle.executors.adapting.Adapter`."""
        return sum(one.a.nbytes + one.b.nbytes for one in self.changes.values())


def make_adapter(
    forward: Forward,
    changes: Mapping[str, low_rank.Change],
    device: torch.device,
    *,
    checks_matmuls: bool,
) -> TorchAdapter:
    """See :meth:`heddle.executors.adapting.AdaptingExecutor.make_adapter`.

    With `checks_matmuls`, torch's products with these shapes are checked, as at the load of a model
    (`tiles.py`).

    Raises:
        ConfigError: the device favours a column.
        UnsupportedModelError: a change is not of low rank alone.
        ValueError: a change has another shape than its matrix.
    """
    weights = plain_products(forward)
    check_adaptable(changes, weights)
    made: dict[str, Change] = {}
    try:
        for name, change in changes.items():
            weight = weights[name]
            if not isinstance(change, low_rank.LowRank) or change.gains is not None:
                raise UnsupportedModelError(
                    f"this device has no lengths of rows (DoRA) and no whole matrices of adapters;"
                    f" the adapter has such a change of {name}. Load the model with --device cpu",
                    param=name,
                )
            shapes = (change.rank, weight.in_features), (weight.out_features, change.rank)
            if (change.a.shape, change.b.shape) != shapes:
                raise ValueError(f"a change of {name} does not fit the matrix")
            lacking = padded(change.rank) - change.rank
            a = np.pad(change.a, ((0, lacking), (0, 0)))
            b = np.pad(change.b, ((0, 0), (0, lacking)))
            parts = [_matrix(values, change.type, device) for values in (a, b)]
            made[name] = Change(parts[0], parts[1], change.scale)
        if checks_matmuls:
            _check(made)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        made.clear()
        release(device)
        raise OutOfMemoryError(f"device {device} has no memory left for the adapter") from error
    return TorchAdapter(forward, made)


def _matrix(values: NDArray[np.float32], kind: TensorType, device: torch.device) -> Matrix:
    """A matrix in the type of a change: that of its files, or BF16 where it may be rounded."""
    kind = TensorType.BF16 if kind is TensorType.I8 else kind
    stored = torch.from_numpy(np.ascontiguousarray(values)).to(FLOATS[kind]).to(device)
    return Matrix((stored,), kind, values.shape[1])


def _check(changes: Mapping[str, Change]) -> None:
    """Check each shape of a product once; see `TorchLoader`."""
    checked: set[tuple[int, ...]] = set()
    for matrix in (one for change in changes.values() for one in (change.a, change.b)):
        for panel in matrix.panels():
            if panel.shape not in checked:
                checked.add(panel.shape)
                check_columns(panel.nan_to_num(0.0, 0.0, 0.0), TILE)


class AdaptedRows(NamedTuple):
    """Rows of a step with an adapter.

    Attributes:
        adapter: the adapter.
        factor: the request's factor on its changes.
        rows: the numbers of the rows (n,), and then those of others up to whole tiles.
        used: n.
    """

    adapter: TorchAdapter
    factor: float
    rows: torch.Tensor
    used: int


class Adapted:
    """The adapters of a step's rows."""

    def __init__(self, runs: Sequence[tuple[slice, Chunk]], device: torch.device) -> None:
        """`runs` are the rows of each chunk, and the chunk."""
        self._device = device
        # By the place of the adapter among those of its sequence, which adds them in this order.
        found: dict[tuple[int, TorchAdapter, float], list[int]] = {}
        for rows, chunk in runs:
            for place, use in enumerate(chunk.adapters):
                own = found.setdefault((place, use.adapter, use.factor), [])
                own += range(rows.start, rows.stop)
        order = sorted(found, key=lambda key: key[0])
        self._found = [(adapter, factor, found[place, adapter, factor])
                       for place, adapter, factor in order]  # fmt: skip
        self.rows = [_rows(*one, device) for one in self._found]

    def read(self, rows: Sequence[int]) -> list[AdaptedRows]:
        """The same for arrays that have only these rows of the step."""
        places = {row: place for place, row in enumerate(rows)}
        read = [(adapter, factor, [places[row] for row in own if row in places])
                for adapter, factor, own in self._found]  # fmt: skip
        return [_rows(*one, self._device) for one in read if one[2]]


def _rows(
    adapter: TorchAdapter, factor: float, rows: Sequence[int], device: torch.device
) -> AdaptedRows:
    numbers = np.zeros(padded(len(rows)), np.int64)
    numbers[: len(rows)] = rows
    return AdaptedRows(adapter, factor, sent(numbers, device), len(rows))


def with_changes(
    x: torch.Tensor,
    y: torch.Tensor,
    name: str,
    adapted: Sequence[AdaptedRows],
    multiply: Callable[[torch.Tensor, Matrix], torch.Tensor],
) -> torch.Tensor:
    """The product y of the matrix `name` with x, with the changes of its rows. Writes to y."""
    for adapter, factor, rows, used in adapted:
        change = adapter.changes.get(name)
        if change is not None:
            low = multiply(x[rows], change.a) * (factor * change.scale)
            own = rows[:used]
            y[own] = y[own] + multiply(low, change.b)[:used]
    return y
