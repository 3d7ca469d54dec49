"""What replicas publish: bounded, and refused by routers if it is wrong."""

from __future__ import annotations

import pytest

from heddle.extensions.ray.routing.blocks import HASH_MASK, Key
from heddle.extensions.ray.routing.published import (
    CLEARED,
    LONGEST_NAME,
    MOST_BYTES,
    MOST_EVENTS,
    MOST_HELD,
    MOST_NAMES,
    REMOVED,
    Load,
    PublishedError,
    Publisher,
    read,
)


def key(*hashes: int) -> Key:
    return Key(hashes, 16 * len(hashes))


def words(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def published(**fields):
    return {**Publisher(epoch=1).publish(Load(), now=1.0), **fields}


def test_a_publication_is_read_as_it_was_written():
    publisher = Publisher(epoch=7)
    publisher.stored(key(5, 6))
    load = Load(9, 50.0, frozenset("m"), frozenset("a"), frozenset("k"), True, {"c": 9})
    publication = read(publisher.publish(load, now=3.5))
    assert (publication.epoch, publication.number, publication.taken_at) == (7, 0, 3.5)
    assert publication.sequence == 2
    assert sorted(publication.events.tolist()) == [5, 6]
    assert publication.held.tolist() == [5, 6]
    assert publication.load == load


def test_pages_that_go_take_their_hashes_with_them():
    publisher = Publisher()
    publisher.stored(key(1, 2, 3), pages=[10, 10, 20])
    publisher.stored(key(1, 2, 4), pages=[10, 10, 30])
    publisher.removed([20, 99])
    assert publisher.held == {1, 2, 4}
    publisher.removed([10])
    assert publisher.held == {4}


def test_a_hash_that_is_stored_again_needs_its_new_page_only():
    publisher = Publisher()
    publisher.stored(key(1), pages=[10])
    publisher.stored(key(1), pages=[11])
    publisher.removed([10])
    assert publisher.held == {1}
    publisher.removed([11])
    assert publisher.held == frozenset()


def test_the_least_recently_used_and_deepest_hash_goes_first():
    publisher = Publisher(most_held=4)
    publisher.stored(key(1, 2))
    publisher.stored(key(3, 4))
    publisher.stored(key(1, 2))
    publisher.stored(key(5))
    assert publisher.held == {1, 2, 3, 5}


def test_a_cleared_publisher_holds_nothing_and_says_so():
    publisher = Publisher()
    publisher.stored(key(1), pages=[10])
    publisher.cleared()
    publisher.removed([10])
    assert publisher.held == frozenset()
    assert read(publisher.publish(Load())).events.tolist() == [1, CLEARED]


def test_a_publication_is_bounded():
    publisher = Publisher(most_held=10**9)
    for first in range(0, 20_000, 50):
        publisher.stored(key(*range(first, first + 50)))
    names = frozenset(f"{i:05}" + "\U0001f600" * 200 for i in range(200))
    longest = frozenset(name[:LONGEST_NAME] for name in names)
    load = Load(1, 1.0, longest, longest, longest, False, dict.fromkeys(names, 3))
    stats = publisher.publish(load)
    publication = read(stats)
    assert len(publisher.held) == MOST_HELD
    assert publication.events.size == MOST_EVENTS
    assert len(publication.load.clients) == len(publication.load.models) == MOST_NAMES
    assert len(repr(stats).encode()) <= 4 * MOST_BYTES  # Ray makes a repr; \x00 for a byte
    texts = [*longest] * 4
    assert len(stats["events"]) + len(stats["held"]) + 4 * len(texts) <= MOST_BYTES


def test_the_clients_with_the_most_tokens_are_published():
    clients = {f"c{i}": i for i in range(MOST_NAMES + 5)}
    published = Publisher().publish(Load(clients=clients))["clients"]
    assert published == {f"c{i}": i for i in range(5, MOST_NAMES + 5)}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"version": 2}, "version"),
        ({"version": None}, "version"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": True}, "epoch"),
        ({"number": 1.5}, "number"),
        ({"taken_at": float("nan")}, "taken_at"),
        ({"taken_at": "now"}, "taken_at"),
        ({"events": words(1), "sequence": 0}, "sequence"),
        ({"events": b"1234567", "sequence": 9}, "events"),
        ({"events": "x", "sequence": 9}, "events"),
        ({"events": words(*[1] * (MOST_EVENTS + 1)), "sequence": 1 << 20}, "events"),
        ({"events": words(HASH_MASK + 1), "sequence": 1}, "events"),
        ({"events": words(CLEARED | 1), "sequence": 1}, "events"),
        ({"held": words(2, 1)}, "held"),
        ({"held": words(1, 1)}, "held"),
        ({"held": words(REMOVED | 1)}, "held"),
        ({"held": words(HASH_MASK)}, "held"),  # of slice 15
        ({"number": 15, "held": words(1)}, "held"),  # of slice 0
        ({"held": bytes(8 * (MOST_HELD + 1))}, "held"),
        ({"waiting_tokens": 1 << 63}, "waiting_tokens"),
        ({"prefill_rate": 0.0}, "prefill_rate"),
        ({"prefill_rate": 1e12}, "prefill_rate"),
        ({"prefill_rate": float("inf")}, "prefill_rate"),
        ({"models": "m"}, "models"),
        ({"models": [1]}, "models"),
        ({"adapters": ["x"] * (MOST_NAMES + 1)}, "adapters"),
        ({"known": ["x" * (LONGEST_NAME + 1)]}, "known"),
        ({"draining": 1}, "draining"),
        ({"clients": []}, "clients"),
        ({"clients": {1: 1}}, "clients"),
        ({"clients": {"c": -1}}, "c"),
    ],
)
def test_a_wrong_publication_is_refused_by_the_name_of_its_field(fields, param):
    with pytest.raises(PublishedError, match="Run the same Heddle on all machines") as caught:
        read(published(**fields))
    assert caught.value.param == param


def test_a_publication_without_fields_is_refused():
    with pytest.raises(PublishedError):
        read({})
    with pytest.raises(PublishedError):
        read({"version": 1})
