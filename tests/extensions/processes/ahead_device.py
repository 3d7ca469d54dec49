"""A device that takes a second step before the result of the first: a module with `load`.

A process of its own imports it, by PYTHONPATH.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from heddle.errors import StepMemoryError
from heddle.executors.cpu.load import load as load_cpu


class AheadExecutor:
    """The CPU's executor behind a queue of plans. It computes a plan when its result is asked for.

    A plan that clears a slot finds no memory, which ends all steps in flight.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._plans: deque[Any] = deque()
        self.runs_ahead = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def submit(self, plan: Any) -> None:
        if plan.clears:
            self._plans.clear()
            raise StepMemoryError("no memory")
        self._plans.append(plan)

    def collect(self) -> Any:
        self._inner.submit(self._plans.popleft())
        return self._inner.collect()


def load(*given: Any, **options: Any) -> AheadExecutor:
    return AheadExecutor(load_cpu(*given, **options))
