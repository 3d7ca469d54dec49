"""Makes the arrays of a native step from a plan, and keeps hidden states for embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from heddle.embedding import Pooling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from heddle.embedding import EmbeddingParams
    from heddle.step import Chunk, Sight, StepPlan

    _Ints = npt.NDArray[np.int32]
    PooledRows: TypeAlias = tuple[int, int, npt.NDArray[np.float64]]
    """First row, number of rows, and the array (width,) that their states are added to."""


def ints(values: Sequence[int]) -> _Ints:
    """The values (n,) as int32, the type that the native module accepts."""
    return np.array(values, dtype=np.int32)


class PooledStates(Protocol):
    """Hidden states that become the embedding of one sequence."""

    def room_for(self, row: int, count: int) -> list[PooledRows]:
        """Places where the native step adds the states of `count` rows, the first of them `row`."""
        ...

    def add(self, state: npt.NDArray[np.float32]) -> None:
        """Add the state (width,) of the next token."""
        ...

    def vector(self) -> npt.NDArray[np.float64]:
        """The embedding, as :class:`Pooled` has it."""
        ...


def pooled_states(params: EmbeddingParams, width: int) -> PooledStates:
    """The empty states of a sequence with these parameters."""
    if params.pooling is Pooling.NONE:
        return EachState(width)
    kind = FirstState if params.pooling is Pooling.CLS else StateSum
    return kind(width, unit_length=params.unit_length)


class StateSum:
    """The sum of one sequence's last hidden states.

    The program adds the states in float64, one by one in the order of their positions. So the bits
    do not depend on the chunks.
    """

    def __init__(self, width: int, *, unit_length: bool) -> None:
        """With `unit_length`, the mean is scaled to length 1."""
        self._values = np.zeros(width, np.float64)
        self._count = 0
        self._unit_length = unit_length

    def room_for(self, row: int, count: int) -> list[PooledRows]:
        self._count += count
        return [(row, count, self._values)]

    def add(self, state: npt.NDArray[np.float32]) -> None:
        self._values += state.astype(np.float64)
        self._count += 1

    def vector(self) -> npt.NDArray[np.float64]:
        """The mean. Zeros stay zeros, and a mean that is not finite is not scaled."""
        mean = self._values / self._count
        if not self._unit_length or not np.isfinite(mean).all():
            return mean
        length = math.sqrt(math.fsum((mean * mean).tolist()))  # fsum is exact in any order
        return mean / (length or 1.0)


class FirstState(StateSum):
    """The last hidden state of one sequence's first token."""

    def room_for(self, row: int, count: int) -> list[PooledRows]:
        return [] if self._count else super().room_for(row, 1)

    def add(self, state: npt.NDArray[np.float32]) -> None:
        if not self._count:
            super().add(state)


class EachState:
    """All last hidden states of one sequence."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._states: list[npt.NDArray[np.float64]] = []

    def room_for(self, row: int, count: int) -> list[PooledRows]:
        self._states.append(np.zeros((count, self._width), np.float64))
        return _single_rows(row, self._states[-1])

    def add(self, state: npt.NDArray[np.float32]) -> None:
        self._states.append(state[None].astype(np.float64))

    def vector(self) -> npt.NDArray[np.float64]:
        return np.concatenate(self._states).ravel()


def _single_rows(row: int, states: npt.NDArray[np.float64]) -> list[PooledRows]:
    """Room for a state in each row of `states`: a sum of one state is the state."""
    return [(number, 1, state) for number, state in enumerate(states, row)]


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
        adapted: (first token row, number of tokens, adapter, factor) of each adapter of each chunk.
        kept: (tokens, width) hidden states of each chunk with `keep_states`. Each row is a sum of
            one state, so the program fills it as it pools.
        seen: (first token row, rows) of each picture.
        sights: what each chunk reads of pictures, if any chunk reads some.
    """

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    spans: list[tuple[int, ...]] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    scored: list[tuple[int, int, int]] = field(default_factory=list)
    pooled: list[PooledRows] = field(default_factory=list)
    adapted: list[tuple[int, int, Any, float]] = field(default_factory=list)
    kept: list[npt.NDArray[np.float64]] = field(default_factory=list)
    seen: list[tuple[int, npt.NDArray[np.float32]]] = field(default_factory=list)
    sights: list[tuple[int, int, Sight]] = field(default_factory=list)
    width: int = 0

    @classmethod
    def of(
        cls,
        plan: StepPlan,
        sums: Mapping[int, PooledStates],
        width: int = 0,
        fixed: Sequence[tuple[int, int, int]] | None = None,
    ) -> Layout:
        """Lay out a plan. `sums` has the states of each slot that pools some.

        `width` is that of hidden states, if the plan keeps some. `fixed` has the fixed-size states
        of each chunk, see `FixedMemory.places`. None: the model is not recurrent.
        """
        layout = cls(width=width)
        for index, chunk in enumerate(plan.chunks):
            layout._add(chunk, sums, () if fixed is None else fixed[index])
        return layout

    def _add(self, chunk: Chunk, sums: Mapping[int, PooledStates], fixed: tuple[int, ...]) -> None:
        begin, count = len(self.ids), len(chunk.tokens)
        span: tuple[int, ...] = (begin, count, chunk.start, len(self.pages), 0)
        if chunk.sight is not None:
            self.sights.append((begin, count, chunk.sight))
            self.seen.extend((begin + first, rows) for first, rows in chunk.sight.rows)
        for use in chunk.adapters:
            self.adapted.append((begin, count, use.adapter, use.factor))
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
            first = chunk.pool.first
            self.pooled += sums[chunk.slot].room_for(begin + first, count - first)
        if chunk.keep_states:
            states = np.zeros((chunk.keep_states, self.width), np.float64)
            self.pooled += _single_rows(begin + count - chunk.keep_states, states)
            self.kept.append(states)

    def arrays(self) -> tuple[_Ints, _Ints, _Ints, _Ints, _Ints]:
        """`ids`, `positions`, `spans`, `pages`, `rows`."""
        spans = np.array(self.spans, np.int32)
        return ints(self.ids), ints(self.positions), spans, ints(self.pages), ints(self.rows)

    def places(self, axes: int) -> _Ints | None:
        """Places (T, axes): positions, but where a chunk has others; None if there are no axes."""
        if not axes:
            return None
        places = np.repeat(ints(self.positions)[:, None], axes, axis=1)
        for begin, count, sight in self.sights:
            if sight.places is not None:
                places[begin : begin + count] = sight.places
        return places

    def runs(self) -> _Ints | None:
        """Runs (T, 2) of positions that attention sees whole; None if each token is a run."""
        if all(sight.runs is None for _, _, sight in self.sights):
            return None
        positions = ints(self.positions)
        runs = np.stack([positions, positions + 1], axis=-1)
        for begin, count, sight in self.sights:
            if sight.runs is not None:
                runs[begin : begin + count] = sight.runs[:, 0]
        return runs

    def scored_rows(self) -> _Ints | None:
        """`scored` (n, 3); None if there is nothing to score."""
        return np.array(self.scored, np.int32) if self.scored else None
