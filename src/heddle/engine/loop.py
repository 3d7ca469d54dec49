"""The loop of an engine thread: it plans steps, runs them, and delivers what they made.

The loop holds the lock while it plans a step and while it applies a result, never while a step
computes. It makes text, looks for stop strings and calls sinks without the lock, so a sink may
submit and cancel. Nothing polls: without work the loop waits for a notification (`wakeup.py`).
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from heddle.cache.cache import Cache
from heddle.disk.tier import PATIENCE
from heddle.engine.disk import open_disk_tier
from heddle.engine.drafters import batch_drafter_of, drafters
from heddle.engine.health import Poison, poison_of
from heddle.engine.looking import Looking, waiting
from heddle.engine.observation import step_log
from heddle.engine.observation.activity import (
    Activity,
    Heartbeat,
    LeftBehindError,
    Phase,
    step_allowance,
)
from heddle.engine.observation.slowness import SLOW, Slowness
from heddle.engine.requests.admission import Admission, ClientLimits, Gate
from heddle.engine.requests.interrupted import Interrupted
from heddle.engine.requests.patience import Patience
from heddle.engine.streaming.delivery import Delivery
from heddle.engine.wakeup import Calls, Cancels, Wakeup
from heddle.errors import (
    EngineClosedError,
    EngineFailedError,
    HeddleError,
    ModelPoisonedError,
    QueueTimeoutError,
    StepAbandonedError,
    StepMemoryError,
)
from heddle.parameters import Speculation
from heddle.scheduler.pace import Pace
from heddle.scheduler.scheduler import Scheduler
from heddle.scheduler.speculation import Speculator
from heddle.step import Deferred

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.config import EngineConfig
    from heddle.engine.drafters import BatchDrafter
    from heddle.engine.observation.activity import Beat
    from heddle.engine.turns import Turn, Turns
    from heddle.loading.loaded_model import LoadedModel
    from heddle.scheduler.sequence import Sequence
    from heddle.step import StepPlan, StepResult

_log = logging.getLogger(__name__)


class EngineLoop:
    """The loop of an engine thread, over scheduler, cache, executor and requests.

    Other threads use `gate`, `cancels` and `wakeup` at any time, and what the gate's lock guards:
    `scheduler`, `cache`, `patience`, `calls` and `batch_window_us`. They may read
    totals without the lock.

    Attributes:
        admission: takes new requests.
        rescue: gets the requests that a failure interrupts. Returns whether they may go on in
            another engine; else they end. None: they end.
        calls: functions to call while no step is in flight.
        batch_window_us: how long a step waits for callers of driven sequences, in microseconds.
        cancels: requests to end.
    """

    def __init__(
        self, model: LoadedModel, config: EngineConfig, turns: Turns | None = None
    ) -> None:
        """Raises ConfigError if the prefix cache's directory cannot be used."""
        self.model = model
        self.gate = Gate()
        self.wakeup = Wakeup()
        self.cache = Cache(
            model.executor.memory,
            enabled=config.prefix_cache,
            most_nodes=config.prefix_cache_nodes,
            disk=open_disk_tier(model, config, self.wakeup.notify),
        )
        self._pace = Pace(config.max_gap_ms / 1e3 or None, prefer_decode=config.prefer_decode)
        self._batch_drafter = batch_drafter_of(model, config)
        self._looking = None if model.eyes is None else Looking(model.eyes.encoder, self._pace)
        self.speculator = Speculator(
            drafters(self._batch_drafter),
            self._pace,
            Speculation.MOST,
            default=config.speculation == "auto",
            recurrent=model.executor.memory.snapshot_bytes > 0,
        )
        self.scheduler = Scheduler(
            config.slots,
            config.batch_tokens,
            config.queue,
            self.cache,
            model.shape.context,
            self._pace,
            model.executor.work.score_cost,
            speculator=self.speculator,
            whole_prompts=not model.shape.causal,
        )
        self.turn = turns.turn() if turns is not None else None
        # Guarded by the lock:
        self.patience = Patience(config.queue_timeout)
        self.calls = Calls(self.wakeup)
        self.batch_window_us = config.batch_window_us
        # Used by this thread only:
        self._last_driven: list[Sequence] = []  # driven sequences that got a token last step
        self._step_began = self._computes_since = 0.0  # the step in flight, or the last one
        self._ahead: StepPlan | None = None  # submitted before the tokens of the step before
        self._device_problem: str | None = None  # another thread may set it
        self._shown: list[Sequence] = []  # sequences whose pictures the eyes look at just now
        self._failed: frozenset[int] = frozenset()  # ids of the requests of the failed step
        self.rescue: Callable[[Interrupted], bool] | None = None  # any thread may set it
        self.heartbeat = Heartbeat()
        self.activity = Activity(config.slots)
        self.slowness = Slowness(model.info.id)
        # Safe without the lock:
        self.cancels = Cancels(self.wakeup)
        limits = ClientLimits(config)
        self.delivery = Delivery(self.cancels, self._leave_scheduler, limits.end)
        self.admission = Admission(
            config,
            self.gate,
            self.wakeup,
            self.scheduler,
            self.speculator,
            self.delivery,
            self.patience,
            limits,
            self.cancels,
        )
        model.executor.watch(self._note_device_problem)

    def run(self, ending: Callable[[], None]) -> None:
        """Run steps until the engine is closed or fails; then end all requests and free the model.

        Calls `ending` before that.
        """
        error: HeddleError = EngineClosedError("the engine was closed before the request finished")
        try:
            while self.step():
                if self.turn is not None:
                    self.turn.give()  # again, after a step that failed or computed nothing
        except ModelPoisonedError as poisoned:
            error = poisoned
        except LeftBehindError:
            _log.warning("the abandoned step of %s has ended after all", self.model.info.id)
        except BaseException as cause:
            _log.exception("the engine thread ends")
            error = self._fail(self._running, Poison(f"the engine failed: {cause}"))
        finally:
            self._give_turn()
            ending()
            if not self.heartbeat.left_behind:
                self._leave_all(error)
                self._close_cache(keep=isinstance(error, EngineClosedError))
            self.model.close()
            if self._batch_drafter is not None:
                self._batch_drafter.close()

    @property
    def _running(self) -> list[Sequence]:
        """The sequences with a slot whose requests have not ended."""
        requests = self.delivery.requests
        return [one for one in self.scheduler.slots if one is not None and one.id in requests]

    def give_up_step(self, beat: Beat, seconds: float, *, lost: bool) -> bool:
        """Give up the step that has made no progress since a beat, if the model is loaded again.

        The watchdog's thread calls this. First the executor abandons the step; mostly this thread
        then fails, and ends. If it is `lost` nevertheless, the caller's thread ends the engine in
        its place. Should the step return later, this thread touches no request, and frees the
        model. Returns whether the caller's thread has ended the engine.
        """
        stops = self.gate.closed and not self.gate.leaves
        if stops or self.rescue is None or beat.phase is not Phase.COMPUTING:
            return False
        if not lost:
            if self.heartbeat.now is beat:
                self.model.abandon()
            return False
        if not self.heartbeat.leave_behind(beat):
            return False
        with self.gate.lock:
            failed = [*self.scheduler.abandon(), *self._shown]
        poison = Poison(
            f"step {beat.step} has made no progress for {seconds:.0f} s, and its device does not"
            " abandon it. Its thread and its memory are left behind until it ends",
            beat.step,
        )
        _log.error("%s", poison)
        error = self._fail(failed, poison)
        self._give_turn()
        self._leave_all(error)
        self._close_cache(keep=False)
        return True

    def _close_cache(self, *, keep: bool) -> None:
        """Release all slots and pages, and close the cache.

        With `keep`, the disk tier saves pages for the next start. A poisoned engine saves none: the
        failed step may have left wrong pages. Files that the disk tier wrote before stay, because
        steps that succeeded computed their pages.
        """
        for close in (self._release_all, partial(self.cache.close, keep=keep)):
            try:
                close()  # the cache without the lock: it takes seconds
            except Exception:
                _log.exception("the prefix cache was not closed properly")

    def _release_all(self) -> None:
        with self.gate.lock:
            self.scheduler.cancel_all()

    def step(self) -> bool:
        """Run one step: schedule, execute, update. Returns False if the engine ends.

        Raises:
            ModelPoisonedError: the device has failed.
        """
        plan = self._schedule()
        if plan is None:
            return False
        if plan.chunks:
            result = self._execute(plan)
            if result is not None:
                self._update(plan, result)
        elif self.delivery.pending:
            self._deliver()
        else:  # all sequences wait, and have waited in `_schedule`
            self.activity.end(time.perf_counter())
            return True
        ended = time.perf_counter()
        self.delivery.counters.step_seconds += ended - self._step_began
        self.activity.end(ended)
        return True

    def _schedule(self) -> StepPlan | None:
        """Wait for work and plan the next step. Returns None if the engine ends.

        A plan without chunks leaves only deltas to deliver, or nothing: all sequences wait.
        """
        if self._device_problem is not None and self._ahead is None:
            raise self._fail(self._running, Poison(f"the device failed: {self._device_problem}"))
        if self._batch_drafter is not None and any(self.scheduler.slots):
            self._advance(self._batch_drafter)
        if self._looking is not None:
            self._look(self._looking)
        self.heartbeat.enter(Phase.PLANNING)
        with self.gate.lock:
            if self.cancels.ids:
                self._take_cancels()
            if self._ahead is None:
                if self.calls.waiting:
                    self.calls.run()
                if not self._wait_for_work():
                    return None
            self._step_began = self.activity.step_began = time.perf_counter()
            if self.patience.waiting:
                self._end_waits()
            plan = self._ahead or self.scheduler.schedule()
            accepted, self.admission.accepted = self.admission.accepted, 0
            stuck = not (plan.chunks or accepted or self.delivery.pending or self._looks())
            if stuck and self._device_problem is None:
                # All wait for the disk or a mask. Both notify this thread. The timeout is for a
                # disk that does not answer: the next `schedule` stops waiting for it.
                self.activity.end(time.perf_counter())
                self._give_turn()
                self._wait(Phase.WAITING, PATIENCE)
        if stuck:
            self._look_for_slowness(computing=False)
        for _ in range(accepted):
            self.delivery.notify("on_submit")
        return plan

    def _wait_for_work(self) -> bool:
        """Wait until there is something to do, and it is this engine's turn. Needs the lock.

        Returns False if the engine ends.
        """
        while not (self.scheduler.busy or self.delivery.pending or self.gate.refusal is not None):
            if self._device_problem is not None:
                return True  # nothing is planned, and the next step says so
            self._wait(Phase.IDLE)
            self._take_cancels()
            self.calls.run()
        if self._last_driven:
            self._wait_for_callers()
        if self.turn is not None:
            self._take_turn(self.turn)
        return self.gate.refusal is None or (self.gate.drain and self.scheduler.busy)

    def _advance(self, batch: BatchDrafter) -> None:
        """Let the draft model or the prediction head guess, in this thread, without the lock."""
        self._begin_turn()
        batch.advance(self.scheduler.slots, self.speculator)
        self._give_turn()

    def _begin_turn(self) -> None:
        """Wait for the turn to compute beside a step, without the lock."""
        if self.turn is not None:
            self.heartbeat.enter(Phase.TURN)
            self.turn.take()
        self.heartbeat.enter(Phase.COMPUTING)

    def _looks(self) -> bool:
        """Whether sequences wait for the eyes."""
        return self._looking is not None and bool(waiting(self.scheduler.slots))

    def _look(self, looking: Looking) -> None:
        """Let the eyes make rows that sequences wait for, in this thread, without the lock.

        If they fail, these sequences end; all others go on.

        Raises:
            ModelPoisonedError: they hung, and were abandoned.
        """
        self._shown = waiting(self.scheduler.slots)
        if not self._shown:
            looking.rest()
            return
        if self._ahead is None:
            self._deliver()  # the tokens of the last step do not wait for the eyes
        self._begin_turn()
        self.activity.step_began = time.perf_counter()
        try:
            error = looking.advance(self.scheduler.slots, self._shown)
        except StepAbandonedError as cause:
            if self.gate.closed:
                return  # all requests end with the engine, or leave it
            hang = "the eyes made no progress, and were abandoned (watchdog)"
            raise self._fail(self._shown, Poison(hang)) from cause
        finally:
            self.activity.end(time.perf_counter())
            self._give_turn()
        self.heartbeat.enter(Phase.DELIVERING)
        if error is not None:
            self._end_shown(error)
        self._shown = []

    def _end_shown(self, error: EngineFailedError) -> None:
        """End the sequences whose pictures the eyes could not see."""
        _log.error("%s", error)
        with self.gate.lock:
            for sequence in self._shown:
                if self.scheduler.cancel(sequence.id):
                    self.delivery.cancelled.append((self.delivery.requests[sequence.id], error))

    def _wait(self, phase: Phase, timeout: float | None = None) -> None:
        """Release the lock until a caller, the disk tier or a late mask notifies this thread."""
        self.heartbeat.enter(phase)
        self.gate.lock.release()
        try:
            self.wakeup.wait(timeout)
        finally:
            self.gate.lock.acquire()
            self.heartbeat.enter(Phase.PLANNING)

    def _wait_for_callers(self) -> None:
        """Wait briefly until callers of driven sequences ask again, so that they share one step.

        The thread waits only for callers that got a token from the last step. So it waits at most
        once for a caller that does not ask again, and a single caller waits for nobody else.
        """
        until = time.perf_counter() + self.batch_window_us / 1e6
        while any(sequence.paused and not sequence.ended for sequence in self._last_driven):
            left = until - time.perf_counter()
            if left <= 0.0 or self.gate.closed:
                break
            self._wait(Phase.WAITING, left)
            self._take_cancels()

    def _take_turn(self, turn: Turn) -> None:
        """Wait for the turn to compute, because other engines share the cores. Needs the lock.

        The wait releases the lock. Tokens of the last step do not wait for other engines.
        """
        if not self.scheduler.busy or turn.take_now():
            return
        self.gate.lock.release()
        try:
            self._deliver()
            self.heartbeat.enter(Phase.TURN)
            turn.take()
        finally:
            self.gate.lock.acquire()
            self.heartbeat.enter(Phase.PLANNING)
        self._take_cancels()

    def _give_turn(self) -> None:
        if self.turn is not None:
            self.turn.give()

    def _take_cancels(self) -> None:
        for request_id in self.cancels.take():
            if self.scheduler.cancel(request_id):
                self.delivery.cancelled.append((self.delivery.requests[request_id], None))

    def _end_waits(self) -> None:
        """Cancel the requests that have waited too long for their first slot."""
        for request in self.patience.overdue():
            self.scheduler.cancel(request.sequence.id)
            error = QueueTimeoutError(
                f"the request waited {self.patience.seconds} s for a slot (queue_timeout); it did"
                " not run. Try again later",
                retry_after=self.scheduler.seconds_until(1),
            )
            self.delivery.cancelled.append((request, error))

    def _execute(self, plan: StepPlan) -> StepResult | None:
        """Run a planned step, and deliver the step before meanwhile.

        Returns None if the step is given up, and the engine goes on: it has ended all requests, or
        has too little memory for so large a step.

        Raises:
            ModelPoisonedError: the step failed.
        """
        goes_on = self._ahead is not None  # on the device, since the step before ended
        self._computes_since = self.delivery.computed_at if goes_on else time.perf_counter()
        if plan.bindings:
            self._note_starts(plan)
        allowance = step_allowance(plan, self._pace)
        self.heartbeat.enter(Phase.COMPUTING, allowance)
        try:
            if self._batch_drafter is not None:
                plan = self._batch_drafter.ask(plan, self.scheduler.slots, self.speculator)
            if not goes_on:
                self.model.executor.submit(plan)
            self._ahead = None
            try:
                self._work_beside(plan)
            finally:  # no page may change its owner before the step ends
                self.heartbeat.enter(Phase.COMPUTING, allowance)
                try:
                    result = self.model.executor.collect()
                finally:  # a thread that was left behind ends here, whatever the step has done
                    self.heartbeat.enter(Phase.DELIVERING)
                if self._ahead is None and self.turn is not None:
                    self.turn.give()
        except StepAbandonedError as cause:
            if not self.gate.closed:
                hang = EngineFailedError("it made no progress, and was abandoned (watchdog)")
                raise self._fail_step(plan, hang) from cause
            self._ahead = None  # all requests end with the engine, or leave it
            with self.gate.lock:
                self.scheduler.abandon()
            return None
        except StepMemoryError as cause:
            self._shrink_steps(plan, cause)
            return None
        except Exception as cause:
            self._deliver()  # in case `submit` failed, before the delivery above
            raise self._fail_step(plan, cause) from cause
        if self._batch_drafter is not None:
            self._batch_drafter.note(result)
        return result

    def _work_beside(self, plan: StepPlan) -> None:
        """Do the work of the engine thread that fits beside a step."""
        slots = self.scheduler.slots
        if step_log.LOG.isEnabledFor(logging.DEBUG):
            step_log.log_prompts(plan, slots, self.delivery.requests)
        self.activity.note_plan(plan, slots)
        if self.model.executor.runs_ahead and self._batch_drafter is None:
            self._run_ahead()
        self._deliver()
        if time.perf_counter() >= self.slowness.next_look:
            self._look_for_slowness(computing=True)

    def _update(self, plan: StepPlan, result: StepResult) -> None:
        """Apply the result of a step. The next step delivers what it made."""
        self.delivery.computed_at = computed_at = time.perf_counter()
        seconds = computed_at - self._computes_since
        if step_log.LOG.isEnabledFor(logging.DEBUG):
            step_log.log_step(self.heartbeat.step, plan, seconds)
        sequences = list(self.scheduler.slots)  # before some of them end
        self.delivery.ran = self.heartbeat.step, plan, result, seconds, sequences
        self.heartbeat.step += 1
        self.heartbeat.enter(Phase.DELIVERING)
        with self.gate.lock:
            if self.cancels.ids:
                self._take_cancels()
            self.delivery.events = events = self.scheduler.update(result, seconds)
        self.activity.note_result(result.sampled, computed_at)
        if seconds > SLOW:
            self.slowness.note_step(seconds, self.activity.latest)
        for outcome in result.sampled:
            if isinstance(outcome, Deferred):
                outcome.ready.add_done_callback(lambda _: self.wakeup.notify())
        driven = [event for event in events if event.sequence.driven]
        if driven:  # at once, so that their callers can ask before the next step
            self.delivery.events = [event for event in events if not event.sequence.driven]
            self.delivery.deliver_tokens(driven)
        self._last_driven = [event.sequence for event in driven]

    def _note_starts(self, plan: StepPlan) -> None:
        for binding in plan.bindings:
            sequence = self.scheduler.slots[binding.slot]
            assert sequence is not None, "a binding is of a sequence with a slot"
            self.delivery.note_start(sequence, self._computes_since)

    def _run_ahead(self) -> None:
        """Submit the next step before the result of this one, if nothing could change the plan."""
        if self.calls.waiting or (self.turn is not None and self.turn.is_wanted):
            return
        with self.gate.lock:
            plan = None if self.gate.closed else self.scheduler.schedule_ahead()
        if plan is not None:
            self.model.executor.submit(plan)
            self._ahead = plan

    def _note_device_problem(self, problem: str) -> None:
        """Note that the device has failed, perhaps while no step ran. Any thread may call this."""
        self._device_problem = problem
        self.wakeup.notify()

    def _look_for_slowness(self, *, computing: bool) -> None:
        """Warn of requests that wait and of steps that last. No step may wait for this."""
        step = self.activity.latest if computing else None
        reason_of = self.scheduler.wait_reason
        self.slowness.look(time.perf_counter(), self.delivery.requests, step, reason_of)

    def _deliver(self) -> None:
        """Deliver all events of the last step and the ends of cancelled requests.

        The thread does this while the next step computes, if there is one. A woken event loop uses
        the core of the thread that woke it. With delivery between two steps, compute threads were
        idle for 0.3 ms of each 6.5 ms (two cores, eight streams over HTTP).
        """
        self.heartbeat.enter(Phase.DELIVERING)
        self.delivery.deliver()

    def _shrink_steps(self, plan: StepPlan, cause: StepMemoryError) -> None:
        """Start the running requests again in smaller steps.

        Raises:
            ModelPoisonedError: the step cannot be smaller.
        """
        with self.gate.lock:
            most = self.scheduler.shrink_steps()
        if most is None:
            raise self._fail_step(plan, cause) from cause
        self._ahead = None
        self.heartbeat.step += 1
        self._give_turn()
        _log.warning(
            "%s; running requests start again, and later steps have at most %d tokens", cause, most
        )

    def _fail_step(self, plan: StepPlan, cause: Exception) -> ModelPoisonedError:
        """Poison the engine: accept no more requests. Those of the failed step have failed.

        Returns the error that the queued and all later requests get.
        """
        requests = {one.slot: one.id for one in self.scheduler.slots if one is not None}
        poison = poison_of(self.heartbeat.step, plan, requests, self.model.executor, cause)
        with self.gate.lock:
            failed = self.scheduler.abandon()
        labels = ", ".join(self.delivery.requests[sequence.id].label for sequence in failed)
        _log.error("%s; requests in the step: %s", poison, labels or "none", exc_info=cause)
        return self._fail(failed, poison)

    def _fail(self, sequences: list[Sequence], poison: Poison) -> ModelPoisonedError:
        """Accept no more requests. Those of these sequences have failed."""
        refusal = ModelPoisonedError(
            f"the model {self.model.info.id} is poisoned: {poison.reason}. Unload it and load it"
            " again (POST /models/unload, then POST /models/load), or restart the program"
        )
        with self.gate.lock:
            self.gate.poison = poison
            self.gate.refusal = refusal
        self._failed = frozenset(sequence.id for sequence in sequences)
        return refusal

    def _leave_scheduler(self, request_id: int) -> None:
        with self.gate.lock:
            self.scheduler.cancel(request_id)

    def _leave_all(self, error: HeddleError) -> None:
        """Accept no more requests. Leave all accepted ones to `rescue`, or end them with `error`.

        If the engine was closed, they end, unless they were to be left.
        """
        with self.gate.lock:
            self.gate.refuse(error)
            self.calls.refuse(error)
        try:
            self.delivery.deliver()
        except Exception:  # requests that go on get these tokens again
            _log.exception("the tokens of the last step were not delivered")
        poison = self.gate.poison
        failure = EngineFailedError(f"the request failed: {poison.reason}") if poison else error
        left = Interrupted.of(self.model, self.delivery, self._failed, failure, error)
        interrupts = poison is not None or self.gate.leaves
        if not (interrupts and left.count and self.rescues(left)):
            left.give_up()

    def rescues(self, left: Interrupted) -> bool:
        """Leave requests to `rescue`. Returns whether it has taken them."""
        rescue = self.rescue
        return rescue is not None and rescue(left)
