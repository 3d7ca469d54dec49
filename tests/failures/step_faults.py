"""Raises errors at the points of a step, one fault after another, in each engine that is loaded."""

from __future__ import annotations

import random
import threading
from collections import Counter
from itertools import cycle
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from heddle.errors import EngineFailedError, StepMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.engine import Engine
    from heddle.engine.loop import EngineLoop

POINTS: dict[str, Callable[[EngineLoop], tuple[object, str]]] = {
    # Planning, under the lock.
    "schedule": lambda loop: (loop.scheduler, "schedule"),
    "admit": lambda loop: (loop.scheduler.admission, "admit"),
    "take prefix": lambda loop: (loop.scheduler.prefixes, "take"),
    "preempt": lambda loop: (loop.scheduler.admission, "preempt"),
    "divide": lambda loop: (loop.scheduler._budget, "divide"),
    "grow": lambda loop: (loop.cache.pages, "grow"),
    # The executor.
    "submit": lambda loop: (loop.model.executor, "submit"),
    "bind": lambda loop: (loop.model.executor, "_bind"),
    "layout": lambda loop: (loop.model.executor, "_layout"),
    "begin edits": lambda loop: (loop.model.executor._edits, "begin_edits"),  # type: ignore[attr-defined]
    "collect": lambda loop: (loop.model.executor, "collect"),
    "sampled": lambda loop: (loop.model.executor, "_sampled"),
    "observe edits": lambda loop: (loop.model.executor._edits, "observe"),  # type: ignore[attr-defined]
    # Beside a step, without the lock.
    "note starts": lambda loop: (loop, "_note_starts"),
    "work beside": lambda loop: (loop, "_work_beside"),
    "deliver": lambda loop: (loop.delivery, "deliver"),
    "deliver tokens": lambda loop: (loop.delivery, "deliver_tokens"),
    "leave scheduler": lambda loop: (loop.delivery, "_leave_scheduler"),
    # The result of a step, under the lock.
    "update": lambda loop: (loop, "_update"),
    "apply result": lambda loop: (loop.scheduler, "update"),
    "apply outcome": lambda loop: (loop.scheduler, "_apply"),
    "count computed": lambda loop: (loop.scheduler, "_count_computed"),
    "end sequence": lambda loop: (loop.scheduler, "_end"),
    "release": lambda loop: (loop.scheduler.admission, "release"),
    "publish": lambda loop: (loop.cache.prefixes, "publish"),
    "release pages": lambda loop: (loop.cache.pages, "release"),
    "measure": lambda loop: (loop.scheduler._budget, "measure"),
    "note result": lambda loop: (loop.activity, "note_result"),
}
"""Where a fault may be raised: an object and the name of a method, before or after its call."""

ERRORS: Sequence[Callable[[str], Exception]] = (
    RuntimeError,
    AssertionError,
    KeyError,
    MemoryError,
    EngineFailedError,
)
NO_MEMORY, DEVICE = "no memory", "device"
"""Faults of other kinds: a step that is too large, and a watcher thread that notes a failure."""


class Faults:
    """The faults of a run: at each of `points` in turn, until there were so many.

    Attributes:
        left: how many faults are still to come.
        wanted: the point of the next one; None: there is none.
        raised: how many there were, by point.
        engines: the engines that were watched, as long as something refers to them.
    """

    def __init__(self, points: Sequence[str], seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._points = cycle(self._random.sample(points, len(points)))
        self.left = 0
        self.raised: Counter[str] = Counter()
        self.engines: WeakSet[Engine] = WeakSet()
        self.wanted: str | None = None
        self._countdown = 0

    def aim(self, count: int) -> None:
        """Raise so many faults from now on."""
        self.left = count
        self._choose()

    def watch(self, name: str, engine: Engine) -> None:
        """Watch the points of an engine; `name` is of its model. The registry calls it."""
        self.engines.add(engine)
        loop = engine.thread._loop
        for point, find in POINTS.items():
            owner, method = find(loop)
            setattr(owner, method, self._visited(getattr(owner, method), point))
        executor: Any = loop.model.executor
        executor.collect = self._visited(executor.collect, NO_MEMORY, StepMemoryError)
        executor.collect = self._noted(executor.collect, loop._note_device_problem)

    def _visited(
        self, call: Callable[..., Any], point: str, error: Callable[[str], Exception] | None = None
    ) -> Callable[..., Any]:
        def visited(*args: Any, **kwargs: Any) -> Any:
            if error is None:
                self._raise(f"{point}, before")
            result = call(*args, **kwargs)
            self._raise(f"{point}, after", error)
            return result

        return visited

    def _noted(
        self, collect: Callable[[], Any], failed: Callable[[str], None]
    ) -> Callable[[], Any]:
        def noted() -> Any:
            if self._is_due(DEVICE):
                watcher = threading.Thread(target=failed, args=("it burns",))
                watcher.start()
                watcher.join()
            return collect()

        return noted

    def _raise(self, point: str, error: Callable[[str], Exception] | None = None) -> None:
        if self._is_due(point):
            raise (error or self._random.choice(ERRORS))(f"a fault: {point}")

    def _is_due(self, point: str) -> bool:
        if threading.current_thread().name != "heddle-engine":
            return False  # the thread that loads ends what an engine has left
        if point != self.wanted:
            return False
        self._countdown -= 1
        if self._countdown > 0:
            return False
        self.raised[point] += 1
        self.left -= 1
        self._choose()
        return True

    def _choose(self) -> None:
        """Choose the point of the next fault, and how often an engine comes there before."""
        self.wanted = next(self._points) if self.left else None
        self._countdown = self._random.choice((1, 2, 5, 9))


ALL = [
    *(f"{point}, {when}" for point in POINTS for when in ("before", "after")),
    f"{NO_MEMORY}, after",
    DEVICE,
]
"""All points."""
