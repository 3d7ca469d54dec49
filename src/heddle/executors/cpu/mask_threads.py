"""Threads that make grammar masks, so that a slow mask delays its own request only.

llguidance cannot be interrupted. A mask usually takes 0.05 ms, and seconds for a hostile grammar.
One thread makes all masks. If a mask is late, another thread takes over the other masks, and the
slow thread ends after its mask.
"""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from heddle.thread_priority import lower_priority

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PATIENCE = 0.01
"""Seconds that a step waits for its masks. Then it continues without the missing masks."""

_MOST_SLOW = 3
"""Most threads with slow masks at once, beside the thread for all other masks."""

_SLOW_PRIORITY = 10
"""Niceness of a slow thread: two of them on two cores leave 90% of the time to the steps."""


class MaskTask:
    """Work that one thread does and another thread waits for."""

    def __init__(self, work: Callable[[], None]) -> None:
        """`work` must not raise."""
        self._work = work
        self._lock = threading.Lock()
        self._done = threading.Lock()  # held until the work is done
        self._done.acquire()
        self._future: Future[None] | None = None
        self.given_up = False  # whether nobody needs the result

    def run(self) -> None:
        """Do the work. The working thread calls this."""
        if not self.given_up:
            self._work()
        with self._lock:
            self._done.release()
            future = self._future
        if future is not None:
            future.set_result(None)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the work. Returns whether it is done."""
        if not self._done.acquire(timeout=max(0.0, seconds)):
            return False
        self._done.release()
        return True

    def when_done(self) -> Future[None] | None:
        """A future that is done when the work is done; None if the work is already done."""
        with self._lock:
            if not self._done.locked():
                return None
            self._future = self._future or Future()
            return self._future


_Queue: TypeAlias = "SimpleQueue[MaskTask | None]"


class MaskThreads:
    """Does work in threads that end with this object. Only one thread may call it."""

    def __init__(self) -> None:
        self._queue: _Queue = SimpleQueue()
        self._thread: _MaskThread | None = None
        self._slow: list[_MaskThread] = []
        weakref.finalize(self, self._queue.put, None)

    def begin(self, task: MaskTask) -> None:
        """Queue work. Work is done in the order of the calls, but slow work ends later.

        Raises:
            RuntimeError: the system starts no thread.
        """
        if self._thread is None:
            self._thread = _started(self._queue)
        self._queue.put(task)

    def wait(self, tasks: Sequence[MaskTask]) -> None:
        """Wait until all work is done, or until it takes too long."""
        if not _all_done(tasks) and self._replace():
            _all_done(tasks)  # the new thread does the work after the slow work

    def _replace(self) -> bool:
        """Let a new thread take over the queue of a slow one. False if too many are slow."""
        self._slow = [thread for thread in self._slow if thread.is_alive()]
        if self._thread is None or len(self._slow) == _MOST_SLOW:
            return False
        try:
            thread = _started(self._queue)
        except RuntimeError:  # the masks wait for the slow thread
            return False
        self._thread.leave()
        self._slow.append(self._thread)
        self._thread = thread
        return True


def _all_done(tasks: Sequence[MaskTask]) -> bool:
    until = monotonic() + PATIENCE
    done = True
    for task in tasks:  # work after slow work gets no extra time
        done &= task.wait(until - monotonic())
    return done


class _MaskThread(threading.Thread):
    def __init__(self, queue: _Queue) -> None:
        super().__init__(name="heddle-masks", daemon=True)
        self._queue = queue
        self._is_slow = False

    def run(self) -> None:
        while not self._is_slow:
            task = self._queue.get()
            if task is None:
                self._queue.put(None)  # so that the other threads end too
                return
            task.run()

    def leave(self) -> None:
        """End the thread after its current work. Lower the thread's priority now."""
        self._is_slow = True
        assert self.native_id is not None, "the thread was not started"
        lower_priority(self.native_id, _SLOW_PRIORITY)


def _started(queue: _Queue) -> _MaskThread:
    thread = _MaskThread(queue)
    thread.start()
    return thread
