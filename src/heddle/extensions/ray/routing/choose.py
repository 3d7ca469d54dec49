"""The decision: which replica answers a request. A pure function.

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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from heddle.errors import ModelUnavailableError
from heddle.extensions.ray.routing.blocks import TOKENS, Key
from heddle.extensions.ray.routing.fleet import Fleet, random_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_OTHERS = 3
TIE_SECONDS = 0.001
MOST_WEIGHT = 4.0
OVER_SHARE, FAIR_SECONDS = 1.5, 0.5
_FEW = 32  # a loop handles so many slots of a bitmask faster than operations on arrays do

_NO_KEY = Key()


class NoReplicaError(ModelUnavailableError):
    """No replica of the deployment can serve the request now."""

    code = "no_replica"


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


class Choice(NamedTuple):
    """The replica that answers a request, and those that may if it refuses.

    Attributes:
        held: hashes of the key that it holds.
        delay: seconds until it has loaded what the request needs.
        others: names, the best first; at most `MOST_OTHERS`.
    """

    name: str
    held: int
    delay: float
    others: tuple[str, ...]


def choose(ask: Ask, fleet: Fleet, now: float) -> Choice:
    """The replica of the least cost.

    An operation on arrays of 1,000 replicas takes 1 us. The first of its kind in a decision takes 1
    to 2 us more, because the work between decisions has replaced its code in the processor's
    caches. So there are few operations, of few kinds, and loops over a few slots.

    Args:
        now: Unix time in seconds.

    Raises:
        NoReplicaError: there is none.
    """
    delays, able = fleet.delays(ask.model, ask.adapter)
    rates, tokens = fleet.seconds_per_token, ask.key.tokens
    ready = np.maximum(fleet.busy_until, now)  # costs are times: `now` is in all of them
    ready += delays
    idle = len((ready <= now).nonzero()[0])
    weight = min(MOST_WEIGHT, able / idle) if idle else MOST_WEIGHT
    costs = rates * (weight * tokens)
    costs += ready
    levels = fleet.match(ask.key.hashes)
    for depth, mask in levels:
        _save(costs, mask, weight * TOKENS[depth], rates)
    for name in ask.avoid:
        slot = fleet.slot(name)
        if slot is not None:
            costs[slot] = math.inf
    _confine(costs, ask.client, fleet)
    first = _first(costs, ask, fleet)
    if first is None:
        raise _none(ask, fleet, able)
    held = 0
    for depth, mask in levels:
        if mask >> first & 1:
            held = depth
    return Choice(fleet.names[first], held, delays.item(first), _others(costs, first, fleet))


def _save(costs: NDArray[np.float64], mask: int, tokens: float, rates: NDArray[np.float64]) -> None:
    """Lower the costs of the slots of a bitmask, by the time that so many tokens take."""
    if mask.bit_count() > _FEW:
        data = np.frombuffer(mask.to_bytes((len(costs) + 7) // 8, "little"), np.uint8)
        is_in = np.unpackbits(data, count=len(costs), bitorder="little").view(np.bool_)
        np.subtract(costs, tokens * rates, out=costs, where=is_in)
        return
    while mask:
        slot = mask.bit_length() - 1
        costs[slot] = costs.item(slot) - tokens * rates.item(slot)
        mask ^= 1 << slot


def _confine(costs: NDArray[np.float64], client: str, fleet: Fleet) -> None:
    """Leave a client that has more than its share only its part of the replicas."""
    part, clients = fleet.share(client)
    if part * clients <= OVER_SHARE or fleet.backlog(client) <= FAIR_SECONDS:
        return
    able = (costs < math.inf).nonzero()[0]
    most = math.ceil(len(able) / clients)
    if most < len(able):
        ranks = _mixed(fleet.ties[able], random_of(client))
        costs[able[np.argpartition(ranks, most)[most:]]] = math.inf


def _first(costs: NDArray[np.float64], ask: Ask, fleet: Fleet) -> int | None:
    """The slot with the least cost. None if all are infinite."""
    if not len(costs):
        return None
    slot = int(costs.argmin())
    least = costs.item(slot)
    if least == math.inf:
        return None
    tied = (costs <= least + TIE_SECONDS).nonzero()[0]
    if len(tied) > 1:
        seed = ask.key.hashes[-1] if ask.key.hashes else random_of(ask.client)
        slot = int(tied[_mixed(fleet.ties[tied], seed).argmax()])
    return slot


def _others(costs: NDArray[np.float64], first: int, fleet: Fleet) -> tuple[str, ...]:
    """Names of the replicas with the next costs. Changes `costs`."""
    names: list[str] = []
    costs[first] = math.inf
    while len(names) < MOST_OTHERS:
        slot = int(costs.argmin())
        if costs.item(slot) == math.inf:
            break
        names.append(fleet.names[slot])
        costs[slot] = math.inf
    return tuple(names)


def _mixed(ties: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """A random number for each replica and this seed. The factor is odd, so no two are equal."""
    return ties * np.uint64(seed | 1)


def _none(ask: Ask, fleet: Fleet, able: int) -> NoReplicaError:
    """The error that says why no replica can serve."""
    model = ask.model or "the deployment's model"
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
