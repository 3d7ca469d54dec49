"""The engine thread, as other threads see it: they submit, cancel, stop and read figures.

`loop.py` has what it runs. Callers submit requests under the lock of the gate.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from _thread import start_new_thread
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from heddle.engine.health import Health, HealthState
from heddle.engine.loop import EngineLoop
from heddle.engine.observation.snapshot import take_snapshot
from heddle.engine.observation.watchdog import Watchdog
from heddle.thread_priority import lower_priority

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.cache.cache import PrefixCacheStats
    from heddle.config import EngineConfig
    from heddle.engine.observation.activity import Beat
    from heddle.engine.observation.telemetry import EngineSnapshot
    from heddle.engine.requests.interrupted import Interrupted
    from heddle.engine.requests.request import Request
    from heddle.engine.turns import Turns
    from heddle.loading.loaded_model import LoadedModel

T = TypeVar("T")

_log = logging.getLogger(__name__)

_NICENESS = 5
"""Niceness of an engine thread that computes, as of the native compute threads. `lower_priority`
has the reason."""


class EngineThread:
    """Runs accepted requests until they end. Starts at once; closes the model when it ends.

    It must not refer to its `Engine`, not even indirectly: such a reference would keep a dropped
    engine alive. A dropped engine stops the thread.

    Attributes:
        cancels: requests to end.
        gate: says whether the engine accepts requests.
        wake: wakes this thread. Any thread may call it.
        observe: calls an observer from now on; see `Delivery.observe`.
        accept: queues requests; see `Admission.accept`.
        go_on: queues the requests of an engine that has failed; see `Admission.go_on`.
        change_limits: changes limits of the queue and of clients; see `Admission.change_limits`.
        check_length: raises ContextLengthError if a prompt is too long; see `Room.check_length`.
        longest: most tokens of a request, prompt and output.
        rescues: leaves requests to another engine, as those of this one; see `EngineLoop.rescues`.
    """

    def __init__(
        self, model: LoadedModel, config: EngineConfig, turns: Turns | None = None
    ) -> None:
        """Raises ConfigError if the prefix cache's directory cannot be used."""
        self._loop = loop = EngineLoop(model, config, turns)
        self._model, self.gate, self._lock = model, loop.gate, loop.gate.lock
        self.cancels = loop.cancels
        self.wake = loop.wakeup.notify
        self.observe = loop.delivery.observe
        self.accept, self.go_on = loop.admission.accept, loop.admission.go_on
        self.change_limits = loop.admission.change_limits
        self.check_length, self.longest = loop.scheduler.check_length, loop.scheduler.longest
        self.rescues = loop.rescues
        # A daemon thread, so that a program can end without closing its engine.
        self._thread = threading.Thread(target=self._run, name="heddle-engine", daemon=True)
        self._over = Future[None]()  # done: the engine has ended, or its thread was left behind
        self._watchdog = Watchdog(
            loop.heartbeat, self._thread, model.info.id, config.watchdog, report=self._give_up_step
        )
        self._thread.start()
        _started.add(self)

    def _run(self) -> None:
        if not self._model.executor.runs_ahead:
            lower_priority(threading.get_native_id(), _NICENESS)
        try:
            self._loop.run(self._watchdog.stop)
        finally:
            if not self._loop.heartbeat.left_behind:
                self._over.set_result(None)

    def when_ended(self, call: Callable[[], None]) -> None:
        """Call `call` when the engine has freed the model, for whatever reason, or now if it has.

        `call` must not refer to the engine.
        """
        self._over.add_done_callback(lambda _: call())

    def _give_up_step(self, beat: Beat, seconds: float, lost: bool) -> None:
        """Give up a step that hangs; see `EngineLoop.give_up_step`.

        A process leaves at most one thread behind: its memory cannot be freed. The next one stays,
        and `health` says that only a new process helps.
        """
        if lost and any(thread.is_alive() for thread in _left_behind):
            _log.error("another thread was left behind already, so this engine is not replaced")
        elif self._loop.give_up_step(beat, seconds, lost=lost):
            _left_behind[:] = [self._thread]
            self._watchdog.stop()
            self._over.set_result(None)

    def _wait(self) -> None:
        """Wait until the engine has ended."""
        self._over.result()
        if not self._loop.heartbeat.left_behind:
            self._thread.join()

    @property
    def health(self) -> Health:
        """Whether the engine serves requests, and why not. Takes no lock."""
        if self.gate.poison is not None:
            return Health(HealthState.POISONED, self.gate.poison)
        if self.gate.closed:
            return Health(HealthState.CLOSED, live=not self._watchdog.lost)
        if not self._thread.is_alive():
            return Health(HealthState.STUCK, live=False)
        if self._watchdog.stuck:
            return Health(HealthState.STUCK, live=not self._watchdog.lost)
        return Health(HealthState.OK)

    def leave_requests_to(self, rescue: Callable[[Interrupted], bool]) -> None:
        """If the engine fails, let `rescue` have its requests; see `EngineLoop.rescue`.

        `rescue` must not refer to the engine.
        """
        self._loop.rescue = rescue

    def resume(self, request: Request) -> None:
        """Let a driven sequence compute its next token. Raises as `accept`."""
        with self.gate.accepting():
            request.last_token_at = time.perf_counter()
            self._loop.scheduler.resume(request.sequence)
            self._loop.wakeup.notify()

    def leave(self, rescue: Callable[[Interrupted], bool]) -> None:
        """End after the step in flight, and let `rescue` have the requests. See `stop`."""
        with self._lock:
            self._loop.rescue, self.gate.leaves = rescue, True
        self.stop(drain=False, abandon=False)

    def stop(self, *, drain: bool, abandon: bool = True) -> None:
        """Accept no more requests, end the accepted ones, and wait until the thread has ended.

        With `drain`, accepted requests finish first. Without it, the executor abandons the step in
        flight, because a step may take a minute; unless `abandon` is False.

        If a sink or an observer calls this, it returns at once: this thread runs them.
        """
        if self.gate.forked:
            return
        with self._lock:
            self.gate.close(drain=drain)
            self._loop.wakeup.notify()
            if not self.gate.drain:
                if abandon:
                    self._model.abandon()
                if self._loop.turn is not None:
                    self._loop.turn.withdraw()
        if threading.current_thread() is not self._thread:
            self._wait()

    def stop_later(self) -> None:
        """Finish the accepted requests, then end: the engine was dropped. Returns at once.

        Takes no lock: garbage collection calls this in any thread, even in one that holds the lock.
        """
        if not (self.gate.forked or self.gate.closed):
            start_new_thread(self.stop, (), {"drain": True})

    def snapshot(self) -> EngineSnapshot:
        """Slots, queue, pages and totals. Takes no lock."""
        return take_snapshot(
            self._loop.scheduler,
            self._loop.speculator,
            self._loop.cache,
            self._loop.delivery.counters,
            self._loop.activity,
            self._loop.slowness,
            draining=self.cancels.pending(),
            compute_seconds=self._model.executor.compute_seconds,
        )

    def prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Figures of the prefix cache at one moment; None if another thread holds the lock."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._loop.cache.stats()
        finally:
            self._lock.release()

    def call(self, function: Callable[[EngineLoop], T]) -> T:
        """Let the engine thread call `function` while no step is in flight. Returns its result.

        Raises as `accept`, and what the function raises. A sink must not call this.
        """
        return self.call_later(function).result()

    def call_later(self, function: Callable[[EngineLoop], T]) -> Future[T]:
        """As `call`, but return the future of the result at once. Raises as `accept`."""
        with self.gate.accepting():
            return self._loop.calls.add(partial(function, self._loop))

    def set_prefix_cache(self, enabled: bool) -> None:
        """Switch the prefix cache on, or off and drop all prefixes. Raises as `accept`."""
        with self.gate.accepting():
            self._loop.cache.set_enabled(enabled)

    def set_batch_window(self, microseconds: int) -> None:
        """Change how long a step waits for callers of driven sequences. Raises as `accept`."""
        with self.gate.accepting():
            self._loop.batch_window_us = microseconds

    def flush_prefix_cache(self) -> None:
        """Drop all prefixes. Raises as `accept`."""
        with self.gate.accepting():
            self._loop.cache.flush()


_left_behind: list[threading.Thread] = []
"""The thread that hung and was replaced, if there was one. Perhaps it has ended since."""
_started: WeakSet[EngineThread] = WeakSet()
"""Engine threads that may still run."""


@atexit.register
def _stop_all() -> None:
    """Stop all engine threads: no such thread may run while the interpreter shuts down."""
    for thread in list(_started):
        thread.stop(drain=False)
