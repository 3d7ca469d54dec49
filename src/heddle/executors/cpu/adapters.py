"""Packs adapters for the CPU."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle import _native
from heddle.errors import OutOfMemoryError
from heddle.executors.adapting import check_adaptable
from heddle.executors.graph.forward import adaptable
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from heddle.executors.cpu.weights import LinearWeight
    from heddle.executors.graph.forward import Forward
    from heddle.weights.low_rank import LowRank

_NO_BIAS = np.zeros(0, np.float32)
_LARGEST = 2.0**11
"""Bound of the values that are stored as F16: its precision is full from 2**-25 of it upwards."""


class AdapterPacker:
    """Packs low-rank changes of the matrices that a program multiplies.

    Attributes:
        weights: these matrices, by name.
    """

    def __init__(self, program: _native.Program, forward: Forward, isa: str) -> None:
        self.weights: Mapping[str, LinearWeight] = adaptable(forward)
        self._program = program
        self._isa = isa

    def pack(self, changes: Mapping[str, LowRank]) -> _native.Adapter:
        """See :meth:`heddle.executors.adapting.AdaptingExecutor.make_adapter`."""
        check_adaptable(changes, self.weights)
        # Threads of its own: those of the program may compute a step.
        arena, runtime = _native.Arena(), _native.Runtime(1, self._isa)
        packed = []
        try:
            for name, change in changes.items():
                weight = self.weights[name]
                # A matmul of codes is exact to about 1%, so more than 16 bits would only cost time.
                is_short = weight.matrix.quantised or change.type is not TensorType.F32
                (a, of_a), (b, of_b) = (_values(one, is_short) for one in (change.a, change.b))
                scale = change.scale / (of_a * of_b)
                parts = _matrix(arena, runtime, a), _matrix(arena, runtime, b)
                packed.append((weight.matrix, *parts, scale))
        except MemoryError as error:
            raise OutOfMemoryError("the machine has no memory left for the adapter") from error
        return self._program.adapter(packed)


def _values(values: npt.NDArray[np.float32], is_short: bool) -> tuple[npt.NDArray[Any], float]:
    """The values in the type that is stored, times a power of two, and this factor."""
    largest = float(np.abs(values).max(initial=0.0))
    if not is_short or largest == 0.0:
        return values, 1.0
    factor = 2.0 ** (math.log2(_LARGEST) - math.frexp(largest)[1])
    return (values * np.float32(factor)).astype(np.float16), factor


def _matrix(
    arena: _native.Arena, runtime: _native.Runtime, values: npt.NDArray[Any]
) -> _native.Matrix:
    kind = TensorType.F16 if values.dtype == np.float16 else TensorType.F32
    rows, columns = values.shape
    raw = np.ascontiguousarray(values).view(np.uint8).ravel()
    return _native.Matrix(arena, runtime, int(kind), raw, rows, columns, _NO_BIAS)
