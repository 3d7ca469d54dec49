"""The health of an engine: whether it serves requests, and if not, what failed."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.executor import Executor, LogitsSummary
    from heddle.step import StepPlan

_log = logging.getLogger(__name__)


class HealthState(StrEnum):
    """Whether an engine serves requests.

    A stuck engine still takes them, but its thread makes no progress. A poisoned engine refuses
    them because a step failed; its memory is free, and the model must be loaded again.
    """

    OK = "ok"
    STUCK = "stuck"
    POISONED = "poisoned"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class ChunkSummary:
    """A chunk of a failed step: the request's id, the first position, and how many tokens."""

    request: int
    start: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Poison:
    """The failure that ended an engine.

    Attributes:
        reason: the failure, in one sentence without its full stop.
        step: number of the failed step, from 0; None if the engine failed outside a step.
        chunks: the chunks that the failed step computed.
        logits: figures of the newest logits, perhaps those of the step before; None if there are
            none.
    """

    reason: str
    step: int | None = None
    chunks: tuple[ChunkSummary, ...] = ()
    logits: LogitsSummary | None = None

    def __str__(self) -> str:
        """All of it, for the log."""
        chunks = ", ".join(
            f"request {chunk.request}: {chunk.tokens} tokens from position {chunk.start}"
            for chunk in self.chunks
        )
        return f"{self.reason}; chunks: {chunks or 'none'}; logits: {self.logits or 'none'}"


@dataclass(frozen=True, slots=True)
class Health:
    """The state of an engine.

    Attributes:
        state: whether it serves requests.
        poison: the failure of a poisoned engine, else None.
        live: whether its thread can be expected to go on, or has ended in good order. Else only a
            new process helps.
    """

    state: HealthState
    poison: Poison | None = None
    live: bool = True

    @property
    def ready(self) -> bool:
        """Whether new requests are welcome."""
        return self.state is HealthState.OK


def poison_of(
    step: int, plan: StepPlan, requests: Mapping[int, int], executor: Executor, cause: Exception
) -> Poison:
    """Describe the failure of a step. `requests` has the request's id of each slot."""
    return Poison(
        reason=f"step {step} failed: {cause}",
        step=step,
        chunks=tuple(
            ChunkSummary(requests[chunk.slot], chunk.start, len(chunk.tokens))
            for chunk in plan.chunks
        ),
        logits=_logits_of(executor),
    )


def _logits_of(executor: Executor) -> LogitsSummary | None:
    """Figures of the executor's logits. An executor that has failed may not have them."""
    try:
        return executor.logits_summary()
    except Exception:
        _log.exception("the logits of the failed step cannot be read")
        return None
