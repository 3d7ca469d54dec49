"""What a router knows of its replicas: which prefixes they hold, and how long their queues are.

Memory is bounded by `BYTES_PER_REPLICA`, whatever replicas publish and the router sends.
Prefixes are an index from a hash to a bitmask of replicas, so the lookup of a key takes the same
steps for any number of replicas. Numbers are arrays with an element for each slot; a replica has a
slot from `add` to `remove`.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from heddle.extensions.ray.routing.blocks import TOKENS, Key
from heddle.extensions.ray.routing.published import (
    CLEARED,
    MOST_HELD,
    REMOVED,
    SLICES,
    Load,
    Publication,
    slice_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

BYTES_PER_REPLICA = 2_500_000
"""Most bytes that a router needs for a replica, among 1,000 replicas, in the worst case: each hash
is shared by two of them, names are the longest, the list of sends is full. Half of it is usual."""

_ALL_SLICES = (1 << SLICES) - 1
_NONE = np.empty(0, np.uint64)
_NOT_HEARD = -1  # an epoch before the first
_NO_RATE = 1e9  # seconds per token of a free slot: finite, so that 0 tokens are 0 seconds


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what a router remembers, and its guesses of what it was not told.

    Attributes:
        most_held: hashes of one replica, from its publications.
        most_sent: hashes that one replica is thought to hold because of requests sent to it.
        sent_age: seconds after which a publication must have named them.
        most_sends: requests to one replica that count as load until it publishes.
        latest: seconds that a publication may be on its way; also bounds the error of clocks.
        prefill_rate: tokens per second of a replica that has not published.
        model_load, adapter_load: seconds to load a model, an adapter.
    """

    most_held: int = MOST_HELD
    most_sent: int = 1024
    sent_age: float = 30.0
    most_sends: int = 512
    latest: float = 5.0
    prefill_rate: float = 1000.0
    model_load: float = 30.0
    adapter_load: float = 1.0


@dataclass(slots=True)
class _Send:
    """A request sent to a replica: when, and its work in seconds and tokens."""

    at: float
    seconds: float
    tokens: int
    client: str


@dataclass(slots=True, eq=False)
class _Replica:
    """One replica.

    Attributes:
        epoch, sequence, number: of its last publication.
        held: hashes that it has published, ascending.
        unsure: bits of the slices of `held` that lost events may have made wrong.
        sent: hashes of requests that it was sent, with the time; the oldest first.
        sends: requests that its last publication does not count.
        load: None until it has published.
    """

    name: str
    slot: int
    epoch: int = _NOT_HEARD
    sequence: int = 0
    number: int = -1
    held: NDArray[np.uint64] = field(default_factory=lambda: _NONE)
    unsure: int = _ALL_SLICES
    sent: dict[int, float] = field(default_factory=dict)
    sends: deque[_Send] = field(default_factory=deque)
    load: Load | None = None


class Delays(NamedTuple):
    """What replicas have to load before they can answer a request.

    Attributes:
        seconds: for each slot. Infinite: the replica cannot, drains, or the slot is free.
        able: the number of replicas that can.
    """

    seconds: NDArray[np.float64]
    able: int


class Fleet:
    """Replicas by name. One thread, or event loop, uses it.

    All times are Unix times in seconds, given by the caller.

    Attributes:
        names: for each slot, of the replica that has it or had it last.
        busy_until: for each slot, when the replica has computed all prompts that wait.
        seconds_per_token: for each slot, of a prompt.
        ties: for each slot, a random number that follows from the name.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.names: list[str] = []
        self.busy_until: NDArray[np.float64] = np.zeros(0)
        self.seconds_per_token: NDArray[np.float64] = np.zeros(0)
        self.ties: NDArray[np.uint64] = _NONE
        self._replicas: dict[str, _Replica] = {}
        self._slots: list[_Replica | None] = []
        self._index: dict[int, int] = {}
        self._bits: list[int] = []
        self._delays: dict[tuple[str, str], Delays] = {}
        self._waiting: Counter[str] = Counter()
        self._waiting_in_all = 0

    # --- replicas ---

    def __len__(self) -> int:
        return len(self._replicas)

    def __contains__(self, name: str) -> bool:
        return name in self._replicas

    def slot(self, name: str) -> int | None:
        """The slot of a replica; None if it is not of this fleet."""
        replica = self._replicas.get(name)
        return None if replica is None else replica.slot

    def update(self, names: Iterable[str]) -> None:
        """Let the fleet have exactly these replicas."""
        wanted = set(names)
        for name in self._replicas.keys() - wanted:
            self.remove(name)
        for name in sorted(wanted - self._replicas.keys()):
            self.add(name)

    def add(self, name: str) -> None:
        """Add a replica of which nothing is known yet."""
        if name in self._replicas:
            return
        slot = self._free_slot()
        self._slots[slot] = self._replicas[name] = _Replica(name, slot)
        self.names[slot] = name
        self.busy_until[slot] = 0.0
        self.seconds_per_token[slot] = 1.0 / self.limits.prefill_rate
        self.ties[slot] = random_of(name)
        self._delays.clear()

    def remove(self, name: str) -> None:
        """Forget a replica: it has gone."""
        replica = self._replicas.pop(name, None)
        if replica is None:
            return
        self._forget_hashes(replica)
        self._count(replica, -1)
        self._slots[replica.slot] = None
        self.seconds_per_token[replica.slot] = _NO_RATE
        self._delays.clear()

    def _free_slot(self) -> int:
        if None in self._slots:
            return self._slots.index(None)
        self._slots.append(None)
        self.names.append("")
        slot = len(self._bits)
        self._bits.append(1 << slot)
        self.busy_until = np.append(self.busy_until, 0.0)
        self.seconds_per_token = np.append(self.seconds_per_token, 0.0)
        self.ties = np.append(self.ties, np.uint64(0))
        return slot

    # --- what replicas publish ---

    def hear(self, name: str, publication: Publication, now: float) -> None:
        """Apply what a replica has published. Ignore what is older than its last publication."""
        replica = self._replicas.get(name)
        if replica is None:
            return
        if publication.epoch != replica.epoch:
            if replica.epoch != _NOT_HEARD:
                self._forget_hashes(replica)
            replica.epoch, replica.sequence, replica.number = publication.epoch, 0, -1
            replica.unsure = 0  # nothing was stored before event 1
        if publication.number <= replica.number or publication.sequence < replica.sequence:
            return
        self._hold(replica, self._held_after(replica, publication))
        replica.sequence, replica.number = publication.sequence, publication.number
        self._hear_load(replica, publication, now)
        self._forget_old(replica, now)

    def is_exact(self, name: str) -> bool:
        """Whether all hashes of the replica's last publication are known, and no others."""
        return self._replicas[name].unsure == 0

    def held(self, name: str) -> frozenset[int]:
        """The hashes that the replica has published."""
        return frozenset(self._replicas[name].held.tolist())

    def _held_after(self, replica: _Replica, publication: Publication) -> NDArray[np.uint64]:
        """The hashes that the replica holds after the publication's events and slice."""
        missed = publication.sequence - replica.sequence
        if missed > publication.events.size:
            replica.unsure = _ALL_SLICES
        fresh = publication.events[max(0, publication.events.size - missed) :].tolist()
        held = replica.held
        if CLEARED in fresh:
            replica.unsure, held = 0, _NONE
            fresh = fresh[len(fresh) - fresh[::-1].index(CLEARED) :]
        if fresh:
            last = {event & ~REMOVED: event < REMOVED for event in fresh}
            stored = np.array([one for one, is_stored in last.items() if is_stored], np.uint64)
            removed = np.array([one for one, is_stored in last.items() if not is_stored], np.uint64)
            held = np.setdiff1d(np.union1d(held, stored), removed, assume_unique=True)
        begin, end = np.searchsorted(held, slice_bounds(publication.number))
        held = np.concatenate((held[:begin], publication.held, held[end:]))
        replica.unsure &= ~(1 << publication.number % SLICES)
        if held.size > self.limits.most_held:
            held, replica.unsure = held[: self.limits.most_held], _ALL_SLICES
        return held

    def _hold(self, replica: _Replica, held: NDArray[np.uint64]) -> None:
        """Replace the published hashes of a replica, here and in the index."""
        sent = replica.sent
        for one in np.setdiff1d(replica.held, held, assume_unique=True).tolist():
            if one not in sent:
                self._unmark(replica, one)
        for one in np.setdiff1d(held, replica.held, assume_unique=True).tolist():
            if sent.pop(one, None) is None:
                self._mark(replica, one)
        replica.held = held

    def _hear_load(self, replica: _Replica, publication: Publication, now: float) -> None:
        """Replace the load of a replica by the published one and what was sent since."""
        load, before = publication.load, replica.load
        taken_at = min(now, max(publication.taken_at, now - self.limits.latest))
        self._count(replica, -1)
        while replica.sends and replica.sends[0].at <= taken_at:
            replica.sends.popleft()
        replica.load = load
        self._count(replica, 1)
        busy_until = taken_at + load.waiting_tokens / load.prefill_rate
        for send in replica.sends:
            busy_until = max(busy_until, send.at) + send.seconds
        self.busy_until[replica.slot] = busy_until
        self.seconds_per_token[replica.slot] = 1.0 / load.prefill_rate
        if before is None or _abilities(before) != _abilities(load):
            self._delays.clear()

    # --- what the router sends ---

    def sent(
        self,
        name: str,
        key: Key,
        now: float,
        *,
        held: int = 0,
        client: str = "",
        delay: float = 0.0,
    ) -> None:
        """A request goes to this replica, which will hold its prompt and is busy with it.

        Args:
            key: of the request.
            held: hashes of the key that the replica had, as `match` has found.
            delay: seconds until the replica has loaded what the request needs.
        """
        replica = self._replicas.get(name)
        if replica is None:
            return
        for one in reversed(key.hashes[held:]):  # the deepest is the first to be forgotten
            if one in replica.sent:
                del replica.sent[one]  # and becomes the newest below
            elif self._index.get(one, 0) & self._bits[replica.slot]:
                continue  # published
            else:
                self._mark(replica, one)
            replica.sent[one] = now
        tokens = max(0, key.tokens - TOKENS[held])
        seconds = delay + tokens * float(self.seconds_per_token[replica.slot])
        self.busy_until[replica.slot] = max(float(self.busy_until[replica.slot]), now) + seconds
        replica.sends.append(_Send(now, seconds, tokens, client))
        self._add_waiting(client, tokens)
        self._forget_old(replica, now)

    def _forget_old(self, replica: _Replica, now: float) -> None:
        """Forget sends that are too old or too many."""
        limits, oldest = self.limits, now - self.limits.sent_age
        sends, sent = replica.sends, replica.sent
        while sends and (len(sends) > limits.most_sends or sends[0].at < oldest):
            send = sends.popleft()
            self._add_waiting(send.client, -send.tokens)
        while sent:
            first = next(iter(sent))
            if len(sent) <= limits.most_sent and sent[first] >= oldest:
                break
            del sent[first]
            self._unmark(replica, first)

    # --- the index ---

    def match(self, hashes: tuple[int, ...]) -> list[tuple[int, int]]:
        """Which replicas hold how many hashes of a key.

        A replica that holds a prefix holds each shorter one. So the search for where the owners
        change is binary: 2 levels of a key of 60 hashes are 12 lookups. A lookup is a cache miss.

        Returns:
            Pairs of a number of hashes, ascending and from 1, and a bitmask of the slots that hold
            so many and no more. A replica that holds none is in no pair.
        """
        levels: list[tuple[int, int]] = []
        find, depth = self._index.get, 1
        having = find(hashes[0], 0) if hashes else 0
        while having:
            least, most, fewer = depth + 1, len(hashes) + 1, 0  # where the owners are fewer
            while least < most:
                middle = (least + most) // 2
                owners = find(hashes[middle - 1], 0) & having
                if owners == having:
                    least = middle + 1
                else:
                    most, fewer = middle, owners
            levels.append((least - 1, having ^ fewer))
            depth, having = least, fewer
        return levels

    def _mark(self, replica: _Replica, one: int) -> None:
        bit, owners = self._bits[replica.slot], self._index.get(one)
        # A hash of one replica shares the replica's own integer, which may have hundreds of bytes.
        self._index[one] = bit if owners is None else owners | bit

    def _unmark(self, replica: _Replica, one: int) -> None:
        owners = self._index[one] & ~self._bits[replica.slot]
        if not owners:
            del self._index[one]
        elif owners & (owners - 1):
            self._index[one] = owners
        else:
            self._index[one] = self._bits[owners.bit_length() - 1]

    def _forget_hashes(self, replica: _Replica) -> None:
        """Forget all prefixes of a replica."""
        for one in (*replica.held.tolist(), *replica.sent):
            self._unmark(replica, one)
        replica.held = _NONE
        replica.sent.clear()

    # --- what replicas can do ---

    def delays(self, model: str, adapter: str) -> Delays:
        """How long each replica needs until it has loaded the model and adapter.

        A replica that has not published counts as able.

        Args:
            model, adapter: "" is what the replica has anyway.
        """
        delays = self._delays.get((model, adapter))
        if delays is None:
            if len(self._delays) >= 256:
                self._delays.clear()
            seconds = np.array([self._delay(one, model, adapter) for one in self._slots], float)
            delays = Delays(seconds, int(np.count_nonzero(seconds < math.inf)))
            self._delays[model, adapter] = delays
        return delays

    def knows(self, model: str) -> bool:
        """Whether a replica can serve a model of this name."""
        return self.delays(model, "").able > 0

    def _delay(self, replica: _Replica | None, model: str, adapter: str) -> float:
        if replica is None:
            return math.inf
        load, limits = replica.load, self.limits
        if load is None:
            return 0.0
        if load.draining:
            return math.inf
        if model and model not in load.models:
            return limits.model_load if model in load.known else math.inf
        return limits.adapter_load if adapter and adapter not in load.adapters else 0.0

    # --- clients ---

    def share(self, client: str) -> tuple[float, int]:
        """The client's part of all waiting tokens, and the number of clients that have some."""
        mine = self._waiting.get(client, 0)
        return (mine / self._waiting_in_all if mine else 0.0), len(self._waiting)

    def backlog(self, client: str) -> float:
        """Seconds that the whole fleet needs for the client's waiting tokens."""
        return self._waiting.get(client, 0) / float((1.0 / self.seconds_per_token).sum())

    def _count(self, replica: _Replica, sign: int) -> None:
        """Add or take away what waits at a replica."""
        for client, tokens in replica.load.clients.items() if replica.load else ():
            self._add_waiting(client, sign * tokens)
        for send in replica.sends:
            self._add_waiting(send.client, sign * send.tokens)

    def _add_waiting(self, client: str, tokens: int) -> None:
        self._waiting_in_all += tokens
        self._waiting[client] += tokens
        if self._waiting[client] <= 0:
            del self._waiting[client]


def random_of(name: str) -> int:
    """64 random bits that follow from a name, equal on every machine."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def _abilities(load: Load) -> tuple[object, ...]:
    return load.models, load.adapters, load.known, load.draining
