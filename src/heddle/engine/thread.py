"""The engine thread: it owns scheduler, cache and executor, and turns steps into deltas.

Callers submit requests under a lock. The thread holds the lock while it plans a step and while it
applies a result, never while a step computes. It makes text, looks for stop strings and calls sinks
without the lock, so a sink may submit and cancel. Nothing polls: without work the thread waits for
a notification (`wakeup.py`).
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from _thread import start_new_thread
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from heddle.cache.manager import CacheManager
from heddle.disk.tier import PATIENCE
from heddle.engine.activity import Activity
from heddle.engine.admission import Admission
from heddle.engine.delivery import Delivery
from heddle.engine.disk import open_disk_tier
from heddle.engine.drafters import draft_model, drafters
from heddle.engine.gate import Gate
from heddle.engine.health import Health, HealthState, Poison, poison_of
from heddle.engine.patience import Patience
from heddle.engine.slowness import Slowness
from heddle.engine.snapshot import take_snapshot
from heddle.engine.wakeup import Cancels, Wakeup
from heddle.engine.watchdog import Heartbeat, Phase, Watchdog, step_allowance
from heddle.errors import (
    EngineClosedError,
    EngineFailedError,
    HeddleError,
    ModelPoisonedError,
    QueueTimeoutError,
    StepAbandonedError,
)
from heddle.parameters import Speculation
from heddle.scheduler.pace import Pace
from heddle.scheduler.scheduler import Scheduler
from heddle.scheduler.speculation import Speculator
from heddle.step import Deferred
from heddle.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.cache.manager import PrefixCacheStats
    from heddle.config import EngineConfig
    from heddle.drafting.follower import Follower
    from heddle.engine.loading import LoadedModel
    from heddle.engine.request import Request
    from heddle.engine.telemetry import EngineSnapshot, Observer
    from heddle.engine.turns import Turns
    from heddle.scheduler.sequence import Sequence
    from heddle.step import StepPlan

_log = logging.getLogger(__name__)


class EngineThread:
    """Runs accepted requests until they end. Starts at once; closes the model when it ends.

    It must not refer to its `Engine`, not even indirectly: such a reference would keep a dropped
    engine alive. A dropped engine stops the thread.

    Attributes:
        cancels: requests to end.
        to_wake: mailboxes with new deltas. Only this thread uses it.
        when_ended: called by this thread when it has freed the model, for whatever reason it ends.
    """

    def __init__(
        self, model: LoadedModel, config: EngineConfig, turns: Turns | None = None
    ) -> None:
        """Raises ConfigError if the prefix cache's directory cannot be used."""
        self._model = model
        self._gate = Gate()
        self._lock = self._gate.lock
        self._wakeup = Wakeup()
        self._cache = CacheManager(
            model.executor.memory,
            enabled=config.prefix_cache,
            most_nodes=config.prefix_cache_nodes,
            disk=open_disk_tier(model, config, self._wakeup.notify),
        )
        self._pace = Pace(config.max_gap_ms / 1e3 or None)
        self._draft = draft_model(model, config)
        self._speculator = Speculator(
            drafters(self._draft),
            self._pace,
            Speculation.MOST,
            default=config.speculation == "auto",
        )
        self._scheduler = Scheduler(
            config.slots,
            config.batch_tokens,
            config.queue,
            self._cache,
            model.shape.context,
            self._pace,
            model.executor.work.score_cost,
            speculator=self._speculator,
            whole_prompts=not model.shape.causal,
        )
        self._admission = Admission(config)
        self._window = config.batch_window_us / 1e6
        self._turn = turns.turn() if turns is not None else None
        # Guarded by the lock:
        self._patience = Patience(config.queue_timeout)
        self._accepted = 0  # requests whose `on_submit` is still to be called
        # Used by this thread only:
        self._last_driven: list[Sequence] = []  # driven sequences that got a token last step
        self._step_number = 0  # of the next step, or of the step in flight
        self._heartbeat = Heartbeat()
        self._activity = Activity(config.slots)
        self._slowness = Slowness(model.info.id)
        self.when_ended: Callable[[], None] | None = None
        # Safe without the lock:
        self.cancels = Cancels(self._wakeup)
        self._delivery = Delivery(self.cancels, self._leave_scheduler, self._admission.end)
        self.to_wake = self._delivery.to_wake
        # A daemon thread, so that a program can end without closing its engine.
        self._thread = threading.Thread(target=self._run, name="heddle-engine", daemon=True)
        self._watchdog = Watchdog(self._heartbeat, self._thread, model.info.id, config.watchdog)
        self._thread.start()
        _started.add(self)

    # --- from any thread -------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the engine accepts no more requests."""
        return self._gate.closed

    @property
    def health(self) -> Health:
        """Whether the engine serves requests, and why not. Takes no lock."""
        if self._gate.poison is not None:
            return Health(HealthState.POISONED, self._gate.poison)
        if self.closed:
            return Health(HealthState.CLOSED, live=not self._watchdog.lost)
        if not self._thread.is_alive():
            return Health(HealthState.STUCK, live=False)
        if self._watchdog.stuck:
            return Health(HealthState.STUCK, live=not self._watchdog.lost)
        return Health(HealthState.OK)

    def accept(self, requests: list[Request]) -> None:
        """Queue the requests, all or none.

        Raises:
            ContextLengthError, OverloadedError, InvalidRequestError: see `Scheduler.add`.
            OutOfMemoryError, ClientLimitError: see `Admission.check`.
            InvalidRequestError: a request asks for a drafter that this engine does not have.
            EngineClosedError, ModelPoisonedError: the thread ends or has ended, or it runs in the
                parent process of this fork.
        """
        with self._gate.accepting():
            sequences = [request.sequence for request in requests]
            for sequence in sequences:
                self._speculator.check(sequence)
            self._admission.check(sequences)
            self._scheduler.add(*sequences)
            self._admission.begin(sequences)
            for request in requests:
                self._delivery.requests[request.sequence.id] = request
            self._patience.begin(requests)
            self._accepted += len(requests)
            self._wakeup.notify()

    def resume(self, request: Request) -> None:
        """Let a driven sequence compute its next token. Raises as `accept`."""
        with self._gate.accepting():
            request.last_token_at = time.perf_counter()
            self._scheduler.resume(request.sequence)
            self._wakeup.notify()

    def check_length(self, tokens: int, *, output: bool = True) -> None:
        """Raise ContextLengthError if a prompt of `tokens` tokens is too long."""
        self._scheduler.check_length(tokens, output=output)

    def observe(self, observer: Observer) -> None:
        """Call `observer` from now on."""
        self._delivery.observe(observer)

    def stop(self, *, drain: bool) -> None:
        """Accept no more requests, end the accepted ones, and wait until the thread has ended.

        With `drain`, accepted requests finish first. Without it, the executor abandons the step in
        flight: a step may take a minute.

        If a sink or an observer calls this, it returns at once: this thread runs them.
        """
        if self._gate.forked:
            return
        with self._lock:
            self._gate.close(drain=drain)
            self._wakeup.notify()
            if not self._gate.drain:
                self._model.executor.abandon()
                if self._turn is not None:
                    self._turn.withdraw()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def stop_later(self) -> None:
        """Finish the accepted requests, then end: the engine was dropped. Returns at once.

        Takes no lock: garbage collection calls this in any thread, even in one that holds the lock.
        """
        if not (self._gate.forked or self.closed):
            start_new_thread(self.stop, (), {"drain": True})

    def snapshot(self) -> EngineSnapshot:
        """Slots, queue, pages and totals. Takes no lock."""
        return take_snapshot(
            self._scheduler,
            self._speculator,
            self._cache,
            self._delivery.counters,
            self._activity,
            self._slowness,
            draining=self.cancels.pending(),
            compute_seconds=self._model.executor.compute_seconds,
        )

    def prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Figures of the prefix cache at one moment; None if another thread holds the lock."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._cache.stats()
        finally:
            self._lock.release()

    def set_prefix_cache(self, enabled: bool) -> None:
        """Switch the prefix cache on, or off and drop all prefixes. Raises as `accept`."""
        with self._gate.accepting():
            self._cache.set_enabled(enabled)

    def flush_prefix_cache(self) -> None:
        """Drop all prefixes. Raises as `accept`."""
        with self._gate.accepting():
            self._cache.flush()

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        error: HeddleError = EngineClosedError("the engine was closed before the request finished")
        try:
            while self._step():
                self._give_turn()  # again, after a step that failed or computed nothing
        except ModelPoisonedError as poisoned:
            error = poisoned
        except BaseException as cause:
            _log.exception("the engine thread ends")
            running = [one for one in self._scheduler.slots if one is not None and not one.ended]
            error = self._fail(running, Poison(f"the engine failed: {cause}"))
        finally:
            self._give_turn()
            self._watchdog.stop()
            self._end_all(error)
            self._close(keep=isinstance(error, EngineClosedError))
            if self.when_ended is not None:
                self.when_ended()

    def _close(self, *, keep: bool) -> None:
        """Release all slots and pages, and close cache and model.

        With `keep`, the disk tier saves pages for the next start. A poisoned engine saves none: the
        failed step may have left wrong pages. Files that the disk tier wrote before stay, because
        steps that succeeded computed their pages.
        """
        for close in (self._release_all, partial(self._cache.close, keep=keep)):
            try:
                close()  # the cache without the lock: it takes seconds
            except Exception:
                _log.exception("the prefix cache was not closed properly")
        self._model.close()
        if self._draft is not None:
            self._draft.close()

    def _release_all(self) -> None:
        with self._lock:
            self._scheduler.cancel_all()

    def _step(self) -> bool:
        """Wait for work, run a step, deliver the step before. Returns False if the engine ends."""
        if self._draft is not None and any(self._scheduler.slots):
            self._advance(self._draft)
        self._enter(Phase.PLANNING)
        with self._lock:
            self._take_cancels()
            while not (self._scheduler.busy or self._delivery.pending or self.closed):
                self._wait(Phase.IDLE)
                self._take_cancels()
            self._wait_for_callers()
            self._take_turn()
            if self._gate.closed and not (self._gate.drain and self._scheduler.busy):
                return False
            began = time.perf_counter()
            self._end_waits()
            self._activity.begin(began)
            plan = self._scheduler.schedule()
            stuck = not (plan.chunks or self._accepted or self._delivery.pending)
            if stuck:
                # All wait for the disk or a mask. Both notify this thread. The timeout is for a
                # disk that does not answer: the next `schedule` stops waiting for it.
                self._activity.end(time.perf_counter())
                self._give_turn()
                self._wait(Phase.WAITING, PATIENCE)
            else:
                accepted, self._accepted = self._accepted, 0
        if stuck:
            self._look_for_slowness(computing=False)
            return True
        for _ in range(accepted):
            self._delivery.notify("on_submit")
        if plan.chunks:
            self._execute(plan)
        else:
            self._deliver()
        ended = time.perf_counter()
        self._delivery.counters.step_seconds += ended - began
        self._activity.end(ended)
        return True

    def _advance(self, draft: Follower[Any]) -> None:
        """Let the draft model or the prediction head guess, in this thread, without the lock."""
        if self._turn is not None:
            self._turn.take()
        self._enter(Phase.COMPUTING)
        draft.advance(self._scheduler.slots, self._speculator)
        self._give_turn()

    def _wait(self, phase: Phase, timeout: float | None = None) -> None:
        """Release the lock until a caller, the disk tier or a late mask notifies this thread."""
        self._enter(phase)
        self._lock.release()
        try:
            self._wakeup.wait(timeout)
        finally:
            self._lock.acquire()
            self._enter(Phase.PLANNING)

    def _enter(self, phase: Phase, allowance: float = 0.0) -> None:
        """Tell the watchdog what the thread does from now on."""
        self._heartbeat.enter(phase, self._step_number, allowance)

    def _wait_for_callers(self) -> None:
        """Wait briefly until callers of driven sequences ask again, so that they share one step.

        The thread waits only for callers that got a token from the last step. So it waits at most
        once for a caller that does not ask again, and a single caller waits for nobody else.
        """
        until = time.perf_counter() + self._window
        while any(sequence.paused and not sequence.ended for sequence in self._last_driven):
            left = until - time.perf_counter()
            if left <= 0.0 or self.closed:
                break
            self._wait(Phase.WAITING, left)
            self._take_cancels()

    def _take_turn(self) -> None:
        """Wait for the turn to compute, if other engines share the cores. Needs the lock.

        The wait releases the lock. Tokens of the last step do not wait for other engines.
        """
        if self._turn is None or not self._scheduler.busy or self._turn.take_now():
            return
        self._lock.release()
        try:
            self._deliver()
            self._enter(Phase.TURN)
            self._turn.take()
        finally:
            self._lock.acquire()
            self._enter(Phase.PLANNING)
        self._take_cancels()

    def _give_turn(self) -> None:
        if self._turn is not None:
            self._turn.give()

    def _take_cancels(self) -> None:
        for request_id in self.cancels.take():
            if self._scheduler.cancel(request_id):
                self._delivery.cancelled.append((self._delivery.requests[request_id], None))

    def _end_waits(self) -> None:
        """Cancel the requests that have waited too long for their first slot."""
        for request in self._patience.overdue():
            self._scheduler.cancel(request.sequence.id)
            error = QueueTimeoutError(
                f"the request waited {self._patience.seconds} s for a slot (queue_timeout); it did"
                " not run. Try again later",
                retry_after=self._scheduler.seconds_until(1),
            )
            self._delivery.cancelled.append((request, error))

    def _execute(self, plan: StepPlan) -> None:
        began = time.perf_counter()
        for binding in plan.bindings:
            sequence = self._scheduler.slots[binding.slot]
            assert sequence is not None, "a binding is of a sequence with a slot"
            self._delivery.note_start(sequence, began)
        allowance = step_allowance(plan, self._pace)
        self._enter(Phase.COMPUTING, allowance)
        try:
            if self._draft is not None:
                plan = self._draft.ask(plan, self._scheduler.slots, self._speculator)
            self._model.executor.submit(plan)
            try:
                self._activity.note_plan(plan, self._scheduler.slots)
                self._deliver()
                self._look_for_slowness(computing=True)
            finally:  # no page may change its owner before the step ends
                self._enter(Phase.COMPUTING, allowance)
                result = self._model.executor.collect()
                self._give_turn()
        except StepAbandonedError:  # all requests end with the engine
            with self._lock:
                self._scheduler.abandon()
            return
        except Exception as cause:
            self._deliver()  # in case `submit` failed, before the delivery above
            raise self._fail_step(plan, cause) from cause
        if self._draft is not None:
            self._draft.note(result)
        self._step_number += 1
        self._enter(Phase.DELIVERING)
        self._delivery.computed_at = computed_at = time.perf_counter()
        with self._lock:
            self._take_cancels()
            events = self._scheduler.update(result, computed_at - began)
        self._activity.note_result(result.sampled, computed_at)
        self._slowness.note_step(computed_at - began, self._activity.latest)
        for outcome in result.sampled:
            if isinstance(outcome, Deferred):
                outcome.ready.add_done_callback(lambda _: self._wakeup.notify())
        self._delivery.events = [event for event in events if not event.sequence.driven]
        driven = [event for event in events if event.sequence.driven]
        # At once, so that the callers can ask before the next step:
        self._delivery.deliver_tokens(driven)
        self._last_driven = [event.sequence for event in driven]

    def _look_for_slowness(self, *, computing: bool) -> None:
        """Warn of requests that wait and of steps that last. No step may wait for this."""
        step = self._activity.latest if computing else None
        reason_of = self._scheduler.wait_reason
        self._slowness.look(time.perf_counter(), self._delivery.requests, step, reason_of)

    def _deliver(self) -> None:
        """Deliver all events of the last step and the ends of cancelled requests.

        The thread does this while the next step computes, if there is one. A woken event loop uses
        the core of the thread that woke it. With delivery between two steps, compute threads were
        idle for 0.3 ms of each 6.5 ms (two cores, eight streams over HTTP).
        """
        self._enter(Phase.DELIVERING)
        self._delivery.deliver()

    def _fail_step(self, plan: StepPlan, cause: Exception) -> ModelPoisonedError:
        """Poison the engine: end the requests of the failed step, and accept no more.

        Returns the error that the queued and all later requests get.
        """
        requests = {one.slot: one.id for one in self._scheduler.slots if one is not None}
        poison = poison_of(self._step_number, plan, requests, self._model.executor, cause)
        with self._lock:
            failed = self._scheduler.abandon()
        labels = ", ".join(self._delivery.requests[sequence.id].label for sequence in failed)
        _log.error("%s; failed requests: %s", poison, labels or "none", exc_info=cause)
        return self._fail(failed, poison)

    def _fail(self, sequences: list[Sequence], poison: Poison) -> ModelPoisonedError:
        """Accept no more requests, and end the requests of these sequences."""
        refusal = ModelPoisonedError(
            f"the model {self._model.info.id} is poisoned: {poison.reason}. Unload it and load it"
            " again (POST /models/unload, then POST /models/load), or restart the program"
        )
        with self._lock:
            self._gate.poison = poison
            self._gate.refusal = refusal
        error = EngineFailedError(f"the request failed: {poison.reason}")
        for sequence in sequences:
            if sequence.id in self._delivery.requests:
                request = self._delivery.requests[sequence.id]
                self._delivery.end(request, FinishReason.ERROR, error=error)
        return refusal

    def _leave_scheduler(self, request_id: int) -> None:
        with self._lock:
            self._scheduler.cancel(request_id)

    def _end_all(self, error: HeddleError) -> None:
        """Accept no more requests, and end all accepted ones with `error`."""
        with self._lock:
            self._gate.refuse(error)
        self._enter(Phase.DELIVERING)
        self._delivery.end_all(error)


_started: WeakSet[EngineThread] = WeakSet()
"""Engine threads that may still run."""


@atexit.register
def _stop_all() -> None:
    """Stop all engine threads: no such thread may run while the interpreter shuts down."""
    for thread in list(_started):
        thread.stop(drain=False)
