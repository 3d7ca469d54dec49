"""Makes the arrays of a native step from a plan, and sums hidden states for embeddings."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from heddle.step import Chunk, StepPlan

    _Ints = npt.NDArray[np.int32]


def ints(values: Sequence[int]) -> _Ints:
    """The values (n,) as int32, the type that the native module accepts."""
    return np.array(values, dtype=np.int32)


class StateSum:
    """The sum of one sequence's last hidden states.

    The program adds the states in float64, one by one in the order of their positions. So the bits
    do not depend on the chunks.

    Attributes:
        values: (width,) float64; the native step adds to them.
        count: number of states in the sum.
    """

    def __init__(self, width: int, *, unit_length: bool = True) -> None:
        """With `unit_length`, the mean is scaled to length 1."""
        self.values = np.zeros(width, np.float64)
        self.count = 0
        self._unit_length = unit_length

    def mean(self) -> array[float] | None:
        """The mean as float32; None if it is not finite. Zeros stay zeros."""
        mean = self.values / self.count
        if not np.isfinite(mean).all():
            return None
        length = 1.0
        if self._unit_length:
            length = math.sqrt(math.fsum((mean * mean).tolist()))  # fsum is exact in any order
        return array("f", (mean / (length or 1.0)).astype(np.float32).tobytes())


@dataclass(slots=True)
class Layout:
    """A plan in the form of `Program.begin`: T tokens of S chunks, in the order of the chunks.

    Attributes:
        ids, positions: (T,).
        spans: (S, 3 + 2 * groups), see `Program.begin`; in a recurrent model, (S, 6 + 2 * groups).
        pages: page ids of all spans and groups.
        rows: (R,) token rows to sample from. A chunk with n guesses has n + 1 rows.
        scored: (token row, target, alternatives) of each token to score.
        pooled: (first token row, number of tokens, sums) of each chunk to pool.
        kept: (tokens, width) hidden states of each chunk with `keep_states`. Each row is a sum of
            one state, so the program fills it as it pools.
    """

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    spans: list[tuple[int, ...]] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    scored: list[tuple[int, int, int]] = field(default_factory=list)
    pooled: list[tuple[int, int, npt.NDArray[np.float64]]] = field(default_factory=list)
    kept: list[npt.NDArray[np.float64]] = field(default_factory=list)
    width: int = 0

    @classmethod
    def of(
        cls,
        plan: StepPlan,
        sums: Mapping[int, StateSum],
        width: int = 0,
        fixed: Sequence[tuple[int, int, int]] | None = None,
    ) -> Layout:
        """Lay out a plan. `sums` has a sum for each slot whose states are pooled.

        `width` is that of hidden states, if the plan keeps some. `fixed` has the fixed-size states
        of each chunk, see `FixedMemory.places`. None: the model is not recurrent.
        """
        layout = cls(width=width)
        for index, chunk in enumerate(plan.chunks):
            layout._add(chunk, sums, () if fixed is None else fixed[index])
        return layout

    def _add(self, chunk: Chunk, sums: Mapping[int, StateSum], fixed: tuple[int, ...]) -> None:
        begin, count = len(self.ids), len(chunk.tokens)
        span: tuple[int, ...] = (begin, count, chunk.start, len(self.pages), 0)
        self.ids.extend(chunk.tokens)
        self.positions.extend(range(chunk.start, chunk.start + count))
        self.pages.extend(chunk.pages)
        for window in chunk.windows:
            span += (len(self.pages), window.first)
            self.pages.extend(window.pages)
        self.spans.append(span + fixed)
        if chunk.sample:
            self.rows.extend(range(begin + count - 1 - chunk.guesses, begin + count))
        if chunk.score is not None:
            first, top = begin + chunk.score.first, chunk.score.top
            targets = enumerate(chunk.score.targets, first)
            self.scored.extend((row, target, top) for row, target in targets)
        if chunk.pool is not None:
            state_sum, rows = sums[chunk.slot], count - chunk.pool.first
            state_sum.count += rows
            self.pooled.append((begin + chunk.pool.first, rows, state_sum.values))
        if chunk.keep_states:
            states, end = np.zeros((chunk.keep_states, self.width), np.float64), begin + count
            rows_of = range(end - chunk.keep_states, end)
            self.pooled.extend((row, 1, states[i]) for i, row in enumerate(rows_of))
            self.kept.append(states)

    def arrays(self) -> tuple[_Ints, _Ints, _Ints, _Ints, _Ints]:
        """`ids`, `positions`, `spans`, `pages`, `rows`."""
        spans = np.array(self.spans, np.int32)
        return ints(self.ids), ints(self.positions), spans, ints(self.pages), ints(self.rows)

    def scored_rows(self) -> _Ints | None:
        """`scored` (n, 3); None if there is nothing to score."""
        return np.array(self.scored, np.int32) if self.scored else None
