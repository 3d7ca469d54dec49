"""The decision: which replicas may answer a request, the best first. A pure function.

The cost of a replica is in seconds:

    cost = queue + loading of model and adapter + weight x tokens that it lacks x seconds per token

The replica with the least cost is the one with the longest prefix, unless its queue is longer than
that of another by more than its prefix saves. So a prefix attracts requests, but no more of them
than it is worth: a popular prefix spreads over replicas when their queues grow.

The weight is 1 while replicas are idle: then the cost is the time to first token. Work on a busy
replica delays the requests after it, too: by 1 / (1 - utilisation) of its own time in a queue at
random arrivals. The part of replicas with work that waits is the utilisation. So a prefix is worth
more when the whole fleet is busy: up to `MOST_WEIGHT` times, so that the wait for it is bounded.

Replicas of about the same cost are tied. The tie is broken by a hash of the request and of the
replica's name: the same everywhere, and different requests go to different replicas.

*Fairness.* Within a replica, the scheduler serves clients in turn. Over the fleet, a client whose
requests wait at every replica would still delay all others. So a client is confined if it has more
than its share of the waiting work (`OVER_SHARE` times the work divided by the number of clients)
and its work is more than `FAIR_SECONDS` of the whole fleet. With n clients waiting, its requests go
to one n-th of the replicas, which follow from its name. It can fill these queues, and no others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelUnavailableError
from heddle.extensions.ray.routing.blocks import TOKENS, Key
from heddle.extensions.ray.routing.fleet import Fleet, random_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_CANDIDATES = 4
TIE_SECONDS = 0.001
MOST_WEIGHT = 4.0
OVER_SHARE, FAIR_SECONDS = 1.5, 0.5

_NO_KEY = Key()
_TOKENS = np.array(TOKENS, np.float64)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)


class NoReplicaError(ModelUnavailableError):
    """No replica of the deployment can serve the request now."""

    code = "no_replica"


class Reason(StrEnum):
    """Why a replica is where it is in the order."""

    PREFIX = "it holds the longest prefix"
    QUEUE = "replicas with a longer prefix have queues longer than the prefix saves"
    LEAST = "no replica holds a prefix, and this one is ready first"
    NEXT = "it is next if the ones before refuse"


@dataclass(frozen=True, slots=True)
class Ask:
    """What the decision needs of a request.

    Attributes:
        key: of `blocks`.
        model, adapter: names; "" is what replicas have anyway.
        client: whose request it is, for fairness.
        avoid: names of replicas that must not get it, such as lost ones.
    """

    key: Key = _NO_KEY
    model: str = ""
    adapter: str = ""
    client: str = ""
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that may answer.

    Attributes:
        held: hashes of the key that it holds.
        queue, delay, work: seconds of waiting work, of loading, and of computing the rest.
    """

    name: str
    reason: Reason
    held: int
    queue: float
    delay: float
    work: float


def choose(ask: Ask, fleet: Fleet, now: float) -> list[Candidate]:
    """The replicas that may answer, the best first; at most `MOST_CANDIDATES`.

    Args:
        now: Unix time in seconds.

    Raises:
        NoReplicaError: there is none.
    """
    delays = fleet.delays(ask.model, ask.adapter)
    queues = np.maximum(fleet.busy_until - now, 0.0)
    held = np.zeros(len(delays), np.intp)
    for depth, slots in fleet.match(ask.key.hashes):
        held[_slots(slots, len(delays))] = depth
    work = (ask.key.tokens - _TOKENS[held]) * fleet.seconds_per_token
    costs = queues + delays + _weight(queues, delays) * work
    for name in ask.avoid:
        slot = fleet.slot(name)
        if slot is not None:
            costs[slot] = math.inf
    _confine(costs, ask.client, fleet)
    order = _order(costs, ask, fleet)
    if not order:
        raise _none(ask, fleet, delays)
    longest = int(held[costs < math.inf].max())
    return [
        Candidate(
            name=fleet.name(slot),
            reason=_reason(rank, int(held[slot]), longest),
            held=int(held[slot]),
            queue=float(queues[slot]),
            delay=float(delays[slot]),
            work=float(work[slot]),
        )
        for rank, slot in enumerate(order)
    ]


def _weight(queues: NDArray[np.float64], delays: NDArray[np.float64]) -> float:
    """How often the work of a request counts: 1 / (1 - utilisation), at most `MOST_WEIGHT`."""
    able = delays < math.inf
    idle = int(np.count_nonzero(able & (queues == 0.0)))
    return min(MOST_WEIGHT, np.count_nonzero(able) / idle) if idle else MOST_WEIGHT


def _slots(mask: int, count: int) -> list[int] | NDArray[np.bool_]:
    """The slots of a bitmask, of `count` in all, as an index of an array."""
    if mask.bit_count() > 8:
        data = np.frombuffer(mask.to_bytes((count + 7) // 8, "little"), np.uint8)
        return np.unpackbits(data, count=count, bitorder="little").view(np.bool_)
    slots = []
    while mask:
        lowest = mask & -mask
        slots.append(lowest.bit_length() - 1)
        mask ^= lowest
    return slots


def _confine(costs: NDArray[np.float64], client: str, fleet: Fleet) -> None:
    """Leave a client that has more than its share only its part of the replicas."""
    part, clients = fleet.share(client)
    if part * clients <= OVER_SHARE or fleet.backlog(client) <= FAIR_SECONDS:
        return
    able = np.flatnonzero(costs < math.inf)
    most = math.ceil(len(able) / clients)
    if most < len(able):
        ranks = _mixed(fleet.ties[able], random_of(client))
        costs[able[np.argpartition(ranks, most)[most:]]] = math.inf


def _order(costs: NDArray[np.float64], ask: Ask, fleet: Fleet) -> list[int]:
    """The slots with the least costs, the best first, without those of infinite cost."""
    order: list[int] = []
    left = costs.copy()
    while len(order) < min(MOST_CANDIDATES, len(left)):
        slot = int(left.argmin())
        if left[slot] == math.inf:
            break
        if not order:
            tied = np.flatnonzero(left <= left[slot] + TIE_SECONDS)
            if len(tied) > 1:
                seed = ask.key.hashes[-1] if ask.key.hashes else random_of(ask.client)
                slot = int(tied[_mixed(fleet.ties[tied], seed).argmax()])
        order.append(slot)
        left[slot] = math.inf
    return order


def _mixed(ties: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """A random number for each replica and this seed."""
    mixed = (ties ^ np.uint64(seed)) * _MIX
    return (mixed ^ (mixed >> _SHIFT)) * _MIX


def _reason(rank: int, held: int, longest: int) -> Reason:
    if rank:
        return Reason.NEXT
    if not longest:
        return Reason.LEAST
    return Reason.PREFIX if held == longest else Reason.QUEUE


def _none(ask: Ask, fleet: Fleet, delays: NDArray[np.float64]) -> NoReplicaError:
    """The error that says why no replica can serve."""
    model = ask.model or "the deployment's model"
    able = int(np.count_nonzero(delays < math.inf))
    if able:
        return NoReplicaError(
            f"{model} has {able} replicas, and all of them were lost or have failed this request. "
            "Send it again when the deployment has started others.",
            retry_after=5.0,
        )
    if not len(fleet):
        return NoReplicaError(
            f"{model} has no replica. Wait until the deployment has started one.", retry_after=5.0
        )
    return NoReplicaError(
        f"None of {len(fleet)} replicas can serve {model}: they drain, or have not this model. "
        "Wait for new replicas, or deploy the model.",
        retry_after=5.0,
    )
