"""The decision: the longest prefix, bounded by queue time, and never a replica that must not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.extensions.ray.routing.blocks import TOKENS, Key
from heddle.extensions.ray.routing.choose import (
    MOST_OTHERS,
    MOST_WEIGHT,
    TIE_SECONDS,
    Ask,
    NoReplicaError,
    choose,
)
from heddle.extensions.ray.routing.fleet import Fleet, Limits
from heddle.extensions.ray.routing.published import Load, Publisher, read

NOW = 1000.0
RATE = 100.0  # tokens per second of each replica


def key(*hashes: int) -> Key:
    return Key(hashes, TOKENS[len(hashes)])


def fleet_of(replicas: dict[str, dict]) -> Fleet:
    """A fleet that has heard of each replica: `holds`, a tuple of hashes, and fields of `Load`."""
    fleet = Fleet(Limits(model_load=30.0, adapter_load=1.0))
    fleet.update(replicas)
    for name, fields in replicas.items():
        publisher = Publisher(epoch=1)
        publisher.stored(key(*fields.get("holds", ())))
        load = {"prefill_rate": RATE, "models": frozenset("m"), **fields}
        load.pop("holds", None)
        fleet.hear(name, read(publisher.publish(Load(**load), now=NOW)), NOW)
    return fleet


def names(fleet: Fleet, **ask) -> list[str]:
    choice = choose(Ask(**{"model": "m", **ask}), fleet, NOW)
    return [choice.name, *choice.others]


LONG = key(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)  # 160 tokens: 1.6 s


def test_the_longest_prefix_is_first():
    fleet = fleet_of({"a": {}, "b": {"holds": (1, 2, 3, 4)}, "c": {"holds": (1, 2)}, "d": {}})
    best = choose(Ask(LONG, "m"), fleet, NOW)
    assert (best.name, best.others[0]) == ("b", "c")
    assert best.held == 4


def test_many_replicas_may_hold_a_prefix():
    """More than a few owners of a hash are an array of bits."""
    holders = {f"h{i}": {"holds": (1, 2), "waiting_tokens": i} for i in range(40)}
    fleet = fleet_of({**holders, "deep": {"holds": (1, 2, 3, 4), "waiting_tokens": 500}, "a": {}})
    best = choose(Ask(LONG, "m"), fleet, NOW)
    assert (best.name, best.held) == ("h0", 2)
    assert best.others == ("h1", "h2", "h3")
    avoid = ("deep", *holders)
    assert choose(Ask(LONG, "m", avoid=avoid), fleet, NOW) == ("a", 0, 0.0, ())


def test_a_prefix_is_passed_over_when_its_queue_is_longer_than_it_saves():
    """4 hashes save 0.64 s. One of two replicas is busy, so work counts twice: 1.28 s."""
    for waiting, first in ((120, "a"), (136, "b")):
        fleet = fleet_of({"a": {"holds": (1, 2, 3, 4), "waiting_tokens": waiting}, "b": {}})
        assert names(fleet, key=LONG)[0] == first


def test_work_counts_more_when_no_replica_is_idle():
    """4 hashes save 0.64 s, which count 4 times."""
    for waiting, first in ((260, "a"), (270, "b")):
        busy = {"holds": (1, 2, 3, 4), "waiting_tokens": waiting}
        fleet = fleet_of({"a": busy, "b": {"waiting_tokens": 10}})
        assert names(fleet, key=LONG)[0] == first


def test_without_a_prefix_the_shortest_queue_is_first():
    fleet = fleet_of({"a": {"waiting_tokens": 50}, "b": {"waiting_tokens": 20}, "c": {}})
    assert names(fleet, key=LONG) == ["c", "b", "a"]


def test_a_queue_gets_shorter_with_time():
    """4 hashes save 0.64 s, which count at least once, and the queue has 3 s."""
    fleet = fleet_of({"a": {"holds": (1, 2, 3, 4), "waiting_tokens": 300}, "b": {}})
    firsts = [choose(Ask(LONG, "m"), fleet, NOW + after).name for after in (0.0, 2.9, 9.0)]
    assert firsts == ["b", "a", "a"]


def test_a_replica_may_have_the_slot_of_one_that_has_gone():
    fleet = fleet_of({"a": {}, "b": {}})
    fleet.update(["b", "c"])
    assert sorted(names(fleet)) == ["b", "c"]


def test_a_slow_replica_computes_longer():
    fleet = fleet_of({"a": {"prefill_rate": 20.0}, "b": {"waiting_tokens": 50}})
    assert names(fleet, key=LONG) == ["b", "a"]


def test_replicas_that_have_the_model_and_the_adapter_are_preferred():
    fleet = fleet_of(
        {
            "loads": {"models": frozenset(), "known": frozenset("m")},
            "bare": {},
            "both": {"adapters": frozenset("x"), "waiting_tokens": 60},
            "never": {"models": frozenset("n")},
        }
    )
    assert names(fleet, key=LONG, adapter="x") == ["both", "bare", "loads"]
    for avoid, delay in (((), 0.0), (("both",), 1.0), (("both", "bare"), 30.0)):
        assert choose(Ask(LONG, "m", "x", avoid=avoid), fleet, NOW).delay == delay


def test_ties_are_broken_by_the_request_and_the_same_everywhere():
    replicas = {f"r{i}": {} for i in range(8)}
    fleet, other = fleet_of(replicas), fleet_of(dict(reversed(replicas.items())))
    firsts = [names(fleet, key=key(i))[0] for i in range(200)]
    assert firsts == [names(other, key=key(i))[0] for i in range(200)]
    assert all(10 <= firsts.count(name) <= 50 for name in replicas)
    clients = {names(fleet, client=f"c{i}")[0] for i in range(100)}
    assert clients == set(replicas)


def test_an_empty_fleet_an_avoided_one_and_one_without_the_model_say_so():
    with pytest.raises(NoReplicaError, match="m has no replica"):
        choose(Ask(LONG, "m"), Fleet(), NOW)
    fleet = fleet_of({"a": {}, "b": {"draining": True}})
    with pytest.raises(NoReplicaError, match="m has 1 replicas, and all of them were lost"):
        choose(Ask(LONG, "m", avoid=("a",)), fleet, NOW)
    with pytest.raises(NoReplicaError, match="None of 2 replicas can serve other") as caught:
        choose(Ask(LONG, "other"), fleet, NOW)
    assert (caught.value.status, caught.value.retry_after) == (503, 5.0)
    with pytest.raises(NoReplicaError, match="the deployment's model"):
        choose(Ask(), Fleet(), NOW)


def test_unknown_names_to_avoid_are_no_error():
    assert names(fleet_of({"a": {}}), avoid=("gone",)) == ["a"]


def test_a_client_with_more_than_its_share_is_confined_and_others_are_not():
    """The flood waits everywhere. Two clients: it may use half of the replicas."""
    clients = {"flood": 95, "other": 5}
    replicas = {f"r{i}": {"waiting_tokens": 100, "clients": clients} for i in range(8)}
    fleet = fleet_of(replicas)
    used = set()
    for i in range(300):
        used.update(names(fleet, key=key(i), client="flood"))
    assert len(used) == 4
    free = set()
    for i in range(300):
        free.update(names(fleet, key=key(i), client="other"))
    assert free == set(replicas)
    again = {names(fleet_of(replicas), key=key(i), client="flood")[0] for i in range(300)}
    assert again == used


def test_a_prefix_does_not_free_a_confined_client():
    clients = {"flood": 95, "other": 5}
    replicas = {f"r{i}": {"waiting_tokens": 100, "clients": clients} for i in range(8)}
    used = {names(fleet_of(replicas), key=key(i), client="flood")[0] for i in range(300)}
    outside = next(name for name in replicas if name not in used)
    replicas[outside] = {**replicas[outside], "holds": LONG.hashes}
    assert names(fleet_of(replicas), key=LONG, client="flood")[0] in used
    assert names(fleet_of(replicas), key=LONG, client="other")[0] == outside


@pytest.mark.parametrize(
    ("waiting", "clients"),
    [
        (100, {"flood": 100}),  # alone
        (100, {"flood": 70, "other": 30}),  # 1.4 times its share
        (40, {"flood": 39, "other": 1}),  # 0.4 s of work
    ],
)
def test_a_client_that_does_no_harm_is_not_confined(waiting, clients):
    fleet = fleet_of({f"r{i}": {"waiting_tokens": waiting, "clients": clients} for i in range(8)})
    used = {name for i in range(300) for name in names(fleet, key=key(i), client="flood")}
    assert len(used) == 8


REPLICA = st.fixed_dictionaries(
    {
        "holds": st.integers(0, 10).map(lambda depth: LONG.hashes[:depth]),
        "waiting_tokens": st.integers(0, 1000),
        "draining": st.booleans(),
        "models": st.sampled_from([frozenset(), frozenset("m")]),
        "known": st.sampled_from([frozenset(), frozenset("m")]),
        "prefill_rate": st.sampled_from([50.0, 100.0]),
        "clients": st.dictionaries(st.sampled_from("xyz"), st.integers(0, 900)),
    }
)
FLEETS = st.lists(REPLICA, max_size=20).map(lambda all_: {f"r{i}": r for i, r in enumerate(all_)})


def queue(replica: dict) -> float:
    return replica["waiting_tokens"] / replica["prefill_rate"]


def work(replica: dict) -> float:
    """Seconds to compute what the replica lacks of `LONG`."""
    return (LONG.tokens - TOKENS[len(replica["holds"])]) / replica["prefill_rate"]


@settings(max_examples=200, deadline=None)
@given(FLEETS, st.sets(st.integers(0, 20)), st.sampled_from("xyzw"))
def test_only_replicas_that_may_answer_are_chosen(replicas, avoided, client):
    avoid = tuple(f"r{i}" for i in avoided)
    able = {
        name
        for name, one in replicas.items()
        if name not in avoid and not one["draining"] and "m" in one["models"] | one["known"]
    }
    fleet = fleet_of(replicas)
    try:
        best = choose(Ask(LONG, "m", "", client, avoid), fleet, NOW)
    except NoReplicaError:
        assert not able
        return
    assert {best.name, *best.others} <= able
    assert len({best.name, *best.others}) == 1 + len(best.others) <= 1 + MOST_OTHERS
    assert best == choose(Ask(LONG, "m", "", client, avoid), fleet, NOW)
    assert best.held == len(replicas[best.name]["holds"])


@settings(max_examples=200, deadline=None)
@given(FLEETS)
def test_the_first_waits_no_longer_than_any_other_by_more_than_its_prefix_saves(replicas):
    fleet = fleet_of(replicas)
    try:
        first = choose(Ask(LONG, "m"), fleet, NOW)
    except NoReplicaError:
        return
    delays = fleet.delays("m", "").seconds
    queues = {name: queue(one) for name, one in replicas.items()}
    for name, one in replicas.items():
        slot = fleet.slot(name)
        if delays[slot] < math.inf:
            more = work(one) - work(replicas[first.name])
            saved = max(more, MOST_WEIGHT * more)
            waits = queues[first.name] + first.delay - queues[name] - delays[slot]
            assert waits <= saved + TIE_SECONDS + 1e-9


@settings(max_examples=100, deadline=None)
@given(FLEETS, st.integers(0, 9))
def test_a_longer_prefix_never_makes_a_replica_worse(replicas, longer):
    try:
        first = choose(Ask(LONG, "m"), fleet_of(replicas), NOW)
    except NoReplicaError:
        return
    more = {**replicas[first.name], "holds": LONG.hashes[: max(longer, first.held)]}
    again = choose(Ask(LONG, "m"), fleet_of({**replicas, first.name: more}), NOW)
    before, after = (
        queue(replicas[one.name]) + one.delay + work(replicas[one.name]) for one in (first, again)
    )
    assert again.name == first.name or after <= before + TIE_SECONDS * (1 + MOST_WEIGHT)


def test_a_popular_prefix_does_not_pile_up_on_one_replica():
    """One replica holds the prefix. A burst spreads when its queue is longer than it saves."""
    fleet = fleet_of({"a": {"holds": LONG.hashes}, **{f"r{i}": {} for i in range(7)}})
    sent = []
    for i in range(400):
        asked = Key((*LONG.hashes, 1000 + i), LONG.tokens + 16)
        best = choose(Ask(asked, "m"), fleet, NOW)
        fleet.sent(best.name, asked, NOW, held=best.held)
        sent.append(best.name)
    assert sent[0] == "a"
    assert len(set(sent)) == 8
    assert max(map(sent.count, set(sent))) <= 400 / 8 * 1.5
