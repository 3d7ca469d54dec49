"""Packs adapters for the CPU."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from heddle import _native
from heddle.errors import OutOfMemoryError
from heddle.executors.adapting import check_adaptable
from heddle.executors.cpu.weights import TableWeight
from heddle.executors.graph.forward import adaptable
from heddle.weights.low_rank import Whole
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from heddle.executors.cpu.weights import LinearWeight
    from heddle.executors.graph.forward import Forward
    from heddle.weights.low_rank import Change

_Floats: TypeAlias = "npt.NDArray[np.floating[Any]]"
_TYPES = {"f": TensorType.F32, "e": TensorType.F16, "H": TensorType.BF16, "b": TensorType.I8}
_NO_BIAS = np.zeros(0, np.float32)
_LARGEST = 2.0**11
"""Bound of the values that are stored as F16: its precision is full from 2**-25 of it upwards."""


class AdapterPacker:
    """Packs changes of the matrices that a program multiplies, and of its embedding.

    Attributes:
        weights: these matrices, by name.
    """

    def __init__(self, program: _native.Program, forward: Forward, isa: str) -> None:
        self.weights: Mapping[str, LinearWeight | TableWeight] = adaptable(forward)
        self._program = program
        self._isa = isa

    def pack(self, changes: Mapping[str, Change]) -> _native.Adapter:
        """See :meth:`heddle.executors.adapting.AdaptingExecutor.make_adapter`."""
        check_adaptable(changes, self.weights)
        # Threads of its own: those of the program may compute a step.
        arena, runtime = _native.Arena(), _native.Runtime(1, self._isa)
        packed: list[Any] = []
        try:
            for name, change in changes.items():
                weight = self.weights[name]
                is_lookup = isinstance(weight, TableWeight)
                if isinstance(change, Whole):
                    whole = _matrix(arena, runtime, _whole(change))
                    packed.append((weight.matrix, whole, None, [], [], is_lookup))
                    continue
                # A matmul of codes is exact to about 1%, so more than 16 bits would only cost time.
                is_short = weight.matrix.quantised or change.type is not TensorType.F32
                store = _codes if change.type is TensorType.I8 else partial(_floats, is_short)
                (a, of_a), (b, of_b) = store(change.a), store(change.b.T)
                parts = (_matrix(arena, runtime, one) for one in (a.T if is_lookup else a, b.T))
                scales = (change.scale * of_a * of_b).tolist()
                gains = [] if change.gains is None else change.gains.tolist()
                packed.append((weight.matrix, *parts, scales, gains, is_lookup))
        except MemoryError as error:
            raise OutOfMemoryError("the machine has no memory left for the adapter") from error
        return self._program.adapter(packed)


def _floats(is_short: bool, values: _Floats) -> tuple[npt.NDArray[Any], _Floats]:
    """The values in the type that is stored, and the scale of each row: a power of two of all."""
    largest = float(np.abs(values).max(initial=0.0))
    scale = 1.0
    if is_short and largest > 0.0:
        scale = 2.0 ** (math.frexp(largest)[1] - math.log2(_LARGEST))
        values = (values / np.float32(scale)).astype(np.float16)
    return values, np.full(len(values), scale)


def _codes(values: _Floats) -> tuple[npt.NDArray[np.int8], _Floats]:
    """The values in 8 bits, and the scale of each row."""
    scales = np.abs(values).max(axis=1, initial=0.0) / 127.0
    codes = np.rint(values / np.where(scales > 0.0, scales, 1.0)[:, None])
    return codes.astype(np.int8), scales


def _whole(change: Whole) -> npt.NDArray[Any]:
    """The values of a matrix in its type, which holds them; BF16 as its bits."""
    if change.type is TensorType.F16:
        return change.values.astype(np.float16)
    if change.type is TensorType.BF16:
        return (change.values.view(np.uint32) >> 16).astype(np.uint16)
    return change.values


def _matrix(
    arena: _native.Arena, runtime: _native.Runtime, values: npt.NDArray[Any]
) -> _native.Matrix:
    kind = _TYPES[values.dtype.char]
    rows, columns = values.shape
    raw = np.ascontiguousarray(values).view(np.uint8).ravel()
    return _native.Matrix(arena, runtime, int(kind), raw, rows, columns, _NO_BIAS)
