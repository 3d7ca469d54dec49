"""The engine thread: it owns scheduler, cache and executor, and turns steps into deltas.

Callers submit requests under a lock. The thread holds the lock while it plans a step and while it
applies a result, never while a step computes. It makes text, looks for stop strings and calls sinks
without the lock, so a sink may submit and cancel. Nothing polls: without work the thread waits for
a notification (`wakeup.py`).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from _thread import start_new_thread
from collections import deque
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

from heddle.cache.manager import CacheManager
from heddle.disk.tier import PATIENCE
from heddle.engine.activity import Activity
from heddle.engine.admission import Admission
from heddle.engine.disk import open_disk_tier
from heddle.engine.drafters import draft_model, drafters
from heddle.engine.health import Health, HealthState, Poison, poison_of
from heddle.engine.slowness import Slowness
from heddle.engine.telemetry import ActivitySnapshot, Counters, EngineSnapshot, SlotSnapshot
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
from heddle.scheduler.sequence import SlotState
from heddle.scheduler.speculation import Speculator
from heddle.step import Deferred, Failed, Pooled, Sampled, Scored
from heddle.types import Delta, FinishReason, TokenLogprob

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator

    from heddle.cache.manager import PrefixCacheStats
    from heddle.config import EngineConfig
    from heddle.drafting.model import DraftModel
    from heddle.engine.loading import LoadedModel
    from heddle.engine.request import Request
    from heddle.engine.streams import Mailbox
    from heddle.engine.telemetry import Observer
    from heddle.engine.turns import Turns
    from heddle.scheduler.outcomes import TokenEvent
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
        self._lock = threading.Lock()
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
        self._queue_timeout = config.queue_timeout
        self._window = config.batch_window_us / 1e6
        self._turn = turns.turn() if turns is not None else None
        self._pid = os.getpid()
        # Guarded by the lock:
        self._requests: dict[int, Request] = {}
        self._waiting: deque[Request] = deque()  # in order of arrival; only with a queue timeout
        self._accepted = 0  # requests whose `on_submit` is still to be called
        self._refusal: HeddleError | None = None  # why the engine accepts no more requests
        self._poison: Poison | None = None  # the failure that ended the engine
        self._drain = False
        # Used by this thread only:
        self._events: list[TokenEvent] = []  # still to be delivered
        self._computed_at = 0.0  # when the step of these events was collected
        self._last_driven: list[Sequence] = []  # driven sequences that got a token last step
        # Cancelled requests whose last delta is still to be sent, and their errors:
        self._cancelled: list[tuple[Request, HeddleError | None]] = []
        self._step_number = 0  # of the next step, or of the step in flight
        self._heartbeat = Heartbeat()
        self._counters = Counters()
        self._activity = Activity(config.slots)
        self._slowness = Slowness(model.info.id)
        self.to_wake: list[Mailbox] = []
        self.when_ended: Callable[[], None] | None = None
        # Safe without the lock:
        self.cancels = Cancels(self._wakeup)
        self._observers: tuple[Observer, ...] = ()
        # A daemon thread, so that a program can end without closing its engine.
        self._thread = threading.Thread(target=self._run, name="heddle-engine", daemon=True)
        self._watchdog = Watchdog(self._heartbeat, self._thread, model.info.id, config.watchdog)
        self._thread.start()
        _started.add(self)

    # --- from any thread -------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the engine accepts no more requests."""
        return self._refusal is not None

    @property
    def health(self) -> Health:
        """Whether the engine serves requests, and why not. Takes no lock."""
        if self._poison is not None:
            return Health(HealthState.POISONED, self._poison)
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
        with self._accepting():
            sequences = [request.sequence for request in requests]
            for sequence in sequences:
                self._speculator.check(sequence)
            self._admission.check(sequences)
            self._scheduler.add(*sequences)
            self._admission.begin(sequences)
            for request in requests:
                self._requests[request.sequence.id] = request
            if self._queue_timeout:
                self._waiting += requests
            self._accepted += len(requests)
            self._wakeup.notify()

    def resume(self, request: Request) -> None:
        """Let a driven sequence compute its next token. Raises as `accept`."""
        with self._accepting():
            request.last_token_at = time.perf_counter()
            self._scheduler.resume(request.sequence)
            self._wakeup.notify()

    def check_length(self, tokens: int, *, output: bool = True) -> None:
        """Raise ContextLengthError if a prompt of `tokens` tokens is too long."""
        self._scheduler.check_length(tokens, output=output)

    def observe(self, observer: Observer) -> None:
        """Call `observer` from now on."""
        self._observers += (observer,)

    def stop(self, *, drain: bool) -> None:
        """Accept no more requests, end the accepted ones, and wait until the thread has ended.

        With `drain`, accepted requests finish first. Without it, the executor abandons the step in
        flight: a step may take a minute.

        If a sink or an observer calls this, it returns at once: this thread runs them.
        """
        if self._pid != os.getpid():
            return  # a fork has no engine thread, and its copy of the lock may be locked for ever
        with self._lock:
            self._drain = drain and (self._refusal is None or self._drain)
            if self._refusal is None:
                self._refusal = EngineClosedError("the engine is closed")
            self._wakeup.notify()
            if not self._drain:
                self._model.executor.abandon()
                if self._turn is not None:
                    self._turn.withdraw()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def stop_later(self) -> None:
        """Finish the accepted requests, then end: the engine was dropped. Returns at once.

        Takes no lock: garbage collection calls this in any thread, even in one that holds the lock.
        """
        if self._pid == os.getpid() and not self.closed:
            start_new_thread(self.stop, (), {"drain": True})

    def snapshot(self) -> EngineSnapshot:
        """Slots, queue, pages and totals. Takes no lock."""
        cancelled = self.cancels.pending()
        activity, now = self._activity, time.perf_counter()
        in_step = {} if activity.latest is None else activity.latest.tokens
        slots = []
        for index, sequence in enumerate(self._scheduler.slots):
            if sequence is None:
                slots.append(SlotSnapshot(index))
                continue
            draining = sequence.id in cancelled
            slots.append(
                SlotSnapshot(
                    index=index,
                    state=SlotState.DRAINING if draining else sequence.state,
                    request=sequence.id,
                    prompt_tokens=sequence.prompt_tokens,
                    computed=sequence.computed,
                    generated_tokens=sequence.output_tokens,
                    cached_tokens=sequence.cached_tokens or 0,
                    step_tokens=in_step.get(index, 0),
                    tokens_per_second=activity.slot_rate(index, now),
                )
            )
        return EngineSnapshot(
            slots=tuple(slots),
            running=sum(slot.request is not None for slot in slots),
            queue_depth=self._scheduler.waiting,
            finished=dict(self._counters.finished),
            prompt_tokens=self._counters.prompt_tokens,
            computed_prompt_tokens=self._scheduler.computed_prompt_tokens,
            generated_tokens=self._counters.generated_tokens,
            preemptions=self._scheduler.preemptions,
            drafted_tokens=self._speculator.drafted,
            accepted_tokens=self._speculator.accepted,
            pages_used=self._cache.pages - self._cache.available,
            pages_total=self._cache.pages,
            steps=sum(activity.steps.values()),
            step_seconds=self._counters.step_seconds,
            compute_seconds=self._model.executor.compute_seconds,
            prefix_cache=self._cache.stats(),
            activity=ActivitySnapshot.of(activity, self._slowness, now),
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
        with self._accepting():
            self._cache.set_enabled(enabled)

    def flush_prefix_cache(self) -> None:
        """Drop all prefixes. Raises as `accept`."""
        with self._accepting():
            self._cache.flush()

    @contextmanager
    def _accepting(self) -> Iterator[None]:
        """Hold the lock. If the engine accepts no more requests, raise the reason instead."""
        if self._pid != os.getpid():  # first: the fork's copy of the lock may be locked
            raise EngineClosedError(
                "this process is a fork, and a fork has no engine thread. Load an engine in each"
                " process, or spawn processes"
            )
        with self._lock:
            if self._refusal is not None:
                raise type(self._refusal)(self._refusal.message)
            yield

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
            while not (self._scheduler.busy or self._events or self._cancelled or self._refusal):
                self._wait(Phase.IDLE)
                self._take_cancels()
            self._wait_for_callers()
            self._take_turn()
            if self._refusal is not None and not (self._drain and self._scheduler.busy):
                return False
            began = time.perf_counter()
            if self._waiting:
                self._end_waits()
            self._activity.begin(began)
            plan = self._scheduler.schedule()
            stuck = not (plan.chunks or self._accepted or self._events or self._cancelled)
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
            self._notify("on_submit")
        if plan.chunks:
            self._execute(plan)
        else:
            self._deliver()
        ended = time.perf_counter()
        self._counters.step_seconds += ended - began
        self._activity.end(ended)
        return True

    def _advance(self, draft: DraftModel) -> None:
        """Let the draft model guess. It computes in this thread, without the lock."""
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
            if left <= 0.0 or self._refusal is not None:
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
                self._cancelled.append((self._requests[request_id], None))

    def _end_waits(self) -> None:
        """Cancel the requests that have waited too long for their first slot."""
        oldest = time.perf_counter() - self._queue_timeout
        while self._waiting:
            request = self._waiting[0]
            sequence = request.sequence
            waits = sequence.slot < 0 and sequence.cached_tokens is None and not sequence.ended
            if waits and request.last_token_at > oldest:
                break
            self._waiting.popleft()
            if waits:
                self._scheduler.cancel(sequence.id)
                error = QueueTimeoutError(
                    f"the request waited {self._queue_timeout} s for a slot (queue_timeout); it did"
                    " not run. Try again later",
                    retry_after=self._scheduler.seconds_until(1),
                )
                self._cancelled.append((request, error))

    def _execute(self, plan: StepPlan) -> None:
        began = time.perf_counter()
        for binding in plan.bindings:
            self._note_first_step(binding.slot, began)
        allowance = step_allowance(plan, self._pace)
        self._enter(Phase.COMPUTING, allowance)
        try:
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
        self._step_number += 1
        self._enter(Phase.DELIVERING)
        self._computed_at = time.perf_counter()
        with self._lock:
            self._take_cancels()
            events = self._scheduler.update(result, self._computed_at - began)
        self._activity.note_result(result.sampled, self._computed_at)
        self._slowness.note_step(self._computed_at - began, self._activity.latest)
        for outcome in result.sampled:
            if isinstance(outcome, Deferred):
                outcome.ready.add_done_callback(lambda _: self._wakeup.notify())
        self._events = [event for event in events if not event.sequence.driven]
        driven = [event for event in events if event.sequence.driven]
        self._deliver_tokens(driven)  # at once, so that their callers can ask before the next step
        self._last_driven = [event.sequence for event in driven]

    def _note_first_step(self, slot: int, began: float) -> None:
        """Note when the first step of a request began.

        The scheduler binds a preempted sequence again; its request keeps the first time.
        """
        sequence = self._scheduler.slots[slot]
        assert sequence is not None, f"slot {slot} is bound without a sequence"
        request = self._requests[sequence.id]
        if not request.first_step_at:
            request.first_step_at = began
            self._notify("on_start", began - request.submitted_at)

    def _look_for_slowness(self, *, computing: bool) -> None:
        """Warn of requests that wait and of steps that last. No step may wait for this."""
        step = self._activity.latest if computing else None
        reason_of = self._scheduler.wait_reason
        self._slowness.look(time.perf_counter(), self._requests, step, reason_of)

    def _deliver(self) -> None:
        """Deliver all events of the last step and the ends of cancelled requests.

        The thread does this while the next step computes, if there is one. A woken event loop uses
        the core of the thread that woke it. With delivery between two steps, compute threads were
        idle for 0.3 ms of each 6.5 ms (two cores, eight streams over HTTP).
        """
        self._enter(Phase.DELIVERING)
        events, self._events = self._events, []
        self._deliver_tokens(events)
        self._end_cancelled()
        self._wake_loops()

    def _deliver_tokens(self, events: list[TokenEvent]) -> None:
        for event in events:
            if event.sequence.id not in self._requests:
                continue  # an earlier token of the same step completed a stop string
            try:
                self._deliver_event(event)
            except Exception as cause:
                self._fail_request(event.sequence.id, cause)

    def _fail_step(self, plan: StepPlan, cause: Exception) -> ModelPoisonedError:
        """Poison the engine: end the requests of the failed step, and accept no more.

        Returns the error that the queued and all later requests get.
        """
        requests = {one.slot: one.id for one in self._scheduler.slots if one is not None}
        poison = poison_of(self._step_number, plan, requests, self._model.executor, cause)
        with self._lock:
            failed = self._scheduler.abandon()
        labels = ", ".join(self._requests[sequence.id].label for sequence in failed)
        _log.error("%s; failed requests: %s", poison, labels or "none", exc_info=cause)
        return self._fail(failed, poison)

    def _fail(self, sequences: list[Sequence], poison: Poison) -> ModelPoisonedError:
        """Accept no more requests, and end the requests of these sequences."""
        refusal = ModelPoisonedError(
            f"the model {self._model.info.id} is poisoned: {poison.reason}. Unload it and load it"
            " again (POST /models/unload, then POST /models/load), or restart the program"
        )
        with self._lock:
            self._poison = poison
            self._refusal = refusal
        error = EngineFailedError(f"the request failed: {poison.reason}")
        for sequence in sequences:
            if sequence.id in self._requests:
                self._end(self._requests[sequence.id], FinishReason.ERROR, error=error)
        return refusal

    def _deliver_event(self, event: TokenEvent) -> None:
        """Send the outcome of a sequence to the sink of its request."""
        sequence, outcome, finish = event
        request = self._requests[sequence.id]
        match outcome:
            case Sampled():
                self._deliver_token(request, outcome, finish)
            case Scored():
                self._emit(request, Delta(prompt_logprobs=request.prompt_logprobs(outcome)))
            case Pooled():
                self._count_prompt(request)
                self._end(request, FinishReason.STOP, embedding=outcome.vector)
            case None:
                self._count_prompt(request)
                self._end(request, FinishReason.LENGTH)
            case Failed(error=error):
                _log.error("request %s failed: %s", request.label, error.message)
                self._end(request, FinishReason.ERROR, error=error)

    def _deliver_token(
        self, request: Request, sampled: Sampled, finish: FinishReason | None
    ) -> None:
        """Turn a token into text and send both to the sink."""
        self._count_token(request)
        text = request.text_of(sampled.token, finish)
        if request.detokenizer.stopped:
            self._leave_scheduler(request.sequence.id)
            finish = FinishReason.STOP
        tokens = (TokenLogprob(sampled.token, sampled.logprob, sampled.top),)
        if finish is None:
            self._emit(request, Delta(text, tokens))
        else:
            self._end(request, finish, text, tokens)

    def _count_token(self, request: Request) -> None:
        seconds = self._computed_at - request.last_token_at
        self._counters.generated_tokens += 1
        if request.sequence.output_tokens == 1:
            self._count_prompt(request)
            self._notify("on_first_token", seconds)
        else:
            request.last_token_at = self._computed_at
            self._notify("on_token", seconds)

    def _count_prompt(self, request: Request) -> None:
        request.first_token_at = request.last_token_at = self._computed_at
        self._counters.prompt_tokens += request.sequence.prompt_tokens

    def _fail_request(self, request_id: int, cause: Exception) -> None:
        """End one request whose event could not be delivered. Other requests continue."""
        request = self._requests[request_id]
        _log.error("request %s failed", request.label, exc_info=cause)
        self._leave_scheduler(request_id)
        error = EngineFailedError(f"the request's output could not be delivered: {cause}")
        self._end(request, FinishReason.ERROR, error=error)

    def _leave_scheduler(self, request_id: int) -> None:
        with self._lock:
            self._scheduler.cancel(request_id)

    def _end_cancelled(self) -> None:
        cancelled, self._cancelled = self._cancelled, []
        for request, error in cancelled:
            if request.sequence.id not in self._requests:
                continue  # its last event has ended it
            if error is not None:
                self._end(request, FinishReason.ERROR, error=error)
                continue
            try:
                text = request.detokenizer.finish()
            except Exception as cause:
                self._fail_request(request.sequence.id, cause)
            else:
                self._end(request, FinishReason.CANCELLED, text)

    def _end_all(self, error: HeddleError) -> None:
        """Accept no more requests, and end all accepted ones with `error`."""
        with self._lock:
            if self._refusal is None:
                self._refusal = error
        self._deliver()
        for request in list(self._requests.values()):
            self._end(request, FinishReason.ERROR, error=error)
        self._wake_loops()

    def _end(
        self,
        request: Request,
        finish: FinishReason,
        text: str = "",
        tokens: tuple[TokenLogprob, ...] = (),
        error: HeddleError | None = None,
        embedding: array[float] | None = None,
    ) -> None:
        """Send the last delta of a request. Every request ends here."""
        del self._requests[request.sequence.id]
        self._admission.end(request.sequence)
        self._counters.finished[finish] += 1
        usage = request.usage
        request.end = finish, usage
        self._notify("on_finish", finish, usage)
        stop = request.detokenizer.stopped_by
        self._emit(request, Delta(text, tokens, finish, error, usage, stop, embedding=embedding))
        request.sink = _ignore  # it refers to the inbox, whose ticket refers to the request

    def _emit(self, request: Request, delta: Delta) -> None:
        try:
            request.sink(delta)
        except Exception:
            _log.exception("the sink of request %s failed; it is cancelled", request.label)
            request.sink = _ignore
            self.cancels.add(request.sequence.id)

    def _wake_loops(self) -> None:
        for mailbox in self.to_wake:
            mailbox.wake()
        self.to_wake.clear()

    def _notify(self, what: str, *arguments: object) -> None:
        for observer in self._observers:
            try:
                getattr(observer, what)(*arguments)
            except Exception:
                _log.exception("an observer failed in %s", what)


_started: WeakSet[EngineThread] = WeakSet()
"""Engine threads that may still run."""


@atexit.register
def _stop_all() -> None:
    """Stop all engine threads: no such thread may run while the interpreter shuts down."""
    for thread in list(_started):
        thread.stop(drain=False)


def _ignore(_: Delta) -> None:
    """Ignore a delta. Replaces a sink that failed, and the sink of a request that has ended."""
