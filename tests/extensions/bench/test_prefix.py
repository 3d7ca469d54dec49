"""The load whose requests share a prefix: the requests, the counts, and the report."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pytest

from fake_peer import fake_peer
from heddle.extensions.bench import prefix, side_by_side
from heddle.extensions.bench.exchange import Server
from heddle.extensions.bench.figures import Stream
from heddle.extensions.bench.prefix import (
    BURST,
    IDENTICAL,
    Figures,
    PrefixLoad,
    PrefixReport,
    run_burst,
    run_identical,
    run_load,
)
from heddle.extensions.bench.remote import connect

if TYPE_CHECKING:
    from heddle.extensions.bench.prefix import Round

LOAD = PrefixLoad(clients=2, requests=10, rounds=3, shared=0.8, prefix=20, tail=5, new=3)


@pytest.fixture(autouse=True)
def nothing_to_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "_SETTLE_SECONDS", 0)


def test_prompts_are_of_one_length_and_most_begin_alike() -> None:
    rounds = LOAD.prompts()
    prompts = list(chain.from_iterable(rounds))
    assert rounds == LOAD.prompts(), "the same in every run"
    assert [len(each) for each in rounds] == [3, 3, 4]
    assert {len(prompt) for prompt in prompts} == {25}
    assert len({tuple(prompt) for prompt in prompts}) == 10
    common = max(prompts, key=lambda one: sum(one[:20] == other[:20] for other in prompts))[:20]
    alike = [prompt[:20] == common for prompt in prompts]
    assert sum(alike) == 8
    assert alike != sorted(alike, reverse=True), "in a mixed order"


def test_servers_alternate_and_all_is_counted() -> None:
    said: list[str] = []
    with fake_peer(remembers=True) as one, fake_peer() as other:
        servers = [connect("one", one.url), connect("other", other.url)]
        rounds = run_load(servers, LOAD, said.append)
    turns = [line.rpartition(", ")[2] for line in said]
    assert turns == ["one", "other", "other", "one", "one", "other"]
    assert [len(part) for part in rounds["one"]] == [3, 3, 4]
    sent = [sorted(body["prompt"] for body in peer.bodies[1:]) for peer in (one, other)]
    assert sent[0] == sent[1] == sorted(chain.from_iterable(LOAD.prompts()))
    ours, theirs = (Figures.of(rounds[name]) for name in ("one", "other"))
    assert ours.requests == theirs.requests == 10
    assert ours.hits == 7, "all that begin alike but the first"
    assert ours.computed is not None
    assert ours.computed <= 20 + 10 * 5 + 2 * 20
    assert (theirs.hits, theirs.computed) == (None, None)


def test_identical_prompts_are_sent_in_a_row_and_a_burst_at_once() -> None:
    with fake_peer(remembers=True) as peer:
        server = connect("peer", peer.url)
        identical = run_identical(server, LOAD)
        assert len({tuple(body["prompt"]) for body in peer.bodies}) == 1
        peer.bodies.clear()
        burst = run_burst(server, LOAD)
    assert (identical.requests, identical.hits) == (IDENTICAL, 3)
    assert len(peer.bodies) == burst.requests == BURST
    assert len({tuple(body["prompt"][:20]) for body in peer.bodies}) == 1
    assert len({tuple(body["prompt"]) for body in peer.bodies}) == BURST


def test_identical_prompts_come_from_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = []

    def in_turn(_server: object, prompts: list[list[int]], count: int, _new: int) -> list[Stream]:
        clients.append(count)
        return [stream(0, 1, 2) for _ in prompts]

    monkeypatch.setattr(prefix, "complete_in_turn", in_turn)
    assert run_identical(Server("any", "http://any", "m"), LOAD).requests == IDENTICAL
    assert clients == [1]


def stream(sent: float, first: float, last: float, cached: int | None = 0) -> Stream:
    return Stream(sent, (first, last), 10, 4, cached)


def test_figures_of_known_rounds() -> None:
    rounds: list[Round] = [
        (stream(0, 1, 2, 5), stream(0, 2, 4, 4)),
        (stream(10, 11, 13, 10),),
    ]
    figures = Figures.of(rounds)
    assert (figures.latency.p50, figures.latency.max) == (3, 4)
    assert (figures.ttft.p50, figures.ttft.max) == (1, 2)
    assert figures.rate == 3 * 4 / (4 + 3)
    assert (figures.hits, figures.computed) == (2, 5 + 6 + 0)
    unknown = Figures.of([(stream(0, 1, 2), stream(0, 1, 2, None))])
    assert (unknown.hits, unknown.computed) == (None, None)


def test_times_better_of_all_and_of_rounds() -> None:
    ours: list[Round] = [(stream(0, 1, 2),), (stream(0, 1, 4),)]
    theirs: list[Round] = [(stream(0, 2, 8),), (stream(0, 3, 8),)]
    rounds = {"ours": ours, "theirs": theirs}
    figures = Figures.of(ours)
    report = PrefixReport("model", {}, LOAD, rounds, figures, figures, None)
    better = report.times_better()
    assert (better["rate"].all, better["rate"].min, better["rate"].max) == (16 / 6, 2, 4)
    assert (better["latency_p50"].all, better["ttft_p50"].min) == (4, 2)
    assert report.as_dict()["times_better"]["ttft_p50"]["max"] == 3
