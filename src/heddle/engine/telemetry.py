"""What an engine tells about itself: snapshots, counters, calls to observers."""

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
    """Called from the engine thread; must not block. What it raises is logged and dropped."""

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
    """Running totals since the engine started. Written by the engine thread alone.

    Attributes:
        finished: requests that ended, by reason.
        prompt_tokens: prompt tokens of requests that got a first token.
        generated_tokens: tokens sampled for requests.
        steps: steps that carried something.
        step_seconds: wall time from having work to having delivered what came of it, of all steps.
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
    """One slot. The counts are 0 and `request` is None while it is free.

    Attributes:
        index: of the slot.
        state: what it is doing.
        request: id of the request that holds it.
        prompt_tokens: length of the prompt.
        computed: tokens in the KV cache, prompt and output.
        generated_tokens: length of the output.
        cached_tokens: tokens that the prefix cache had when the request began.
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
    """An engine at one moment. Read without a lock: the step in flight may show in part.

    Attributes:
        slots: all slots, by index.
        running: how many of them are held.
        queue_depth: requests without a slot.
        finished: requests that ended since the start, by reason.
        prompt_tokens: prompt tokens of requests that got a first token, since the start.
        computed_prompt_tokens: prompt tokens that were computed and not found in the prefix cache,
            since the start; those that preemption threw away included.
        generated_tokens: tokens sampled for requests, since the start.
        preemptions: how often a request gave its slot and pages back, since the start.
        pages_used, pages_total: KV pages that running requests hold, and all.
        steps: steps computed since the start.
        step_seconds: wall time of all steps, planning and delivery included.
        compute_seconds: the part of it that the executor computed. The rest is overhead.
        prefix_cache: what the prefix cache has and did.
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
