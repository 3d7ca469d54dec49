"""The engine thread: it owns scheduler, cache and executor, and turns steps into deltas.

Requests come in under a lock that the thread holds while it plans a step and while it takes one in,
never while it computes one. Text, stop strings and sinks are handled without the lock, so that a
sink may submit and cancel. Nobody polls: without work the thread waits for a bell (`bell.py`).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from _thread import start_new_thread
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakSet

from heddle.cache.manager import CacheManager
from heddle.disk.tier import PATIENCE
from heddle.engine.bell import Bell, Cancels
from heddle.engine.disk import open_disk_tier
from heddle.engine.telemetry import Counters, EngineSnapshot, SlotSnapshot
from heddle.errors import (
    EngineClosedError,
    EngineFailedError,
    HeddleError,
    StepAbandonedError,
)
from heddle.scheduler.pace import Pace
from heddle.scheduler.scheduler import Scheduler
from heddle.scheduler.sequence import SlotState
from heddle.step import Deferred, Failed, Pooled, Sampled, Scored
from heddle.types import Delta, FinishReason, TokenLogprob

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator

    from heddle.cache.manager import PrefixCacheStats
    from heddle.config import EngineConfig
    from heddle.engine.loading import LoadedModel
    from heddle.engine.request import Request
    from heddle.engine.streams import Mailbox
    from heddle.engine.telemetry import Observer
    from heddle.scheduler.outcomes import Event
    from heddle.scheduler.sequence import Sequence
    from heddle.step import StepPlan

_log = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Failed steps in a row after which the engine gives up."""


class EngineThread:
    """Runs accepted requests to their ends. Starts at once; closes the model when it ends.

    Must hold nothing that holds its `Engine`: it lives until it is stopped, and an engine that its
    owner has dropped stops it.

    Attributes:
        cancels: requests to end.
        to_ring: mailboxes posted to since the last ring. Of this thread alone.
    """

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        """Raises ConfigError: the prefix cache's directory cannot be used."""
        self._model = model
        self._lock = threading.Lock()
        self._bell = Bell()
        self._cache = CacheManager(
            model.executor.memory,
            enabled=config.prefix_cache,
            most_nodes=config.prefix_cache_nodes,
            disk=open_disk_tier(model, config, self._bell.ring),
        )
        self._scheduler = Scheduler(
            config.slots,
            config.batch_tokens,
            config.queue,
            self._cache,
            model.shape.context,
            Pace(config.max_gap_ms / 1e3 or None),
            model.executor.work.score_cost,
        )
        self._window = config.batch_window_us / 1e6
        self._pid = os.getpid()
        # Guarded by the lock:
        self._requests: dict[int, Request] = {}
        self._accepted = 0  # since observers were last told
        self._refusal: HeddleError | None = None  # why nothing is accepted any more
        self._drain = False
        # Of this thread alone:
        self._events: list[Event] = []  # to be delivered
        self._computed_at = 0.0  # when they were
        self._asking: list[Sequence] = []  # driven ones that got a token from the last step
        self._cancelled: list[Request] = []  # to be told so
        self._failures = 0
        self._counters = Counters()
        self.to_ring: list[Mailbox] = []
        # Safe by themselves:
        self.cancels = Cancels(self._bell)
        self._observers: tuple[Observer, ...] = ()
        # A daemon, so that a program that forgets to close its engine can end.
        self._thread = threading.Thread(target=self._run, name="heddle-engine", daemon=True)
        self._thread.start()
        _started.add(self)

    # --- from any thread -------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether nothing is accepted any more."""
        return self._refusal is not None

    def accept(self, requests: list[Request]) -> None:
        """Queue the requests, all or none.

        Raises:
            ContextLengthError, OverloadedError, InvalidRequestError: see `Scheduler.add`.
            EngineClosedError, EngineFailedError: the thread ends or has ended, or this process is
                a fork of the one it runs in.
        """
        with self._open():
            self._scheduler.add(*(request.sequence for request in requests))
            for request in requests:
                self._requests[request.sequence.id] = request
            self._accepted += len(requests)
            self._bell.ring()

    def resume(self, request: Request) -> None:
        """Have the next token of a driven sequence computed. Raises as `accept`."""
        with self._open():
            request.last_token_at = time.perf_counter()
            self._scheduler.resume(request.sequence)
            self._bell.ring()

    def check_length(self, tokens: int, *, output: bool = True) -> None:
        """Raise the ContextLengthError of a prompt of so many tokens, if it is too long."""
        self._scheduler.check_length(tokens, output=output)

    def observe(self, observer: Observer) -> None:
        """Have `observer` called from now on."""
        self._observers += (observer,)

    def stop(self, *, drain: bool) -> None:
        """Accept nothing more; end, or with `drain` finish, what was accepted. Then return.

        Without `drain` the step in flight is abandoned: a step may take a minute.

        From a sink or an observer, which this thread calls, it returns at once.
        """
        if self._pid != os.getpid():
            return  # the thread is the parent's; the lock may have been held when we forked
        with self._lock:
            self._drain = drain and (self._refusal is None or self._drain)
            if self._refusal is None:
                self._refusal = EngineClosedError("the engine is closed")
            self._bell.ring()
            if not self._drain:
                self._model.executor.abandon()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def let_go(self) -> None:
        """Finish what was accepted, then end: the engine was dropped. Returns at once.

        Takes no lock: garbage collection calls this in any thread, also in one that holds ours.
        """
        if self._pid == os.getpid() and not self.closed:
            start_new_thread(self.stop, (), {"drain": True})

    def snapshot(self) -> EngineSnapshot:
        """Slots, queue, pages and totals. From any thread; takes no lock."""
        cancelled = self.cancels.pending()
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
            pages_used=self._cache.pages - self._cache.available,
            pages_total=self._cache.pages,
            steps=self._counters.steps,
            step_seconds=self._counters.step_seconds,
            compute_seconds=self._model.executor.compute_seconds,
            prefix_cache=self._cache.stats(),
        )

    def prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Figures of one moment between two changes; None if something is just changing them."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._cache.stats()
        finally:
            self._lock.release()

    def set_prefix_cache(self, enabled: bool) -> None:
        """Find and keep prefixes from now on; or drop all, and keep none. Raises as `accept`."""
        with self._open():
            self._cache.set_enabled(enabled)

    def flush_prefix_cache(self) -> None:
        """Drop all prefixes. Raises as `accept`."""
        with self._open():
            self._cache.flush()

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Hold the lock; or raise the reason why nothing is accepted any more."""
        if self._pid != os.getpid():  # before the lock, which may have been held when we forked
            raise EngineClosedError(
                "a fork has no thread of this engine; load one in each process, or spawn them"
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
                pass
        except BaseException as cause:
            _log.exception("the engine thread ends")
            error = EngineFailedError(f"the engine failed: {cause}")
        finally:
            self._end_all(error)
            self._close(keep=isinstance(error, EngineClosedError))

    def _close(self, *, keep: bool) -> None:
        """Free what the thread owns; `keep` what has been computed for the next start."""
        try:
            if keep:
                with self._lock:
                    self._scheduler.cancel_all()
            self._cache.close(keep=keep)  # without the lock: it takes seconds
        except Exception:
            _log.exception("the prefix cache was not closed properly")
        self._model.close()

    def _step(self) -> bool:
        """Wait for work, run a step, deliver the one before. False when the engine is to end."""
        with self._lock:
            self._take_cancels()
            while not (self._scheduler.busy or self._events or self._cancelled or self._refusal):
                self._wait()
                self._take_cancels()
            self._gather()
            if self._refusal is not None and not (self._drain and self._scheduler.busy):
                return False
            began = time.perf_counter()
            plan = self._scheduler.schedule()
            if not (plan.chunks or self._accepted or self._events or self._cancelled):
                # All wait for the disk or a mask, which ring; a disk that does not is given up.
                self._wait(PATIENCE)
                return True
            accepted, self._accepted = self._accepted, 0
        for _ in range(accepted):
            self._tell("on_submit")
        if plan.chunks:
            self._execute(plan)
            self._counters.steps += 1
        else:
            self._deliver()
        self._counters.step_seconds += time.perf_counter() - began
        return True

    def _wait(self, timeout: float | None = None) -> None:
        """Let go of the lock until the bell rings: for pages, a late mask, or whoever calls."""
        self._lock.release()
        try:
            self._bell.wait(timeout)
        finally:
            self._lock.acquire()

    def _gather(self) -> None:
        """Let callers who just got a token ask for the next one, so that one step serves them all.

        Those who were late once are not waited for again before they have asked, and a caller who
        is alone waits for no one.
        """
        until = time.perf_counter() + self._window
        while any(sequence.paused and not sequence.ended for sequence in self._asking):
            left = until - time.perf_counter()
            if left <= 0.0 or self._refusal is not None:
                break
            self._wait(left)
            self._take_cancels()

    def _take_cancels(self) -> None:
        for request_id in self.cancels.take():
            if self._scheduler.cancel(request_id):
                self._cancelled.append(self._requests[request_id])

    def _execute(self, plan: StepPlan) -> None:
        began = time.perf_counter()
        for binding in plan.bindings:
            self._note_first_step(binding.slot, began)
        try:
            self._model.executor.submit(plan)
            try:
                self._deliver()
            finally:  # no page may change hands before the step has ended
                result = self._model.executor.collect()
        except StepAbandonedError:  # all its requests end with the engine
            with self._lock:
                self._scheduler.abandon()
            return
        except Exception as cause:
            self._deliver()  # what a refused step left
            self._give_up_step(cause)
            return
        self._failures = 0
        self._computed_at = time.perf_counter()
        with self._lock:
            self._take_cancels()
            events = self._scheduler.update(result, self._computed_at - began)
        for outcome in result.sampled:
            if isinstance(outcome, Deferred):
                outcome.ready.add_done_callback(lambda _: self._bell.ring())
        self._events = [event for event in events if not event.sequence.driven]
        driven = [event for event in events if event.sequence.driven]
        self._deliver_tokens(driven)  # at once: the next step is to have what they ask for now
        self._asking = [event.sequence for event in driven]

    def _note_first_step(self, slot: int, began: float) -> None:
        """A sequence that comes back after a preemption is bound again, and keeps its time."""
        sequence = self._scheduler.slots[slot]
        assert sequence is not None, "a slot that is bound has a sequence"
        request = self._requests[sequence.id]
        request.first_step_at = request.first_step_at or began

    def _deliver(self) -> None:
        """Hand out what the last step made and who was cancelled; nothing is left to deliver.

        Done while the next step computes, if there is one. An event loop that is woken takes the
        core it is woken on: between two steps that cost 0.3 ms of each 6.5 ms with two cores and
        eight streams over HTTP, while all compute threads stood idle.
        """
        events, self._events = self._events, []
        self._deliver_tokens(events)
        self._end_cancelled()
        self._ring()

    def _deliver_tokens(self, events: list[Event]) -> None:
        for event in events:
            try:
                self._deliver_event(event)
            except Exception as cause:
                self._give_up(event.sequence.id, cause)

    def _give_up_step(self, cause: Exception) -> None:
        """The requests of the failed step end; the others go on, unless this keeps happening."""
        _log.error("a step failed", exc_info=cause)
        with self._lock:
            failed = self._scheduler.abandon()
        for sequence in failed:
            error = EngineFailedError(f"the step that carried this request failed: {cause}")
            self._end(self._requests[sequence.id], FinishReason.ERROR, error=error)
        self._ring()
        self._failures += 1
        if self._failures == MAX_FAILURES:
            raise EngineFailedError(f"{MAX_FAILURES} steps in a row failed, the last with: {cause}")

    def _deliver_event(self, event: Event) -> None:
        """Hand to the request's sink what was read from its sequence."""
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
                _log.error("request %d failed: %s", sequence.id, error.message)
                self._end(request, FinishReason.ERROR, error=error)

    def _deliver_token(
        self, request: Request, sampled: Sampled, finish: FinishReason | None
    ) -> None:
        """Turn a token into text and hand it over."""
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
            self._tell("on_first_token", seconds)
        else:
            request.last_token_at = self._computed_at
            self._tell("on_token", seconds)

    def _count_prompt(self, request: Request) -> None:
        request.first_token_at = request.last_token_at = self._computed_at
        self._counters.prompt_tokens += request.sequence.prompt_tokens

    def _give_up(self, request_id: int, cause: Exception) -> None:
        """Its tokens cannot be made into text: no reason for others to suffer."""
        _log.error("request %d failed", request_id, exc_info=cause)
        self._leave_scheduler(request_id)
        error = EngineFailedError(f"the request's output could not be delivered: {cause}")
        self._end(self._requests[request_id], FinishReason.ERROR, error=error)

    def _leave_scheduler(self, request_id: int) -> None:
        with self._lock:
            self._scheduler.cancel(request_id)

    def _end_cancelled(self) -> None:
        cancelled, self._cancelled = self._cancelled, []
        for request in cancelled:
            if request.sequence.id in self._requests:  # its last token may have ended it
                self._end(request, FinishReason.CANCELLED, request.detokenizer.finish())

    def _end_all(self, error: HeddleError) -> None:
        """Accept nothing more and end everything that has been."""
        with self._lock:
            if self._refusal is None:
                self._refusal = error
        self._deliver()
        for request in list(self._requests.values()):
            self._end(request, FinishReason.ERROR, error=error)
        self._ring()

    def _end(
        self,
        request: Request,
        finish: FinishReason,
        text: str = "",
        tokens: tuple[TokenLogprob, ...] = (),
        error: HeddleError | None = None,
        embedding: array[float] | None = None,
    ) -> None:
        """The one place where a request ends for its caller."""
        del self._requests[request.sequence.id]
        self._counters.finished[finish] += 1
        usage = request.usage
        self._tell("on_finish", finish, usage)
        stop = request.detokenizer.stopped_by
        self._emit(request, Delta(text, tokens, finish, error, usage, stop, embedding=embedding))

    def _emit(self, request: Request, delta: Delta) -> None:
        try:
            request.sink(delta)
        except Exception:
            _log.exception("the sink of request %d failed; it is cancelled", request.sequence.id)
            request.sink = _ignore
            self.cancels.add(request.sequence.id)

    def _ring(self) -> None:
        for mailbox in self.to_ring:
            mailbox.ring()
        self.to_ring.clear()

    def _tell(self, what: str, *arguments: object) -> None:
        for observer in self._observers:
            try:
                getattr(observer, what)(*arguments)
            except Exception:
                _log.exception("an observer failed in %s", what)


_started: WeakSet[EngineThread] = WeakSet()
"""Engine threads that may run."""


@atexit.register
def _stop_all() -> None:
    """No thread may run on while the interpreter is torn down."""
    for thread in list(_started):
        thread.stop(drain=False)


def _ignore(_: Delta) -> None:
    """Takes the place of a sink that failed."""
