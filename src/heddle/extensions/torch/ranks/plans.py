"""A step's plan as bytes: integers only.

Other ranks sample nothing, so bindings stay in rank 0. Nor do hidden states travel: a model whose
head reads them is not divided.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from heddle.step import Chunk, PageCopy, Pool, Scoring, StateCopy, StepPlan, WindowPages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_INTEGER = "q"
"""64 bits, in the byte order of the machine: all ranks are on one machine."""

_NONE = -1


def encode_plan(plan: StepPlan, rewound: Sequence[int]) -> bytes:
    """The plan without bindings. `rewound` are slots whose state goes back before the step."""
    return array(_INTEGER, _integers(plan, rewound)).tobytes()


def decode_plan(content: bytes) -> tuple[StepPlan, tuple[int, ...]]:
    """The plan that `encode_plan` encoded.

    Raises:
        ValueError: `content` is no such plan.
    """
    values = array(_INTEGER)
    values.frombytes(content)
    reader = _Reader(values)
    try:  # (a generator would turn StopIteration into another error)
        rewound = reader.list()
        copies = tuple([reader.copy() for _ in range(reader.next())])
        clears = reader.list()
        restores = tuple([reader.state_copy() for _ in range(reader.next())])
        snapshots = tuple([reader.state_copy() for _ in range(reader.next())])
        chunks = tuple([reader.chunk() for _ in range(reader.next())])
    except StopIteration:
        raise ValueError("a plan ends too early") from None
    if not reader.ended:
        raise ValueError("a plan has too many integers")
    return StepPlan((), chunks, copies, clears, restores, snapshots), rewound


def _integers(plan: StepPlan, rewound: Sequence[int]) -> Iterator[int]:
    yield from _list(rewound)
    yield len(plan.copies)
    for copy in plan.copies:
        yield from (copy.source, copy.target, _NONE if copy.window is None else copy.window)
    yield from _list(plan.clears)
    for copies in (plan.restores, plan.snapshots):
        yield len(copies)
        for state in copies:
            yield from (state.slot, state.snapshot)
    yield len(plan.chunks)
    for chunk in plan.chunks:
        yield from _chunk(chunk)


def _chunk(chunk: Chunk) -> Iterator[int]:
    yield from (chunk.slot, chunk.start, chunk.sample)
    yield from (chunk.guesses, chunk.uncertain, chunk.keep_states)
    yield from _list(chunk.tokens)
    yield from _list(chunk.pages)
    if chunk.score is None:
        yield _NONE
    else:
        yield from (chunk.score.first, chunk.score.top)
        yield from _list(chunk.score.targets)
    if chunk.pool is None:
        yield _NONE
    else:
        yield from (chunk.pool.first, chunk.pool.complete)
    yield len(chunk.windows)
    for window in chunk.windows:
        yield window.first
        yield from _list(window.pages)


def _list(values: Sequence[int]) -> Iterable[int]:
    return (len(values), *values)


class _Reader:
    """Reads the integers of a plan one after the other."""

    def __init__(self, values: Sequence[int]) -> None:
        self._values = iter(values)

    @property
    def ended(self) -> bool:
        return next(self._values, None) is None

    def next(self) -> int:
        return next(self._values)

    def list(self) -> tuple[int, ...]:
        return tuple([self.next() for _ in range(self.next())])

    def copy(self) -> PageCopy:
        source, target, window = self.next(), self.next(), self.next()
        return PageCopy(source, target, None if window == _NONE else window)

    def state_copy(self) -> StateCopy:
        return StateCopy(self.next(), self.next())

    def chunk(self) -> Chunk:
        slot, start, sample = self.next(), self.next(), bool(self.next())
        guesses, uncertain, keep_states = self.next(), self.next(), self.next()
        tokens, pages = self.list(), self.list()
        return Chunk(
            slot,
            start,
            tokens,
            pages,
            sample,
            self._score(),
            self._pool(),
            [self._window() for _ in range(self.next())],
            guesses,
            uncertain,
            keep_states,
        )

    def _score(self) -> Scoring | None:
        first = self.next()
        if first == _NONE:
            return None
        top = self.next()
        return Scoring(first, self.list(), top)

    def _pool(self) -> Pool | None:
        first = self.next()
        return None if first == _NONE else Pool(first, bool(self.next()))

    def _window(self) -> WindowPages:
        first = self.next()
        return WindowPages(first, [*self.list()])
