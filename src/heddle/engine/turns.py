"""Turns of computing: the models of a process share the machine's cores, one step at a time.

Two models that compute at once would take each other's cores and wait at each other's barriers. So
an engine takes the turn for a step. After SLICE seconds of steps it gives way to the engine that
has used the least time. So engines that always have work get equal shares of the time, however long
their steps are, and an engine without a rival gets all of it.

Between two steps, an engine plans for 0.1 to 0.3 ms. It keeps its claim for GRACE seconds; without
the claim, a model with short steps would get one step for every long step of its rival.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SLICE = 0.01
"""Seconds of steps after which an engine gives way."""
GRACE = 0.001
"""Longest wait for an engine that has the right to go next but is still planning."""
IDLE = 0.02
"""Seconds without a step after which an engine counts as idle. It saves up no time while idle."""


class Turn:
    """The place of one engine. One thread takes and gives; any thread may withdraw.

    Attributes:
        used: seconds of its steps, raised after idle times to the least of its rivals.
        ended_at: when its last step ended.
        withdrawn: it waits no more.
    """

    __slots__ = ("_turns", "ended_at", "used", "withdrawn")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.used = 0.0
        self.ended_at = float("-inf")
        self.withdrawn = False

    def take(self) -> None:
        """Wait for the turn. After `withdraw`, return at once."""
        self._turns.take(self)

    def take_now(self) -> bool:
        """Take the turn if nobody else has it or is to have it. Returns whether it was taken."""
        return self._turns.take(self, wait=False)

    def give(self) -> None:
        """End the turn. No effect without a turn."""
        self._turns.give(self)

    @property
    def is_wanted(self) -> bool:
        """Whether another engine waits for its turn."""
        return self._turns.is_wanted

    def withdraw(self) -> None:
        """Wait no more, now and later: the engine stops."""
        self._turns.withdraw(self)


class Turns:
    """Decides which engine computes next. At most one computes at a time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: list[Turn] = []
        self._holder: Turn | None = None  # computes
        self._began = 0.0  # when its turn began
        self._last: Turn | None = None  # computed last
        self._slice = 0.0  # seconds of its steps since another engine computed

    def turn(self) -> Turn:
        """The place of a new engine."""
        return Turn(self)

    @property
    def is_wanted(self) -> bool:
        """Whether an engine waits for its turn."""
        return bool(self._waiting)

    def take(self, turn: Turn, *, wait: bool = True) -> bool:
        with self._changed:
            if self._clock() - turn.ended_at > IDLE:
                rivals = [one.used for one in self._waiting]
                if self._holder is not None:
                    rivals.append(self._holder.used)
                turn.used = max(turn.used, min(rivals, default=0.0))
            self._waiting.append(turn)
            while wait and not (turn.withdrawn or self.next() is turn):
                self._changed.wait(self._patience())
            taken = not turn.withdrawn and self.next() is turn
            self._waiting.remove(turn)
            if taken:
                if self._last is not turn or self._slice >= SLICE:
                    self._slice = 0.0
                self._holder, self._began = turn, self._clock()
            return taken

    def give(self, turn: Turn) -> None:
        with self._changed:
            if self._holder is not turn:
                return
            now = self._clock()
            seconds = now - self._began
            turn.used += seconds
            turn.ended_at = now
            self._slice += seconds
            self._last, self._holder = turn, None
            self._changed.notify_all()

    def withdraw(self, turn: Turn) -> None:
        with self._changed:
            turn.withdrawn = True
            self._changed.notify_all()

    def next(self) -> Turn | None:
        """The waiting engine that may compute now; None if it must wait. Needs the lock."""
        if self._holder is not None or not self._waiting:
            return None
        last, rivals = self._last, [one for one in self._waiting if not one.withdrawn]
        least = min(rivals, key=lambda one: one.used, default=None)
        if last is None or last.withdrawn or least is None:
            return least
        entitled = self._slice < SLICE or last.used <= least.used
        if not entitled or self._clock() - last.ended_at > GRACE:
            return least
        return last if last in rivals else None  # None: it is planning its next step

    def _patience(self) -> float | None:
        """Seconds until the claim of the engine that computed last ends; None: a step runs."""
        if self._holder is not None or self._last is None:
            return None
        return max(0.0, self._last.ended_at + GRACE - self._clock()) + 1e-4
