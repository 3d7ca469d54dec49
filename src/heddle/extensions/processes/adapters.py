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
from heddle.weights.low_rank import LowRank
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Change(Part, frozen=True):
    """A :class:`LowRank`."""

    a: Rows
    b: Rows
    scale: float
    type: str

    @classmethod
    def of(cls, one: LowRank) -> Change:
        """The message of a change."""
        return cls(Rows.of(one.a), Rows.of(one.b), one.scale, one.type.name)

    @property
    def low_rank(self) -> LowRank:
        """The change again."""
        return LowRank(self.a.array, self.b.array, self.scale, TensorType[self.type])


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
