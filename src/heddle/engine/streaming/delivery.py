"""Delivers what steps made: turns tokens into deltas and sends them to the sinks of requests.

The engine thread calls this while the next step computes, without its lock, so a sink may submit
and cancel.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from heddle.engine.observation.telemetry import Counters
from heddle.engine.streaming.streams import POSTED
from heddle.errors import EngineFailedError
from heddle.outputs import Delta, FinishReason, TokenLogprob
from heddle.step import Failed, Pooled, Sampled, Scored

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

    from heddle.engine.observation.telemetry import Observer
    from heddle.engine.requests.request import Request
    from heddle.engine.wakeup import Cancels
    from heddle.errors import HeddleError
    from heddle.scheduler.outcomes import TokenEvent
    from heddle.scheduler.sequence import Sequence
    from heddle.step import StepPlan, StepResult

    Ran = tuple[int, StepPlan, StepResult, float, list[Sequence | None]]

_log = logging.getLogger(__name__)
_starts = logging.getLogger("heddle.requests.start.slot")
"""A child of the logger of requests' first lines: `heddle serve --verbose` leaves out both."""


class Delivery:
    """The accepted requests of an engine, and what is to be sent to their sinks.

    Only the engine thread calls the methods, except `add` and `observe`.

    Args:
        cancels: gets the requests whose sink fails.
        leave_scheduler: ends the sequence of an id in the scheduler.
        when_ended: called with the sequence of each request that ends.

    Attributes:
        requests: the requests that have not ended, by id. Other threads add to it under the lock of
            the engine thread.
        events: still to be delivered.
        cancelled: cancelled requests whose last delta is still to be sent, and their errors.
        ran: the last step, of which observers have not heard yet: the arguments of `on_step`.
        computed_at: when the step of the events was collected.
        counters: totals of the engine.
    """

    def __init__(
        self,
        cancels: Cancels,
        leave_scheduler: Callable[[int], object],
        when_ended: Callable[[Sequence], None],
    ) -> None:
        self._cancels = cancels
        self._leave_scheduler = leave_scheduler
        self._when_ended = when_ended
        self._observers: tuple[Observer, ...] = ()
        self.requests: dict[int, Request] = {}
        self.events: list[TokenEvent] = []
        self.cancelled: list[tuple[Request, HeddleError | None]] = []
        self.ran: Ran | None = None
        self.computed_at = 0.0
        self.counters = Counters()

    @property
    def pending(self) -> bool:
        """Whether `deliver` has something to do."""
        return bool(self.events or self.cancelled or self.ran)

    def observe(self, observer: Observer) -> None:
        """Call `observer` from now on. Any thread may call this."""
        self._observers += (observer,)

    def note_start(self, sequence: Sequence, began: float) -> None:
        """Note when the first step of a request began.

        The scheduler binds a preempted sequence again; its request keeps the first time.
        """
        request = self.requests[sequence.id]
        if not request.first_step_at:
            request.first_step_at = began
            waited = began - request.submitted_at
            _starts.info(
                "request %s waited %.1f ms for slot %d", request.label, 1e3 * waited, sequence.slot
            )
            self.notify("on_start", waited)

    def deliver(self) -> None:
        """Deliver the last step: to observers, to requests, and the ends of cancelled requests."""
        ran, self.ran = self.ran, None
        if ran is not None:
            self.notify("on_step", *ran)
        events, self.events = self.events, []
        self.deliver_tokens(events)
        if self.cancelled:
            self._end_cancelled()
        for mailbox in POSTED.mailboxes:
            mailbox.wake()
        POSTED.mailboxes.clear()

    def deliver_tokens(self, events: list[TokenEvent]) -> None:
        """Deliver these events at once."""
        for event in events:
            if event.sequence.id not in self.requests:
                continue  # an earlier token of the same step completed a stop string
            try:
                if isinstance(event.outcome, Sampled):
                    self._deliver_token(event.sequence, event.outcome, event.finish)
                else:
                    self._deliver_other(event)
            except Exception as cause:
                if event.sequence.id not in self.requests:
                    raise  # the request has its last delta: the scheduler has failed
                self._fail_request(event.sequence.id, cause)

    def _deliver_token(
        self, sequence: Sequence, sampled: Sampled, finish: FinishReason | None
    ) -> None:
        """Turn a token into text and send both to the sink."""
        request = self.requests[sequence.id]
        seconds = self.computed_at - request.last_token_at
        self.counters.generated_tokens += 1
        if sequence.output_tokens == 1:
            self._count_prompt(request)
            self.notify("on_first_token", seconds)
        else:
            request.last_token_at = self.computed_at
            self.notify("on_token", seconds)
        detokenizer = request.detokenizer
        # A token that ends the sequence adds no text.
        text = "" if finish is FinishReason.STOP else detokenizer.push(sampled.token)
        if finish is not None:
            text += detokenizer.finish()
        request.delivered, request.mu = request.delivered + 1, sampled.mu
        tokens = (TokenLogprob(sampled.token, sampled.logprob, sampled.top),)
        if detokenizer.stopped_by is not None:
            try:
                self._leave_scheduler(sequence.id)
            finally:
                self.end(request, FinishReason.STOP, text, tokens)
        elif finish is None:
            self._emit(request, Delta(text, tokens))
        else:
            self.end(request, finish, text, tokens)

    def _deliver_other(self, event: TokenEvent) -> None:
        """Send an outcome that is no token to the sink of its request."""
        request = self.requests[event.sequence.id]
        match event.outcome:
            case Scored() as scored:
                self._emit(request, Delta(prompt_logprobs=request.prompt_logprobs(scored)))
            case Pooled(vector=vector):
                self._count_prompt(request)
                self.end(request, FinishReason.STOP, embedding=vector)
            case None:
                self._count_prompt(request)
                self.end(request, FinishReason.LENGTH)
            case Failed(error=error):
                _log.error("request %s failed: %s", request.label, error.message)
                self.end(request, FinishReason.ERROR, error=error)

    def _count_prompt(self, request: Request) -> None:
        request.first_token_at = request.last_token_at = self.computed_at
        self.counters.prompt_tokens += request.sequence.prompt_tokens

    def _fail_request(self, request_id: int, cause: Exception) -> None:
        """End one request whose event could not be delivered. Other requests continue."""
        request = self.requests[request_id]
        _log.error("request %s failed", request.label, exc_info=cause)
        error = EngineFailedError(f"the request's output could not be delivered: {cause}")
        try:
            self._leave_scheduler(request_id)
        finally:
            self.end(request, FinishReason.ERROR, error=error)

    def _end_cancelled(self) -> None:
        cancelled, self.cancelled = self.cancelled, []
        for request, error in cancelled:
            if request.sequence.id not in self.requests:
                continue  # its last event has ended it
            if error is not None:
                self.end(request, FinishReason.ERROR, error=error)
                continue
            try:
                text = request.detokenizer.finish()
            except Exception as cause:
                self._fail_request(request.sequence.id, cause)
            else:
                self.end(request, FinishReason.CANCELLED, text)

    def end(
        self,
        request: Request,
        finish: FinishReason,
        text: str = "",
        tokens: tuple[TokenLogprob, ...] = (),
        error: HeddleError | None = None,
        embedding: array[float] | None = None,
    ) -> None:
        """Send the last delta of a request. Every request ends here."""
        del self.requests[request.sequence.id]
        self._when_ended(request.sequence)
        self.counters.finished[finish] += 1
        usage = request.usage
        request.end = finish, usage
        self.notify("on_finish", request)
        stop = request.detokenizer.stopped_by
        self._emit(request, Delta(text, tokens, finish, error, usage, stop, embedding=embedding))
        request.sink = _ignore  # a sink may refer to its ticket, which refers to the request

    def _emit(self, request: Request, delta: Delta) -> None:
        try:
            request.sink(delta)
        except Exception:
            _log.exception("the sink of request %s failed; it is cancelled", request.label)
            request.sink = _ignore
            self._cancels.add(request.sequence.id)

    def notify(self, what: str, *arguments: object) -> None:
        """Call a method of all observers."""
        for observer in self._observers:
            try:
                getattr(observer, what)(*arguments)
            except Exception:
                _log.exception("an observer failed in %s", what)


def _ignore(_: Delta) -> None:
    """Ignore a delta. Replaces a sink that failed, and the sink of a request that has ended."""
