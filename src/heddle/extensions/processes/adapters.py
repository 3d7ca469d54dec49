"""Adapters of the model in a device's process, which the engine's process knows by numbers."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from heddle.extensions.processes.children.messages import Part
from heddle.extensions.processes.rows import Rows
from heddle.step import AdapterUse
from heddle.weights.low_rank import LowRank, Whole
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from heddle.weights.low_rank import Change


class SentChange(Part, frozen=True):
    """A :class:`LowRank`; or a :class:`Whole`, whose values are `a`."""

    type: str
    a: Rows
    b: Rows | None = None
    scale: float = 1.0
    gains: Rows | None = None

    @classmethod
    def of(cls, one: Change) -> SentChange:
        """The message of a change."""
        if isinstance(one, Whole):
            return cls(one.type.name, Rows.of(one.values))
        gains = None if one.gains is None else Rows.of(one.gains)
        return cls(one.type.name, Rows.of(one.a), Rows.of(one.b), one.scale, gains)

    @property
    def change(self) -> Change:
        """The change again."""
        type = TensorType[self.type]
        if self.b is None:
            return Whole(self.a.array, type)
        gains = None if self.gains is None else self.gains.array[0]
        return LowRank(self.a.array, self.b.array, self.scale, type, gains)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SentAdapter:
    """An adapter in the device's process; see :class:`heddle.executors.adapting.Adapter`."""

    number: int
    bytes: int


class SentAdapters:
    """The adapters that the engine's process has asked for. Any thread may call all methods."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._dropped: deque[int] = deque()  # garbage collection appends, in any thread

    def next_number(self) -> int:
        """A number for an adapter."""
        return next(self._numbers)

    def made(self, number: int, size: int) -> SentAdapter:
        """An adapter that the device's process has made."""
        adapter = SentAdapter(number, size)
        weakref.finalize(adapter, self._dropped.append, number).atexit = False
        return adapter

    def take_dropped(self) -> list[int]:
        """Numbers of adapters that nothing refers to any more, since the last call."""
        return [self._dropped.popleft() for _ in range(len(self._dropped))]


class HeldAdapters:
    """The adapters of the device's process, by number."""

    def __init__(self) -> None:
        self._adapters: dict[int, Any] = {}

    def keep(self, number: int, adapter: Any) -> None:
        """Keep an adapter until it is dropped."""
        self._adapters[number] = adapter

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget adapters. Steps in flight keep theirs."""
        for number in numbers:
            self._adapters.pop(number, None)

    def uses(self, sent: Sequence[tuple[int, float]]) -> list[AdapterUse]:
        """The adapters of a chunk."""
        return [AdapterUse(self._adapters[number], factor) for number, factor in sent]
