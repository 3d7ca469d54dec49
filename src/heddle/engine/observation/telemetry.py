"""Telemetry of an engine: snapshots, counters, and the calls to observers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.cache.cache import PrefixCacheStats
from heddle.disk.tier import DiskStats
from heddle.outputs import FinishReason
from heddle.scheduler.sequence import SlotState

if TYPE_CHECKING:
    from heddle.engine.observation.activity import Activity, StepComposition, StepKind
    from heddle.engine.observation.slowness import Slowness
    from heddle.engine.requests.request import Request
    from heddle.scheduler.sequence import Sequence
    from heddle.scheduler.waits import WaitReason
    from heddle.step import StepPlan, StepResult

__all__ = [
    "ActivitySnapshot",
    "Counters",
    "DiskStats",
    "EngineSnapshot",
    "Observer",
    "PrefixCacheStats",
    "SlotSnapshot",
]


class Observer:
    """The engine thread calls these methods. They must not block. It only logs exceptions.

    Subclasses have those that they need.
    """

    def on_submit(self) -> None:
        """A request was accepted."""

    def on_start(self, queue_seconds: float) -> None:
        """A request got its first step, this long after it was submitted."""

    def on_first_token(self, seconds: float) -> None:
        """A request got its first token, this long after it was submitted (TTFT)."""

    def on_token(self, seconds: float) -> None:
        """A request got a further token, this long after the one before (ITL)."""

    def on_finish(self, request: Request) -> None:
        """A request ended. `request.end` says why, and has its usage."""

    def on_step(
        self,
        number: int,
        plan: StepPlan,
        result: StepResult,
        seconds: float,
        sequences: list[Sequence | None],
    ) -> None:
        """A step has computed for so long. The next one may compute already.

        The result is applied. Deltas are not sent yet, except those of driven sequences.
        `sequences` had the slots in the step.
        """


@dataclass(slots=True)
class Counters:
    """Totals since the engine started. Only the engine thread writes them.

    Attributes:
        finished: requests that ended, by reason.
        prompt_tokens: prompt tokens of requests that got a first token.
        generated_tokens: tokens sampled for requests.
        step_seconds: wall time of all steps, from planning to delivery.
    """

    finished: dict[FinishReason, int] = field(
        default_factory=lambda: dict.fromkeys(FinishReason, 0)
    )
    prompt_tokens: int = 0
    generated_tokens: int = 0
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """One slot. While it is free, the counts are 0 and `request` is None.

    Attributes:
        index: index of the slot.
        state: the state of the slot.
        request: id of the request that holds it.
        prompt_tokens: length of the prompt.
        computed: tokens in the KV cache, prompt and output.
        generated_tokens: length of the output.
        most_output: most tokens of the output; None if the request sets no limit.
        cached_tokens: length of the prefix hit when the request started.
        step_tokens: tokens of the request that the latest step computes.
        tokens_per_second: generated tokens per second in the last seconds, without the first token
            of the request (see `Activity.slot_rate`).
    """

    index: int
    state: SlotState = SlotState.FREE
    request: int | None = None
    prompt_tokens: int = 0
    computed: int = 0
    generated_tokens: int = 0
    most_output: int | None = None
    cached_tokens: int = 0
    step_tokens: int = 0
    tokens_per_second: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class ActivitySnapshot:
    """The activity of an engine at one moment; see `Activity`.

    Attributes:
        utilisation: share of the wall time of the last seconds that steps and eyes took, in [0, 1].
        tokens_per_second: generated tokens per second in the last seconds, of all slots.
        prompt_tokens_per_second: computed prompt tokens per second in the last seconds.
        step: the step in flight or the last one; None before the first step.
        steps: steps since the start, by kind.
        prompt_tokens, decodes, sequences: sums over all steps since the start.
        slow_steps: steps since the start that lasted longer than 2 s.
        slow_waits: requests since the start that computed nothing for 2 s, by reason.
    """

    utilisation: float
    tokens_per_second: float
    prompt_tokens_per_second: float
    step: StepComposition | None
    steps: dict[StepKind, int]
    prompt_tokens: int
    decodes: int
    sequences: int
    slow_steps: int
    slow_waits: dict[WaitReason, int]

    @classmethod
    def of(cls, activity: Activity, slowness: Slowness, now: float) -> ActivitySnapshot:
        """The figures at a time, by `time.perf_counter`."""
        return cls(
            utilisation=activity.utilisation(now),
            tokens_per_second=activity.token_rate(now),
            prompt_tokens_per_second=activity.prompt_rate(now),
            step=activity.latest,
            steps=dict(activity.steps),
            prompt_tokens=activity.prompt_tokens,
            decodes=activity.decodes,
            sequences=activity.sequences,
            slow_steps=slowness.slow_steps,
            slow_waits=dict(slowness.slow_waits),
        )


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """An engine at one moment. It takes no lock, so it may show a part of the step in flight.

    Attributes:
        slots: all slots, by index.
        running: how many slots are held.
        queue_depth: requests without a slot.
        waiting_tokens: tokens that requests without a slot need: of their prompts, and outputs of
            the usual length.
        busy_rate: prompt and output tokens per second of recent steps, without the time between
            steps; 0.0 before any step was timed.
        finished: requests that ended since the start, by reason.
        prompt_tokens: prompt tokens of requests that got a first token, since the start.
        computed_prompt_tokens: prompt tokens that steps computed, since the start. Prefix hits do
            not count; tokens that preemption dropped do.
        generated_tokens: tokens sampled for requests, since the start.
        preemptions: how often a request was preempted, since the start.
        drafted_tokens: guesses that steps computed, since the start.
        accepted_tokens: how many of these guesses were right.
        pages_used, pages_total: KV pages that running requests hold, and all KV pages.
        steps: steps computed since the start.
        step_seconds: wall time of all steps, planning and delivery included.
        compute_seconds: the part of `step_seconds` in which the executor computed. The rest is
            overhead.
        prefix_cache: figures of the prefix cache.
        activity: rates, utilisation and steps by kind.
    """

    slots: tuple[SlotSnapshot, ...]
    running: int
    queue_depth: int
    waiting_tokens: int
    busy_rate: float
    finished: dict[FinishReason, int]
    prompt_tokens: int
    computed_prompt_tokens: int
    generated_tokens: int
    preemptions: int
    drafted_tokens: int
    accepted_tokens: int
    pages_used: int
    pages_total: int
    steps: int
    step_seconds: float
    compute_seconds: float
    prefix_cache: PrefixCacheStats
    activity: ActivitySnapshot
