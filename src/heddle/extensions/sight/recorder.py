"""Records the steps and the ended requests of one engine, for those who look at it later.

The engine thread writes, at a few microseconds a step. It records numbers only: no token ids, no
text. One other thread takes what was recorded.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

from heddle.engine.observation.telemetry import Observer
from heddle.extensions.sight.percentiles import Minute
from heddle.scheduler.sequence import SlotState
from heddle.step import Sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from heddle.engine.loop import EngineLoop
    from heddle.engine.requests.request import Request
    from heddle.roofline import Limits
    from heddle.scheduler.sequence import Sequence
    from heddle.step import StepPlan, StepResult

MOST_STEPS = 4096
"""Most steps that are kept: 30 s of the fastest ones, a minute of others."""
MOST_ENDED = 256
"""Most ended requests that are kept."""
_MOST_TICKS = 3600


class Row(NamedTuple):
    """What a step computed for one slot.

    Attributes:
        decode: 1 for a decode, 0 for tokens of a prompt.
        start: position of the first token.
        tokens: how many it computed, guesses included.
        guesses, right: draft tokens, and how many of them were right.
    """

    slot: int
    request: int
    decode: int
    start: int
    tokens: int
    guesses: int
    right: int


class Step(NamedTuple):
    """A step. `ended` is a time of `time.perf_counter`; `seconds` is how long it computed."""

    number: int
    ended: float
    seconds: float
    rows: tuple[Row, ...]


class RequestRow(NamedTuple):
    """A request at one moment. Times are those of `time.perf_counter`; 0: it has not happened."""

    id: int
    label: str
    client: Hashable | None
    slot: int
    state: str
    submitted: float
    started: float
    first_token: float
    ended: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    most_output: int | None
    drafted_tokens: int
    accepted_tokens: int
    finish: str | None


class Recorder(Observer):
    """The record of one engine.

    Attributes:
        steps, ended: the newest steps and ended requests, the oldest first. The reader takes them
            from the left.
        seen_steps, seen_ended: those that the reader has taken, for the reader. They stay here, so
            that the next viewer sees the last minute, too.
        since: when it was made. The engine is a new one if a viewer sees another time.
        first_tokens, gaps: times to first token, and between tokens.
        limits: the peak rates of the machine, if someone has measured them.
    """

    def __init__(self) -> None:
        self.steps: deque[Step] = deque(maxlen=MOST_STEPS)
        self.ended: deque[RequestRow] = deque(maxlen=MOST_ENDED)
        self.seen_steps: deque[Step] = deque(maxlen=MOST_STEPS)
        self.seen_ended: deque[RequestRow] = deque(maxlen=MOST_ENDED)
        self.first_tokens, self.gaps = Minute(), Minute()
        self.limits: Limits | None = None
        self._loop: Callable[[], EngineLoop | None] = lambda: None
        self._ticks: deque[tuple[int, float]] = deque(maxlen=_MOST_TICKS)
        self.since = time.perf_counter()
        self._tick = 0, self.since

    def begin(self, loop: EngineLoop) -> None:
        """Record from now on. The engine thread calls this."""
        self._loop = ref(loop)  # else an engine would stay, with all its memory
        loop.delivery.observe(self)

    # --- the engine thread -----------------------------------------------------------------------

    def on_first_token(self, seconds: float) -> None:
        self.first_tokens.add(seconds, time.perf_counter())

    def on_token(self, seconds: float) -> None:
        self.gaps.add(seconds, time.perf_counter())

    def on_finish(self, request: Request) -> None:
        self.ended.append(row_of(request, time.perf_counter()))

    def on_step(
        self,
        number: int,
        plan: StepPlan,
        result: StepResult,
        seconds: float,
        sequences: list[Sequence | None],
    ) -> None:
        loop, sampled = self._loop(), Counter[int]()
        assert loop is not None, "it calls this"
        if any(chunk.guesses for chunk in plan.chunks):
            sampled.update(one.slot for one in result.sampled if isinstance(one, Sampled))
        rows = []
        for chunk in plan.chunks:
            sequence = sequences[chunk.slot]
            if sequence is None:
                continue
            start, tokens, guesses = chunk.start, len(chunk.tokens), chunk.guesses
            right = max(0, sampled[chunk.slot] - 1) if guesses else 0
            decodes = tokens - guesses == 1 and chunk.sample and start >= sequence.prompt_tokens
            rows.append(Row(chunk.slot, sequence.id, int(decodes), start, tokens, guesses, right))
        now = loop.delivery.computed_at
        self.steps.append(Step(number, now, seconds, tuple(rows)))
        self._tick = loop.cache.prefixes.tree.clock, now
        if not self._ticks or now - self._ticks[-1][1] >= 1.0:
            self._ticks.append(self._tick)

    def used_at(self, clock: int) -> float:
        """When the prefix tree's clock showed this number, to a second; an hour ago if before."""
        return next((now for tick, now in self._ticks if tick >= clock), self._tick[1])

    # --- the reader ------------------------------------------------------------------------------

    def requests(self) -> list[RequestRow]:
        """The requests that run or wait. Any thread may call this."""
        loop = self._loop()
        if loop is None:
            return []
        return [row_of(request) for request in list(loop.delivery.requests.values())]


def row_of(request: Request, ended: float = 0.0) -> RequestRow:
    """The figures of a request now."""
    sequence, usage, end = request.sequence, request.usage, request.end
    return RequestRow(
        id=sequence.id,
        label=request.log_id,
        client=sequence.client,
        slot=sequence.slot,
        state=_state(request),
        submitted=request.submitted_at,
        started=request.first_step_at,
        first_token=request.first_token_at,
        ended=ended,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        most_output=sequence.most_output,
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
        finish=None if end is None else end[0].value,
    )


def _state(request: Request) -> str:
    if request.end is not None:
        return "done"
    if request.sequence.ended or request.cancelled:
        return "draining"
    if request.sequence.slot < 0:
        return "waiting"
    if request.sequence.wants_looks:
        return SlotState.WAITING_FOR_PICTURE.value
    return "decode" if request.first_token_at else "prefill"
