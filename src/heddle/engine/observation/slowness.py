"""Warns of requests that wait long and of steps that last long, with the reason.

The engine thread calls this while the next step computes, so writing a line delays no step.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from heddle.scheduler.waits import WaitReason, describe_wait

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle.engine.observation.activity import StepComposition
    from heddle.engine.requests.request import Request
    from heddle.scheduler.sequence import Sequence

_log = logging.getLogger(__name__)

SLOW = 2.0
"""Seconds of waiting, or of one step, after which a warning comes."""
QUIET = 10.0
"""Seconds between two warnings of one kind."""
_LOOK = 0.5  # seconds between two looks at the requests


class Slowness:
    """Looks for requests without progress. Used by the engine thread, with its times.

    Attributes:
        slow_steps: steps that lasted longer than SLOW seconds.
        slow_waits: requests that waited longer than SLOW seconds, by reason. A request counts again
            if it waits again.
        next_look: when to look next; before that, `look` has nothing to do.
    """

    def __init__(self, model: str) -> None:
        """`model` is the model's name, for the lines of the log."""
        self._model = model
        self.slow_steps = 0
        self.slow_waits = dict.fromkeys(WaitReason, 0)
        self._step: tuple[float, StepComposition] | None = None  # a slow step without a warning
        self.next_look = self._next_step_warning = self._next_wait_warning = 0.0
        # Requests that compute nothing, by id: computed and total tokens, since when, and whether
        # `slow_waits` counts this wait.
        self._waits: dict[int, tuple[tuple[int, int], float, bool]] = {}

    def note_step(self, seconds: float, step: StepComposition | None) -> None:
        """Note how long a step took. Writes nothing."""
        if seconds > SLOW and step is not None:
            self.slow_steps += 1
            self._step = seconds, step
            self.next_look = 0.0

    def look(
        self,
        now: float,
        requests: Mapping[int, Request],
        step: StepComposition | None,
        reason_of: Callable[[Sequence], WaitReason],
    ) -> None:
        """Warn of what is slow. Looks at no request if the last look was short ago.

        Args:
            now: time, by `time.perf_counter`.
            requests: requests that have not ended. Other threads may add some meanwhile.
            step: the step in flight, or the last one.
            reason_of: says why a sequence computes nothing.
        """
        if self._step is not None:
            self._warn_of_step(now)
        if now < self.next_look:
            return
        self.next_look = now + _LOOK
        in_step = () if step is None else step.tokens
        before, self._waits = self._waits, {}
        slow = []
        for request in list(requests.values()):
            sequence = request.sequence
            progress = (sequence.computed, sequence.total)
            began = request.first_step_at or request.submitted_at
            seen, since, counted = before.get(sequence.id, (progress, began, False))
            if seen != progress or sequence.paused or sequence.slot in in_step:
                since, counted = now, False
            if now - since > SLOW and not sequence.ended:
                reason = reason_of(sequence)
                self.slow_waits[reason] += not counted
                counted = True
                slow.append((now - since, request, reason))
            self._waits[sequence.id] = (progress, since, counted)
        if slow and now >= self._next_wait_warning:
            self._next_wait_warning = now + QUIET
            self._warn_of_waits(slow)

    def _warn_of_step(self, now: float) -> None:
        assert self._step is not None
        (seconds, step), self._step = self._step, None
        if now < self._next_step_warning:
            return
        self._next_step_warning = now + QUIET
        _log.warning(
            "%s: a step took %.1f s: %s, %d prompt tokens and %d decodes of %d requests",
            self._model,
            seconds,
            step.kind.value,
            step.prompt_tokens,
            step.decodes,
            step.sequences,
            extra={"fields": {"event": "slow_step", "model": self._model, "seconds": seconds}},
        )

    def _warn_of_waits(self, slow: list[tuple[float, Request, WaitReason]]) -> None:
        seconds, request, reason = max(slow, key=lambda one: one[0])
        others = f" ({len(slow) - 1} more requests wait)" if len(slow) > 1 else ""
        fields = {
            "event": "slow_request",
            "model": self._model,
            "request_id": request.log_id,
            "reason": reason.value,
            "seconds": seconds,
            "waiting": len(slow),
        }
        _log.warning(
            "%s: request %s has waited %.1f s: %s%s",
            self._model,
            request.label,
            seconds,
            describe_wait(request.sequence, reason),
            others,
            extra={"fields": fields},
        )
