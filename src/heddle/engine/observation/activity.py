"""The engine's activity now: what its thread does, the latest step, rates over the last seconds.

The engine thread writes, at a few microseconds a step. Any thread reads without a lock, so a figure
may miss a part of the step in flight.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

from heddle.step import Sampled

if TYPE_CHECKING:
    from collections import abc
    from collections.abc import Callable

    from heddle.scheduler.pace import Pace
    from heddle.scheduler.sequence import Sequence
    from heddle.step import Outcome, StepPlan

WINDOW = 5.0
"""Seconds over which rates and utilisation are measured."""
_SLICES = 20
_SLICE = WINDOW / _SLICES

_BUSY, _PROMPT, _GENERATED = range(3)
_TOTALS = 3  # columns before those of the slots

_PATIENCE = 10.0
"""A step may take this many times the expected time, beside the setting."""
_FIRST_TOKEN = 1.0
"""Seconds for each token of a step while the pace knows nothing."""


class Phase(StrEnum):
    """The phases of an engine thread."""

    IDLE = "idle"
    TURN = "waiting for the step of another model"
    WAITING = "waiting for the disk, a mask or a caller"
    PLANNING = "planning a step"
    COMPUTING = "computing a step"
    DELIVERING = "delivering tokens"


class Beat(NamedTuple):
    """The latest progress of the engine thread.

    Attributes:
        phase: the thread's phase.
        step: number of the next step, or of the step in flight.
        since: when it last made progress, in seconds of the clock.
        allowance: seconds that this phase may take beyond the limit.
    """

    phase: Phase
    step: int
    since: float
    allowance: float


class LeftBehindError(BaseException):
    """The engine thread hung for so long that another thread has ended the engine in its place."""


class Heartbeat:
    """The latest beat. The engine thread writes it; any thread may read it, without a lock.

    Attributes:
        step: number of the next step, or of the step in flight.
        now: the latest beat.
        left_behind: whether another thread has ended the engine in place of its own.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # orders `enter` and `leave_behind`
        self.step = 0
        self.left_behind = False
        self.now = Beat(Phase.IDLE, 0, clock(), 0.0)

    def enter(self, phase: Phase, allowance: float = 0.0) -> None:
        """Note what the thread does now. A wait, and planning after it, are no progress.

        Raises:
            LeftBehindError: the thread must not touch the engine any more.
        """
        last = self.now
        waits = phase is Phase.WAITING
        plans_again = phase is Phase.PLANNING and last.phase in (Phase.WAITING, Phase.PLANNING)
        since = last.since if waits or plans_again else self._clock()
        with self._lock:
            if self.left_behind:
                raise LeftBehindError
            self.now = Beat(phase, self.step, since, allowance)

    def leave_behind(self, beat: Beat) -> bool:
        """Let the thread end at its next beat, unless it has gone on since `beat`.

        The calling thread then ends the engine. Returns whether it must do so.
        """
        with self._lock:
            here = self.now is beat and not self.left_behind
            self.left_behind = self.left_behind or here
        return here


class StepKind(Enum):
    """Kinds of steps: a step computes prompt tokens, decodes, or both."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class StepComposition:
    """The tokens that one step computes.

    Attributes:
        tokens: number of tokens of each slot that the step computes.
        decodes: number of sequences that decode: one token each.
        prompt_tokens: number of the other tokens: of prompts, and dropped by a preemption before.
    """

    tokens: abc.Mapping[int, int]
    decodes: int
    prompt_tokens: int

    @property
    def sequences(self) -> int:
        """Number of sequences with tokens in the step."""
        return len(self.tokens)

    @property
    def kind(self) -> StepKind:
        if not self.decodes:
            return StepKind.PREFILL
        return StepKind.DECODE if self.decodes == len(self.tokens) else StepKind.MIXED

    @classmethod
    def of(cls, plan: StepPlan, slots: abc.Sequence[Sequence | None]) -> StepComposition:
        """The composition of a plan that the scheduler has not applied yet."""
        tokens, decodes, prompt_tokens = {}, 0, 0
        for chunk in plan.chunks:
            slot = chunk.slot
            tokens[slot] = count = len(chunk.tokens)
            sequence = slots[slot]
            if sequence is not None and sequence.generating:
                decodes += 1
            else:
                prompt_tokens += count
        return cls(tokens, decodes, prompt_tokens)


class Activity:
    """Totals of steps by kind, the latest step, and sums over the last WINDOW seconds.

    The window has slices. A sum covers the complete slices and the current one so far: 4.75 to 5
    seconds, or the time since the start if that is shorter.

    Attributes:
        step_began: when the engine began to plan the step in flight; None between steps. The engine
            sets it, and `end` forgets it.
        latest: the step in flight or the last one; None before the first step.
        steps: computed steps by kind.
        prompt_tokens: tokens that steps computed and that were no decodes.
        decodes: tokens that steps computed as decodes.
        sequences: sequences of each step, added up.
    """

    def __init__(self, slots: int, now: float | None = None) -> None:
        """`now` is the time of the start, by `time.perf_counter`; None: the current time."""
        self.latest: StepComposition | None = None
        self.steps = dict.fromkeys(StepKind, 0)
        self.prompt_tokens = self.decodes = self.sequences = 0
        self._started = time.perf_counter() if now is None else now
        self.step_began: float | None = None
        self._columns = _TOTALS + slots
        self._numbers = [-1] * _SLICES  # the slice that each row holds, counted from time 0
        self._rows = [[0.0] * self._columns for _ in range(_SLICES)]
        self._first_token_at: list[float | None] = [None] * slots

    # --- written by the engine thread ------------------------------------------------------------

    def note_plan(self, plan: StepPlan, slots: abc.Sequence[Sequence | None]) -> None:
        """Note the composition of a step that the executor has begun."""
        for binding in plan.bindings:
            self._first_token_at[binding.slot] = None
            for row in self._rows:
                row[_TOTALS + binding.slot] = 0.0
        step = self.latest = StepComposition.of(plan, slots)
        self.steps[step.kind] += 1
        self.prompt_tokens += step.prompt_tokens
        self.decodes += step.decodes
        self.sequences += len(step.tokens)

    def note_result(self, sampled: abc.Sequence[Outcome], now: float) -> None:
        """Note the tokens of a step that has ended."""
        assert self.latest is not None
        row = self._row(now)
        row[_PROMPT] += self.latest.prompt_tokens
        for outcome in sampled:
            if isinstance(outcome, Sampled):
                row[_GENERATED] += 1
                if self._first_token_at[outcome.slot] is None:
                    self._first_token_at[outcome.slot] = now
                else:
                    row[_TOTALS + outcome.slot] += 1

    def end(self, now: float) -> None:
        """Note that the engine has done all work of a step. Divide its time among the slices."""
        began, self.step_began = self.step_began, None
        if began is None:
            return
        at = began if now - began < _SLICE else max(began, self._window_start(now))
        while (following := (at // _SLICE + 1) * _SLICE) < now:
            self._row(at)[_BUSY] += following - at
            at = following
        self._row(at)[_BUSY] += now - at

    def _row(self, at: float) -> list[float]:
        """The sums of the slice at a time."""
        number = int(at // _SLICE)
        place = number % _SLICES
        if self._numbers[place] != number:
            self._rows[place] = [0.0] * self._columns
            self._numbers[place] = number
        return self._rows[place]

    # --- read by any thread ----------------------------------------------------------------------

    def utilisation(self, now: float) -> float:
        """Share of the window's wall time that steps, with planning and delivery, and eyes took.

        In [0, 1]. The step in flight counts with its time so far.
        """
        began, seconds = self.step_began, self._sum(_BUSY, now)
        since = self._window_start(now)
        if began is not None:
            seconds += max(0.0, now - max(began, since))
        return min(1.0, seconds / max(now - since, 1e-9))

    def prompt_rate(self, now: float) -> float:
        """Prompt tokens per second that steps computed in the window."""
        return self._sum(_PROMPT, now) / max(now - self._window_start(now), 1e-9)

    def token_rate(self, now: float) -> float:
        """Generated tokens per second in the window, of all slots."""
        return self._sum(_GENERATED, now) / max(now - self._window_start(now), 1e-9)

    def slot_rate(self, slot: int, now: float) -> float:
        """Generated tokens per second of the sequence in a slot, without its first token.

        Over the window, or since its first token if that is shorter. 0 before its second token.
        """
        first = self._first_token_at[slot]
        if first is None:
            return 0.0
        seconds = now - max(first, self._window_start(now))
        return self._sum(_TOTALS + slot, now) / seconds if seconds > 0.0 else 0.0

    def _window_start(self, now: float) -> float:
        return max(self._started, (now // _SLICE - _SLICES + 1) * _SLICE)

    def _sum(self, column: int, now: float) -> float:
        oldest = int(now // _SLICE) - _SLICES + 1
        pairs = zip(self._numbers, self._rows, strict=True)
        return sum(row[column] for number, row in pairs if number >= oldest)


def step_allowance(plan: StepPlan, pace: Pace) -> float:
    """Seconds that a step may take beyond the limit."""
    decodes = sum(chunk.sample and len(chunk.tokens) == chunk.guesses + 1 for chunk in plan.chunks)
    tokens = sum(len(chunk.tokens) for chunk in plan.chunks)
    expected = pace.expected_seconds(decodes, tokens - decodes)
    return _FIRST_TOKEN * tokens if expected is None else _PATIENCE * expected
