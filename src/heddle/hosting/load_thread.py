"""The thread that loads models, one after another."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class LoadThread:
    """Runs jobs in their order, in a thread that the first job starts.

    It owns the queue of jobs. The registry calls `add` under its lock. Any thread may call `end`,
    also a finalizer.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, job: Callable[[], None]) -> None:
        """Run `job` after all earlier ones."""
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(
                target=_run, args=(self._jobs,), name="heddle-load", daemon=True
            )
            self._thread.start()

    def end(self) -> None:
        """End the thread after the jobs that were added."""
        self._jobs.put(None)


def _run(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    """Run jobs until a None comes. Keeps no job: a load refers to its registry and its engine.

    Two loads at once could both find the memory free. A thread for each load would spread what they
    allocate over glibc's arenas, and glibc keeps up to 64 MB at the end of each.
    """
    while (job := jobs.get()) is not None:
        job()
        del job
