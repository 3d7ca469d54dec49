"""The figures of an engine at one moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from heddle.engine.observation.telemetry import ActivitySnapshot, EngineSnapshot, SlotSnapshot
from heddle.scheduler.sequence import SlotState

if TYPE_CHECKING:
    from collections.abc import Container

    from heddle.cache.cache import Cache
    from heddle.engine.observation.activity import Activity
    from heddle.engine.observation.slowness import Slowness
    from heddle.engine.observation.telemetry import Counters
    from heddle.scheduler.scheduler import Scheduler
    from heddle.scheduler.speculation import Speculator


def take_snapshot(
    scheduler: Scheduler,
    speculator: Speculator,
    cache: Cache,
    counters: Counters,
    activity: Activity,
    slowness: Slowness,
    *,
    draining: Container[int],
    compute_seconds: float,
) -> EngineSnapshot:
    """Slots, queue, pages and totals. Takes no lock.

    `draining` has the ids of sequences that are cancelled.
    """
    now = time.perf_counter()
    in_step = {} if activity.latest is None else activity.latest.tokens
    slots = []
    for index, sequence in enumerate(scheduler.slots):
        if sequence is None:
            slots.append(SlotSnapshot(index))
            continue
        slots.append(
            SlotSnapshot(
                index=index,
                state=SlotState.DRAINING if sequence.id in draining else sequence.state,
                request=sequence.id,
                prompt_tokens=sequence.prompt_tokens,
                computed=sequence.computed,
                generated_tokens=sequence.output_tokens,
                most_output=sequence.most_output,
                cached_tokens=sequence.cached_tokens or 0,
                step_tokens=in_step.get(index, 0),
                tokens_per_second=activity.slot_rate(index, now),
            )
        )
    return EngineSnapshot(
        slots=tuple(slots),
        running=sum(slot.request is not None for slot in slots),
        queue_depth=scheduler.queue.waiting,
        waiting_tokens=scheduler.waiting_tokens(),
        busy_rate=scheduler.busy_rate,
        finished=dict(counters.finished),
        prompt_tokens=counters.prompt_tokens,
        computed_prompt_tokens=scheduler.computed_prompt_tokens,
        generated_tokens=counters.generated_tokens,
        preemptions=scheduler.admission.preemptions,
        drafted_tokens=speculator.counts.drafted,
        accepted_tokens=speculator.counts.accepted,
        pages_used=cache.pages.size - cache.pages.available,
        pages_total=cache.pages.size,
        steps=sum(activity.steps.values()),
        step_seconds=counters.step_seconds,
        compute_seconds=compute_seconds,
        prefix_cache=cache.stats(),
        activity=ActivitySnapshot.of(activity, slowness, now),
    )
