"""Small native programs, for looking at one kernel at a time.

Inputs enter as F32 embedding tables whose row i is token i, so that no kernel needs an entry of its
own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from heddle import _native
from heddle.state import PAGE_TOKENS
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from heddle.models.ops import PositionBias

    Floats = NDArray[np.float32]

F32 = int(TensorType.F32)
ISA_LEVELS = _native.isa_levels()
NO_SPANS = np.empty((0, 5), np.int32)
NOTHING = np.empty(0, np.int32)
NO_BIAS = np.empty(0, np.float32)


def as_bytes(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).view(np.uint8).ravel()


def ints(values: Sequence[int] | range) -> NDArray[np.int32]:
    return np.array(values, np.int32)


class Bench:
    """A runtime with a program of at most `tokens` tokens, and what it must keep alive."""

    def __init__(self, isa: str, tokens: int, threads: int = 1, cache: object = None) -> None:
        self.runtime = _native.Runtime(threads, isa)
        self.cache = cache or _native.KvCache("f16", 1, 1, 16, 1)
        self.arena = _native.Arena()
        self.program = _native.Program(self.runtime, (self.cache,), tokens, tokens)
        self._kept: list[object] = []

    def table(self, values: Floats) -> int:
        """A buffer that holds `values` (tokens, width) when ids are 0, 1, 2, ..."""
        buffer = self.program.buffer(values.shape[1], per_row=False)
        self.program.embed(self.matrix(F32, as_bytes(values), *values.shape, NO_BIAS), buffer)  # type: ignore[call-arg]
        return buffer

    def matrix(
        self, type: int, raw: NDArray[np.uint8], rows: int, columns: int, bias: Floats
    ) -> _native.Matrix:
        matrix = _native.Matrix(self.arena, self.runtime, type, raw, rows, columns, bias)
        self._kept.append(matrix)
        return matrix

    def run(self, tokens: int, buffer: int) -> Floats:
        ids = ints(range(tokens))
        self.program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, []).finish()
        return self.program.copy(buffer, tokens)


def matmul(
    isa: str,
    type: int,
    raw: NDArray[np.uint8],
    rows: int,
    x: Floats,
    *,
    bias: Floats | None = None,
    onto: Floats | None = None,
    threads: int = 1,
) -> Floats:
    """x (T, columns) times the matrix in `raw`, added to `onto` (T, rows) if given."""
    bench = Bench(isa, len(x), threads)
    source = bench.table(x)
    out = bench.program.buffer(rows, per_row=False) if onto is None else bench.table(onto)
    matrix = bench.matrix(
        type, raw, rows, x.shape[1], np.empty(0, np.float32) if bias is None else bias
    )
    if matrix.quantised:
        bench.program.quantise(source)
    bench.program.matmul(source, [(matrix, out)], onto is not None)
    return bench.run(len(x), out)


def attention(
    isa: str,
    q: Floats,
    k: Floats,
    v: Floats,
    kv_type: str = "f16",
    *,
    kv_heads: int,
    head_dim: int,
    scale: float,
    chunks: Sequence[int] | None = None,
    threads: int = 1,
    window: int = 0,
    bias: PositionBias | None = None,
    **variant: Any,
) -> Floats:
    """Attention of one sequence, whole or in chunks; q (T, heads * head_dim).

    `variant` are options of the native instruction: `causal`, `soft_cap`, `sinks`, `aligned`.
    `bias` is a `PositionBias`, or None.
    """
    tokens = len(q)
    pages = -(-tokens // PAGE_TOKENS)
    bench = Bench(isa, tokens, threads, _native.KvCache(kv_type, 1, kv_heads, head_dim, pages + 1))
    sources = [bench.table(values) for values in (q, k, v)]
    out = bench.program.buffer(q.shape[1], per_row=False)
    bench.program.store_kv(sources[1], sources[2], 0)
    heads = q.shape[1] // head_dim
    if bias is not None:
        terms = bias.of(np.arange(1 - tokens, tokens)) / scale
        by_distance = terms.astype(np.float32).ravel()
        variant["bias"] = bench.program.position_bias(heads, tokens, by_distance)
    bench.program.attend(sources[0], 0, heads, scale, window, out, False, **variant)
    # The pages are used in falling order, with page 0 left out, to catch mix-ups of page and index.
    table = ints(range(pages, 0, -1))
    results, done = [], 0
    for count in chunks or [tokens]:
        ids = ints(range(done, done + count))
        first = max(0, done - window + 1) // PAGE_TOKENS if window else 0
        table[:first] = -1  # behind the window: the sequence may have given these pages back
        span = np.array([[0, count, done, first, first]], np.int32)
        bench.program.begin(ids, ids, span, table, NOTHING, []).finish()
        results.append(bench.program.copy(out, count))
        done += count
    assert done == tokens
    return np.concatenate(results)
