"""What a replica publishes for routers: the prefixes that its cache holds, and its load.

Ray's controller polls `record_routing_stats` of each replica and sends the latest answer to every
router. A router cannot answer back, and may miss a publication. So each publication has two parts:

- the last `MOST_EVENTS` events, with the sequence number of the last. A router applies those that
  it has not seen. It sees a gap in the numbers if events are lost.
- one of `SLICES` slices of all hashes that are held, in turn. This is the snapshot that heals a
  gap: after `SLICES` publications in a row, a router knows all hashes exactly. A router that asked
  for a snapshot would need a call to one replica, which Ray's routers do not have; and many routers
  would ask at the same time.

A publication has at most `MOST_BYTES` bytes. Ray sends the publications of all replicas of a
deployment to a router whenever one changes, so they are small.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from heddle.errors import HeddleError
from heddle.extensions.ray.routing.blocks import HASH_BITS, HASH_MASK, Key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

VERSION = 1
MOST_HELD = 8192  # hashes of one replica: about 800 conversations of 3,000 tokens
MOST_EVENTS = 1024
SLICES = 16
MOST_NAMES, LONGEST_NAME = 32, 128  # of models, of adapters, of clients
MOST_BYTES = 8 * (MOST_EVENTS + MOST_HELD) + 4 * MOST_NAMES * (4 * LONGEST_NAME + 64) + 1024
"""Most bytes of a publication. With full events and equal slices, it has 10 KiB."""

REMOVED = 1 << 63
CLEARED = 1 << 62
"""Kinds of events, in the bits of a word above those of its hash. A word without a kind: stored."""

_LEAST_RATE, _MOST_RATE = 1e-3, 1e9  # tokens per second

_SLICE_SHIFT = HASH_BITS - (SLICES - 1).bit_length()


class PublishedError(HeddleError):
    """A replica has published what no replica of this version publishes."""

    code = "invalid_publication"


class Published(TypedDict):
    """The answer of a replica's `record_routing_stats`. Only numbers, names and bytes.

    Keys:
        version: `VERSION`.
        epoch: a number of the replica's process. Another one: all that is known is void.
        number: how many publications the epoch had before. Slices come in turn, so this is also
            the number of the slice, modulo `SLICES`.
        taken_at: Unix time, in seconds.
        sequence: number of the last of `events`.
        events: a hash, `REMOVED` | hash, or `CLEARED`; the oldest first, 8 little-endian bytes
            each.
        held: the hashes of the slice, whose highest 4 bits are its number; ascending, as `events`.
        waiting_tokens: prompt tokens that wait, without those that the cache has.
        prefill_rate: tokens of prompts that the replica computes in a second, beside its streams.
        models, adapters: names that are loaded.
        known: further models that the replica loads for a request.
        draining: whether the replica takes no new requests.
        clients: waiting tokens of the clients with the most.
    """

    version: int
    epoch: int
    number: int
    taken_at: float
    sequence: int
    events: bytes
    held: bytes
    waiting_tokens: int
    prefill_rate: float
    models: list[str]
    adapters: list[str]
    known: list[str]
    draining: bool
    clients: dict[str, int]


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica does and can do; the fields of `Published` have the units."""

    waiting_tokens: int = 0
    prefill_rate: float = 1000.0
    models: frozenset[str] = frozenset()
    adapters: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    draining: bool = False
    clients: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Publication:
    """A `Published` that was checked, with arrays of uint64 for its bytes."""

    epoch: int
    number: int
    taken_at: float
    sequence: int
    events: NDArray[np.uint64]
    held: NDArray[np.uint64]
    load: Load


class Publisher:
    """A replica's side: notes what its cache holds, and makes publications of it.

    It knows at most `most_held` hashes and forgets those that were used least recently, as a cache
    does. Any thread may call it.
    """

    def __init__(self, *, most_held: int = MOST_HELD, epoch: int | None = None) -> None:
        self._most_held = min(most_held, MOST_HELD)
        self._epoch = time.time_ns() if epoch is None else epoch
        self._held: OrderedDict[int, int | None] = OrderedDict()  # with the page that each needs
        self._needing: dict[int, set[int]] = {}
        self._events: deque[int] = deque(maxlen=MOST_EVENTS)
        self._sequence = 0
        self._number = 0
        self._lock = threading.Lock()

    def stored(self, key: Key, pages: Sequence[int] | None = None) -> None:
        """The cache holds the prompt of this key.

        Args:
            pages: for each hash, a number of what the cache must keep for it: the page, or the hash
                of the token block, in which its block ends. None: only `most_held` and `cleared`
                end its stay.
        """
        with self._lock:
            # The root last: it is the most recently used, because all others need it.
            for depth in range(len(key.hashes) - 1, -1, -1):
                self._store(key.hashes[depth], None if pages is None else pages[depth])
            while len(self._held) > self._most_held:
                self._remove(next(iter(self._held)))

    def removed(self, pages: Iterable[int]) -> None:
        """The cache no longer holds these pages."""
        with self._lock:
            for page in pages:
                for one in tuple(self._needing.get(page, ())):
                    self._remove(one)

    def cleared(self) -> None:
        """The cache is empty."""
        with self._lock:
            self._held.clear()
            self._needing.clear()
            self._note(CLEARED)

    def publish(self, load: Load, *, now: float | None = None) -> Published:
        """The next publication: the last events, and the next slice.

        Args:
            now: Unix time in seconds; None: the clock's.
        """
        with self._lock:
            number, self._number = self._number, self._number + 1
            held = sorted(one for one in self._held if one >> _SLICE_SHIFT == number % SLICES)
            events, sequence = list(self._events), self._sequence
        most = sorted(load.clients.items(), key=lambda item: (-item[1], item[0]))[:MOST_NAMES]
        return Published(
            version=VERSION,
            epoch=self._epoch,
            number=number,
            taken_at=time.time() if now is None else now,
            sequence=sequence,
            events=np.array(events, "<u8").tobytes(),
            held=np.array(held, "<u8").tobytes(),
            waiting_tokens=load.waiting_tokens,
            prefill_rate=load.prefill_rate,
            models=sorted(load.models)[:MOST_NAMES],
            adapters=sorted(load.adapters)[:MOST_NAMES],
            known=sorted(load.known)[:MOST_NAMES],
            draining=load.draining,
            clients={name[:LONGEST_NAME]: waiting for name, waiting in most},
        )

    @property
    def held(self) -> frozenset[int]:
        """The hashes that routers should know of this replica."""
        with self._lock:
            return frozenset(self._held)

    def _store(self, one: int, page: int | None) -> None:
        if one in self._held:
            self._untie(one)
        else:
            self._note(one)
        self._held[one] = page
        self._held.move_to_end(one)
        if page is not None:
            self._needing.setdefault(page, set()).add(one)

    def _remove(self, one: int) -> None:
        self._untie(one)
        del self._held[one]
        self._note(REMOVED | one)

    def _untie(self, one: int) -> None:
        page = self._held[one]
        if page is not None:
            needing = self._needing[page]
            needing.discard(one)
            if not needing:
                del self._needing[page]

    def _note(self, event: int) -> None:
        self._events.append(event)
        self._sequence += 1


def read(stats: Mapping[str, Any]) -> Publication:
    """The publication of a replica, checked.

    Raises:
        PublishedError: a field is missing or has a value that no replica publishes.
    """
    version = stats.get("version")
    if version != VERSION:
        raise PublishedError(
            f"version is {version!r}; this router reads {VERSION}. "
            "Run the same Heddle on all machines.",
            param="version",
        )
    events = _words(stats, "events", MOST_EVENTS)
    sequence = _whole(stats, "sequence")
    if sequence < len(events):
        raise _wrong("sequence", sequence, f"at least the {len(events)} events")
    held, number = _words(stats, "held", MOST_HELD), _whole(stats, "number")
    first, after = slice_bounds(number)
    if held.size and (held[0] < first or held[-1] >= after or np.any(held[1:] <= held[:-1])):
        raise _wrong("held", f"{held.size} hashes", f"ascending hashes of slice {number % SLICES}")
    return Publication(
        epoch=_whole(stats, "epoch"),
        number=number,
        taken_at=_number(stats, "taken_at"),
        sequence=sequence,
        events=events,
        held=held,
        load=_load(stats),
    )


def slice_bounds(number: int) -> tuple[np.uint64, np.uint64]:
    """The least hash of the slice of publication `number`, and the least one after the slice."""
    first = number % SLICES
    return np.uint64(first << _SLICE_SHIFT), np.uint64((first + 1) << _SLICE_SHIFT)


def _load(stats: Mapping[str, Any]) -> Load:
    rate, draining, clients = (
        _number(stats, "prefill_rate"),
        stats.get("draining"),
        stats.get("clients"),
    )
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise _wrong("prefill_rate", rate, f"from {_LEAST_RATE} to {_MOST_RATE:.0f}")
    if not isinstance(draining, bool):
        raise _wrong("draining", draining, "a bool")
    if not isinstance(clients, dict):
        raise _wrong("clients", clients, "a dict of tokens by name")
    _names({"clients": list(clients)}, "clients")
    return Load(
        waiting_tokens=_whole(stats, "waiting_tokens"),
        prefill_rate=rate,
        models=_names(stats, "models"),
        adapters=_names(stats, "adapters"),
        known=_names(stats, "known"),
        draining=draining,
        clients={name: _whole(clients, name) for name in clients},
    )


def _words(stats: Mapping[str, Any], field: str, most: int) -> NDArray[np.uint64]:
    value = stats.get(field)
    if not isinstance(value, bytes) or len(value) % 8 or len(value) > 8 * most:
        size = f"{len(value)} bytes" if isinstance(value, bytes) else value
        raise _wrong(field, size, f"bytes, 8 a hash, at most {most} hashes")
    words = np.frombuffer(value, "<u8").astype(np.uint64)
    kinds = words & ~np.uint64(HASH_MASK)
    if field == "held" and np.any(kinds):
        raise _wrong(field, hex(int(words.max())), f"hashes of {HASH_BITS} bits")
    if np.any((kinds != 0) & (kinds != REMOVED) & (words != CLEARED)):
        raise _wrong(field, hex(int(words.max())), "hashes with a kind")
    return words


def _whole(stats: Mapping[str, Any], field: str) -> int:
    value = stats.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise _wrong(field, value, "a whole number from 0 to 2^63")
    return value


def _number(stats: Mapping[str, Any], field: str) -> float:
    value = stats.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise _wrong(field, value, "a finite number")
    return float(value)


def _names(stats: Mapping[str, Any], field: str) -> frozenset[str]:
    value = stats.get(field)
    if (
        not isinstance(value, list)
        or len(value) > MOST_NAMES
        or not all(isinstance(name, str) and len(name) <= LONGEST_NAME for name in value)
    ):
        raise _wrong(
            field, value, f"a list of at most {MOST_NAMES} names of {LONGEST_NAME} characters"
        )
    return frozenset(value)


def _wrong(field: str, value: object, wanted: str) -> PublishedError:
    return PublishedError(
        f"{field} of a replica's routing stats must be {wanted}, got {value!r}. "
        "Run the same Heddle on all machines.",
        param=field,
    )
