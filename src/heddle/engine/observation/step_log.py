"""Lines of the log about steps, at level DEBUG. The engine asks once a step for the level."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.engine.requests.request import Request
    from heddle.scheduler.sequence import Sequence as SchedulerSequence
    from heddle.step import StepPlan

LOG = logging.getLogger(__name__)


def log_prompts(
    plan: StepPlan, slots: Sequence[SchedulerSequence | None], requests: Mapping[int, Request]
) -> None:
    """Log the chunks of prompts in a step that begins. `plan` is not applied yet."""
    for chunk in plan.chunks:
        sequence = slots[chunk.slot]
        if sequence is None or sequence.generating:
            continue
        LOG.debug(
            "request %s, slot %d: prompt tokens %d to %d of %d, prefix hit %d",
            requests[sequence.id].label,
            chunk.slot,
            chunk.start,
            chunk.start + len(chunk.tokens),
            sequence.total,
            sequence.cached_tokens or 0,
        )


def log_step(number: int, plan: StepPlan, seconds: float) -> None:
    """Log a step that has ended."""
    tokens = sum(len(chunk.tokens) for chunk in plan.chunks)
    LOG.debug(
        "step %d: %d sequences, %d tokens, %.2f ms", number, len(plan.chunks), tokens, 1e3 * seconds
    )
