"""Telemetry of an engine: snapshots, counters, and the calls to observers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from heddle.cache.manager import PrefixCacheStats
from heddle.disk.tier import DiskStats
from heddle.scheduler.sequence import SlotState
from heddle.types import FinishReason

if TYPE_CHECKING:
    from heddle.types import Usage

__all__ = [
    "Counters",
    "DiskStats",
    "EngineSnapshot",
    "Observer",
    "PrefixCacheStats",
    "SlotSnapshot",
]


class Observer(Protocol):
    """The engine thread calls these methods. They must not block. It only logs exceptions."""

    def on_submit(self) -> None:
        """A request was accepted."""
        ...

    def on_first_token(self, seconds: float) -> None:
        """A request got its first token, this long after it was submitted (TTFT)."""
        ...

    def on_token(self, seconds: float) -> None:
        """A request got a further token, this long after the one before (ITL)."""
        ...

    def on_finish(self, reason: FinishReason, usage: Usage) -> None:
        """A request ended."""
        ...


@dataclass(slots=True)
class Counters:
    """Totals since the engine started. Only the engine thread writes them.

    Attributes:
        finished: requests that ended, by reason.
        prompt_tokens: prompt tokens of requests that got a first token.
        generated_tokens: tokens sampled for requests.
        steps: steps with at least one chunk.
        step_seconds: wall time of all steps, from planning to delivery.
    """

    finished: dict[FinishReason, int] = field(
        default_factory=lambda: dict.fromkeys(FinishReason, 0)
    )
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """One slot. While it is free, the counts are 0 and `request` is None.

    Attributes:
        index: index of the slot.
        state: what the slot is doing.
        request: id of the request that holds it.
        prompt_tokens: length of the prompt.
        computed: tokens in the KV cache, prompt and output.
        generated_tokens: length of the output.
        cached_tokens: length of the prefix hit when the request started.
    """

    index: int
    state: SlotState = SlotState.FREE
    request: int | None = None
    prompt_tokens: int = 0
    computed: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """An engine at one moment. It takes no lock, so it may show a part of the step in flight.

    Attributes:
        slots: all slots, by index.
        running: how many slots are held.
        queue_depth: requests without a slot.
        finished: requests that ended since the start, by reason.
        prompt_tokens: prompt tokens of requests that got a first token, since the start.
        computed_prompt_tokens: prompt tokens that steps computed, since the start. Prefix hits do
            not count; tokens that preemption dropped do.
        generated_tokens: tokens sampled for requests, since the start.
        preemptions: how often a request was preempted, since the start.
        pages_used, pages_total: KV pages that running requests hold, and all KV pages.
        steps: steps computed since the start.
        step_seconds: wall time of all steps, planning and delivery included.
        compute_seconds: the part of `step_seconds` in which the executor computed. The rest is
            overhead.
        prefix_cache: figures of the prefix cache.
    """

    slots: tuple[SlotSnapshot, ...]
    running: int
    queue_depth: int
    finished: dict[FinishReason, int]
    prompt_tokens: int
    computed_prompt_tokens: int
    generated_tokens: int
    preemptions: int
    pages_used: int
    pages_total: int
    steps: int
    step_seconds: float
    compute_seconds: float
    prefix_cache: PrefixCacheStats
