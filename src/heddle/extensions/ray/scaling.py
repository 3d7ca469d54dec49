"""How many replicas there should be.

`wanted` is the decision, a pure function. Ray asks the policy several times per second and waits
before it follows: a longer queue must last for `queue_seconds`, and a smaller number must suffice
for `shrink_seconds` (`app.py`).

Ray copies this module into its controller, by value. So the module imports nothing of Heddle.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPARE = 0.8
"""The share of the slots of one replica fewer that may be taken when a replica stops. So the
number does not go up and down with each request."""


@dataclass(frozen=True)
class Load:
    """What one replica reports. A replica reports numbers by name, so all are numbers.

    Attributes:
        slots: requests that it computes at once.
        running: requests with a slot.
        waiting: requests without a slot.
        waiting_tokens: tokens that these need, of prompts and outputs.
        request_tokens: tokens of a usual request, prompt and output; 0: unknown.
        tokens_per_second: its rate while it computes, prompts and outputs; 0: unknown.
        idle_seconds: time since it last had a request.
    """

    slots: float
    running: float
    waiting: float
    waiting_tokens: float
    request_tokens: float
    tokens_per_second: float
    idle_seconds: float


@dataclass(frozen=True)
class Aim:
    """What the number of replicas is for.

    Attributes:
        fewest, most: bounds of the number.
        queue_seconds: expected time without a slot above which there should be more replicas.
        idle_seconds: time without requests after which there should be none, if `fewest` is 0.
    """

    fewest: int
    most: int
    queue_seconds: float
    idle_seconds: float


def wanted(loads: Sequence[Load], queued: float, target: int, aim: Aim) -> int:
    """The number of replicas that there should be.

    Args:
        loads: of the replicas that have reported. Others are starting.
        queued: requests that wait at ingresses.
        target: the number that there should be now. It changes by one downwards, and upwards by as
            many as the queue needs.
        aim: the bounds, and when to leave the number as it is.
    """
    if not loads:  # the first replica is starting, or none is needed
        return target
    lowest = max(1, aim.fewest)
    if target <= 1 and not aim.fewest and is_idle(loads, queued, aim.idle_seconds):
        return 0
    slots = sum(load.slots for load in loads) / len(loads)
    requests = queued + sum(load.running + load.waiting for load in loads)
    rate = mean_rate(loads)
    seconds = waiting_tokens(loads, queued) / rate if rate else 0.0  # for one replica
    number = target
    if seconds > aim.queue_seconds * target:
        # More replicas than give each request a slot are of no use.
        number = max(target, min(ceil(seconds / aim.queue_seconds), ceil(requests / slots)))
    elif seconds <= aim.queue_seconds * (target - 1) / 2:
        number -= requests <= _SPARE * slots * (target - 1)
    return min(max(number, lowest), aim.most)


def is_idle(loads: Sequence[Load], queued: float, seconds: float) -> bool:
    """Whether no replica had a request for some seconds, and none waits."""
    return not queued and all(load.idle_seconds >= seconds for load in loads)


def mean_rate(loads: Sequence[Load]) -> float:
    """Tokens per second of a replica that computes; 0.0 if none is known."""
    rates = [load.tokens_per_second for load in loads if load.tokens_per_second > 0.0]
    return sum(rates) / len(rates) if rates else 0.0


def waiting_tokens(loads: Sequence[Load], queued: float) -> float:
    """Tokens that all requests without a slot need: at replicas, and at ingresses."""
    usual = [load.request_tokens for load in loads if load.request_tokens > 0.0]
    at_ingresses = queued * sum(usual) / len(usual) if usual else 0.0
    return at_ingresses + sum(load.waiting_tokens for load in loads)


class QueueTimePolicy:
    """The decision for Ray's autoscaler."""

    def __init__(self, queue_seconds: float, idle_seconds: float) -> None:
        """The settings of :class:`Aim`. Ray has the bounds."""
        self._queue_seconds = queue_seconds
        self._idle_seconds = idle_seconds

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas, and no state. `context` is Ray's `AutoscalingContext`."""
        aim = Aim(
            context.capacity_adjusted_min_replicas,
            context.capacity_adjusted_max_replicas,
            self._queue_seconds,
            self._idle_seconds,
        )
        queued = context.total_queued_requests
        return wanted(reported(context.raw_metrics), queued, context.target_num_replicas, aim), {}


def reported(metrics: dict[str, dict[Any, Sequence[Any]]]) -> list[Load]:
    """The loads of replicas that have reported all numbers.

    Args:
        metrics: values with their times, by name of the number and id of the replica. The last one
            is the newest.
    """
    names = list(Load.__dataclass_fields__)
    by_name = [metrics.get(name, {}) for name in names]
    replicas = set(by_name[0]).intersection(*by_name)
    return [Load(*(values[one][-1].value for values in by_name)) for one in replicas]
