"""What a router knows: equal to what replicas hold, whatever is lost on the way, and bounded."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.extensions.ray.routing.blocks import HASH_MASK, Key
from heddle.extensions.ray.routing.fleet import BYTES_PER_REPLICA, Fleet, Limits
from heddle.extensions.ray.routing.published import (
    LONGEST_NAME,
    MOST_EVENTS,
    MOST_HELD,
    MOST_NAMES,
    SLICES,
    Load,
    Publication,
    Publisher,
    read,
)


def key(*hashes: int) -> Key:
    return Key(hashes, 16 * len(hashes))


def chain(*path: int) -> Key:
    """A key whose hashes are those of a path: equal for equal beginnings only, in all slices."""
    state, hashes = 0, []
    for step in path:
        state = hash((state, step))
        hashes.append(state * 0x9E3779B97F4A7C15 & HASH_MASK)
    return key(*hashes)


def publication(publisher: Publisher, now: float = 1.0, **load) -> Publication:
    return read(publisher.publish(Load(**load), now=now))


def fleet_of(*names: str, **limits) -> Fleet:
    fleet = Fleet(Limits(**limits))
    fleet.update(names)
    return fleet


def holders(fleet: Fleet, one: Key, names) -> dict[str, int]:
    """How many hashes of the key each replica holds, as `match` says."""
    found = dict.fromkeys(names, 0)
    for depth, mask in fleet.match(one.hashes):
        for name in names:
            if mask >> fleet.slot(name) & 1:
                assert not found[name], "a replica is in one level only"
                found[name] = depth
    return found


def brute(held: frozenset[int], one: Key) -> int:
    depth = 0
    while depth < len(one.hashes) and one.hashes[depth] in held:
        depth += 1
    return depth


PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)
STEPS = st.one_of(
    st.tuples(st.just("stored"), PATHS),
    st.tuples(st.just("cleared"), st.none()),
    st.tuples(st.just("heard"), st.none()),
    st.tuples(st.just("lost"), st.none()),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=60), st.lists(PATHS, min_size=1, max_size=5))
def test_events_and_slices_amount_to_all_that_is_held(steps, asked):
    """With gaps: the publisher below remembers 8 events only."""
    publisher, fleet = Publisher(most_held=30, epoch=1), fleet_of("a")
    publisher._events = type(publisher._events)(maxlen=8)
    for what, path in steps:
        if what == "stored":
            publisher.stored(chain(*path))
        elif what == "cleared":
            publisher.cleared()
        elif what == "heard":
            fleet.hear("a", publication(publisher), 1.0)
            if fleet.is_exact("a"):
                assert fleet.held("a") == publisher.held
        else:
            publication(publisher)
    for _ in range(SLICES):
        fleet.hear("a", publication(publisher), 1.0)
    assert fleet.is_exact("a")
    assert fleet.held("a") == publisher.held
    for path in asked:
        assert holders(fleet, chain(*path), ["a"])["a"] == brute(publisher.held, chain(*path))
    fleet.remove("a")
    assert not fleet._index


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), PATHS), max_size=60),
    st.lists(PATHS, min_size=1, max_size=8),
)
def test_a_key_matches_at_each_replica_its_longest_prefix(stored, asked):
    names = [f"r{i}" for i in range(10)]
    publishers, fleet = [Publisher(epoch=1) for _ in names], fleet_of(*names)
    for replica, path in stored:
        publishers[replica].stored(chain(*path))
    for name, publisher in zip(names, publishers, strict=True):
        fleet.hear(name, publication(publisher), 1.0)
    for path in asked:
        found = holders(fleet, chain(*path), names)
        assert list(found.values()) == [brute(one.held, chain(*path)) for one in publishers]
        longer = holders(fleet, chain(*path, 9), names)
        assert all(longer[name] >= found[name] for name in names)


def test_a_gap_is_seen_and_healed_slice_by_slice():
    publisher, fleet = Publisher(epoch=1), fleet_of("a")
    fleet.hear("a", publication(publisher), 1.0)
    assert fleet.is_exact("a")
    for path in range(MOST_EVENTS // 10 + 2):
        publisher.stored(chain(*[path] * 10))
    for _ in range(SLICES - 1):
        fleet.hear("a", publication(publisher), 1.0)
        assert not fleet.is_exact("a")
    fleet.hear("a", publication(publisher), 1.0)
    assert fleet.is_exact("a")
    assert fleet.held("a") == publisher.held


def test_an_old_publication_is_ignored():
    publisher, fleet = Publisher(epoch=1), fleet_of("a")
    publisher.stored(key(1))
    old = publication(publisher)
    publisher.cleared()
    fleet.hear("a", publication(publisher), 1.0)
    fleet.hear("a", old, 1.0)
    assert fleet.held("a") == frozenset()


def test_a_new_process_under_the_name_starts_from_nothing():
    before, after, fleet = Publisher(epoch=1), Publisher(epoch=2), fleet_of("a")
    before.stored(key(1, 2))
    fleet.hear("a", publication(before), 1.0)
    fleet.sent("a", key(1, 2, 3), 1.0, held=2)
    after.stored(key(7))
    fleet.hear("a", publication(after), 1.0)
    assert fleet.held("a") == {7}
    for one in (1, 3):  # published, and sent
        assert holders(fleet, key(one), ["a"]) == {"a": 0}


def test_what_was_sent_counts_as_held_until_it_is_too_old():
    fleet = fleet_of("a", sent_age=30.0)
    fleet.sent("a", key(1, 2, 3), 100.0)
    assert holders(fleet, key(1, 2, 3), ["a"]) == {"a": 3}
    fleet.sent("a", key(9), 131.0)
    assert holders(fleet, key(1, 2, 3), ["a"]) == {"a": 0}


def test_what_was_sent_to_a_new_replica_survives_its_first_publication():
    fleet = fleet_of("a")
    fleet.sent("a", key(1, 2), 100.0)
    fleet.hear("a", publication(Publisher(epoch=1)), 100.0)
    assert holders(fleet, key(1, 2), ["a"]) == {"a": 2}


def test_what_is_sent_again_stays_longer():
    fleet = fleet_of("a", sent_age=30.0)
    fleet.sent("a", key(1), 100.0)
    fleet.sent("a", key(1), 120.0)
    fleet.sent("a", key(2), 140.0)
    assert holders(fleet, key(1), ["a"]) == {"a": 1}
    fleet.sent("a", key(3), 151.0)
    assert holders(fleet, key(1), ["a"]) == {"a": 0}


def test_too_much_that_was_sent_is_forgotten_the_deepest_first():
    fleet = fleet_of("a", most_sent=3)
    fleet.sent("a", key(1, 2, 3, 4), 100.0)
    assert holders(fleet, key(1, 2, 3, 4), ["a"]) == {"a": 3}


def test_what_a_publication_confirms_is_not_forgotten_with_age():
    publisher, fleet = Publisher(epoch=1), fleet_of("a")
    fleet.sent("a", key(1), 100.0)
    publisher.stored(key(1))
    fleet.hear("a", publication(publisher, 101.0), 101.0)
    fleet.sent("a", key(2), 500.0)
    assert holders(fleet, key(1), ["a"]) == {"a": 1}


def test_a_queue_is_what_was_published_and_what_was_sent_since():
    publisher, fleet = Publisher(epoch=1), fleet_of("a")
    fleet.sent("a", Key((), 300), 99.0)  # counted by the publication
    fleet.sent("a", Key((), 300), 100.5)  # not counted
    fleet.hear("a", publication(publisher, 100.0, waiting_tokens=200, prefill_rate=100.0), 101.0)
    slot = fleet.slot("a")
    seconds = 300 / Limits().prefill_rate  # at the rate that was known when it was sent
    assert fleet.busy_until[slot] == pytest.approx(102.0 + seconds)
    fleet.sent("a", Key((1,), 116), 101.0, held=1)
    assert fleet.busy_until[slot] == pytest.approx(102.0 + seconds + 1.0)


def test_a_clock_that_is_wrong_shifts_the_queue_by_little():
    fleet = fleet_of("a", latest=5.0)
    for number, taken_at in enumerate((0.0, 1e9)):
        publisher = Publisher(epoch=number + 1)
        fleet.hear("a", publication(publisher, taken_at, waiting_tokens=8000), 100.0)
        assert 95.0 <= fleet.busy_until[fleet.slot("a")] - 8.0 <= 100.0


def test_delays_are_those_of_models_and_adapters():
    fleet = fleet_of("new", "loaded", "loads", "none", "drains", model_load=30.0, adapter_load=1.0)
    abilities = {
        "loaded": {"models": frozenset("m")},
        "loads": {"known": frozenset("m")},
        "none": {},
        "drains": {"models": frozenset("m"), "draining": True},
    }
    for name, load in abilities.items():
        fleet.hear(name, publication(Publisher(epoch=1), **load), 1.0)

    def delays(model, adapter=""):
        return {
            name: fleet.delays(model, adapter).seconds[fleet.slot(name)]
            for name in (*abilities, "new")
        }

    inf = float("inf")
    assert delays("m") == {"loaded": 0, "loads": 30, "none": inf, "drains": inf, "new": 0}
    assert delays("m", "a")["loaded"] == 1.0
    assert delays("")["none"] == 0.0
    fleet.hear("loads", publication(Publisher(epoch=2), models=frozenset("m")), 2.0)
    assert delays("m")["loads"] == 0.0


def test_the_share_of_a_client_is_over_the_fleet_and_ends():
    fleet = fleet_of("a", "b")
    publisher = Publisher(epoch=1)
    fleet.hear("a", publication(publisher, 1.0, waiting_tokens=30, clients={"x": 30}), 1.0)
    fleet.sent("b", Key((), 60), 1.5, client="y")
    fleet.sent("b", Key((), 30), 1.5, client="x")
    assert fleet.share("x") == (0.5, 2)
    assert fleet.share("z") == (0.0, 2)
    fleet.hear("a", publication(publisher, 2.0), 2.0)
    fleet.hear("b", publication(Publisher(epoch=1), 2.0), 2.0)
    assert fleet.share("x") == (0.0, 0)


def test_a_replica_that_goes_leaves_nothing_and_its_slot_is_used_again():
    fleet = fleet_of("a", "b")
    publisher = Publisher(epoch=1)
    publisher.stored(key(1, 2))
    for name in ("a", "b"):
        fleet.hear(name, publication(Publisher(epoch=1), clients={"x": 5}), 1.0)
    fleet.hear("b", publication(publisher, clients={"x": 5}), 1.0)
    fleet.sent("a", key(8), 1.0, client="x")
    slot = fleet.slot("a")
    fleet.update(["b", "c"])
    assert fleet.slot("c") == slot
    assert holders(fleet, key(8), ["b", "c"]) == {"b": 0, "c": 0}
    fleet.update([])
    assert not fleet._index
    assert fleet.share("x") == (0.0, 0)


def test_unknown_replicas_are_no_error():
    fleet = fleet_of("a")
    fleet.hear("b", publication(Publisher()), 1.0)
    fleet.sent("b", key(1), 1.0)
    fleet.remove("b")
    assert len(fleet) == 1 and "b" not in fleet


def test_memory_is_bounded_whatever_is_published_and_sent():
    """The worst case: slots of a fleet of 1,000, hashes of two replicas, the longest names."""
    others = [f"a{i}" for i in range(996)]
    fleet = fleet_of(*others)
    names = ["z0", "z1", "z2", "z3"]
    draw = random.Random(1)
    publishers = {name: Publisher(epoch=1) for name in names}
    for pair in (names[:2], names[2:]):
        for _ in range(MOST_HELD // 8 + 100):
            one = key(*(draw.getrandbits(60) for _ in range(8)))
            for name in pair:
                publishers[name].stored(one)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for name in names:
            fleet.add(name)
        for number in range(SLICES):
            for name, publisher in publishers.items():
                texts = frozenset(
                    "".join(draw.choices("\U0001f600abcdefgh", k=LONGEST_NAME))
                    for _ in range(MOST_NAMES)
                )
                load = {
                    **{"models": texts, "adapters": texts, "known": texts},
                    "clients": dict.fromkeys(texts, 1),
                }
                fleet.hear(name, publication(publisher, float(number), **load), float(number))
        for _ in range(2000):
            one = key(*(draw.getrandbits(60) for _ in range(8)))
            for name in names:
                fleet.sent(name, one, 20.0, client=f"{draw.random()}" * 7)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert all(len(fleet.held(name)) == MOST_HELD for name in names)
    assert used <= BYTES_PER_REPLICA * len(names)


def test_more_than_a_replica_may_hold_is_cut():
    publisher, fleet = Publisher(epoch=1), fleet_of("a", most_held=10)
    publisher.stored(key(*range(1, 31)))
    fleet.hear("a", publication(publisher), 1.0)
    assert len(fleet.held("a")) == 10
    assert not fleet.is_exact("a")
