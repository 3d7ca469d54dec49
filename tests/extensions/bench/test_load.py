"""Loads on a fake peer, and what they show."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from fake_peer import fake_peer
from heddle.errors import PeerError
from heddle.extensions.bench.load import Load, LoadReport, LoadResult, Scaling, Verdict, run_load
from heddle.extensions.bench.remote import connect

LOAD = Load(concurrency=3, requests=9, max_tokens=12, prompt_words=16)


def result_of(manner: str, load: Load = LOAD, **options: Any) -> LoadResult:
    with fake_peer(manner) as peer:
        return run_load(connect("peer", peer.url), load, **options)


def verdict_of(*results: LoadResult) -> Verdict:
    return LoadReport("run", LOAD, {}, results, min_ratio=0.9).verdict


@pytest.mark.parametrize("chat", [False, True])
def test_a_good_peer(chat: bool) -> None:
    load = replace(LOAD, chat=chat)
    with fake_peer("echoing") as peer:
        result = run_load(connect("peer", peer.url), load, slots=3, baseline=1e-9)
    assert (result.answered, result.failures, result.tokens) == (9, {}, 9 * 12)
    assert result.rate > 0
    assert result.ratio == result.rate / 1e-9
    for spread in (result.latency, result.ttft, result.itl):
        assert 0 <= spread.p50 <= spread.p95 <= spread.p99
    assert (result.isolation.answers, result.isolation.echoed) == (9, 9)
    assert len(peer.bodies) == 1 + 9, "one request warms up"
    for body in peer.bodies:
        assert (body["max_tokens"], body["stream"], body["ignore_eos"]) == (12, True, True)
        assert ("messages" in body, "prompt" in body) == (chat, not chat)
    assert verdict_of(result) == Verdict.GOOD == 0


def test_memory_of_a_known_process() -> None:
    with fake_peer("echoing") as peer:
        result = run_load(connect("peer", peer.url, pid=os.getpid()), LOAD)
    assert 0 < result.memory.before <= result.memory.peak >= result.memory.after > 0
    assert result_of("echoing").memory is None


def test_a_peer_that_mixes_up_requests() -> None:
    result = result_of("leaking", replace(LOAD, concurrency=1))
    assert result.isolation.foreign == tuple((index, index - 1) for index in range(1, 9))
    assert verdict_of(result) == Verdict.ISOLATION_BROKEN == 6


def test_a_peer_that_answers_all_alike() -> None:
    result = result_of("well", baseline=1e9)
    assert result.isolation.equal == (tuple(range(9)),)
    assert verdict_of(result) == Verdict.ISOLATION_BROKEN, "worse than slow"


def test_the_fastest_of_a_sweep_must_reach_the_baseline() -> None:
    result = replace(result_of("echoing"), rate=80.0, baseline=100.0)
    assert result.ratio == 0.8
    assert verdict_of(result) == Verdict.BELOW_BASELINE == 5
    assert verdict_of(result, replace(result, rate=90.0)) == Verdict.GOOD
    assert verdict_of(replace(result, baseline=None)) == Verdict.GOOD


def test_several_slots_must_reach_their_targets() -> None:
    one, two, four = (
        replace(result_of("echoing"), slots=slots, rate=rate)
        for slots, rate in ((1, 100.0), (2, 170.0), (4, 290.0))
    )
    load = replace(LOAD, concurrency=4)

    def report(*results: LoadResult, load: Load = load) -> LoadReport:
        return LoadReport("run", load, {}, results, 0.9, {2: 1.7, 4: 3.0})

    slow = report(one, two, four)
    assert slow.scalings == (Scaling(2, 1.7, 1.7), Scaling(4, 2.9, 3.0))
    assert slow.verdict == Verdict.BELOW_TARGET == 7
    assert slow.as_dict()["scalings"][1] == {"slots": 4, "ratio": 2.9, "target": 3.0, "met": False}
    assert report(one, two).verdict == Verdict.GOOD
    assert report(two, four).verdict == Verdict.GOOD, "nothing to compare with"
    few = report(one, two, four, load=LOAD)
    assert [each.slots for each in few.scalings] == [2], "3 requests do not fill 4 slots"
    failing = replace(four, failures={"it failed": 1})
    assert report(one, two, failing).verdict == Verdict.BELOW_TARGET
    assert report(replace(one, rate=0.0), two).scalings == ()


def test_failures_are_counted_by_their_reason() -> None:
    result = result_of("refusing sometimes", replace(LOAD, concurrency=1))
    assert result.answered == 6
    assert result.failures == {'peer answered 500: {"error": "out of luck"}': 3}
    assert result.isolation.answers == 6
    assert verdict_of(result) == Verdict.REQUESTS_FAILED == 1


@pytest.mark.parametrize("manner", ["refusing", "closing", "ending early", "speaking in tongues"])
def test_a_peer_that_never_answers_is_named(manner: str) -> None:
    with pytest.raises(PeerError, match="peer"):
        result_of(manner)


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("field", ["ignore_eos", "stream_options"])
def test_fields_that_a_peer_refuses_are_left_out(field: str, status: int) -> None:
    with fake_peer("echoing") as peer:
        peer.refused_fields, peer.refused_status = {field}, status
        result = run_load(connect("peer", peer.url), LOAD)
    assert result.answered == 9
    assert not any(field in body for body in peer.bodies)


def test_without_usage_pieces_of_text_count_as_tokens() -> None:
    assert result_of("without usage").tokens == 9 * 12


def test_a_load_says_when_a_peer_refuses_every_form() -> None:
    with fake_peer("echoing") as peer:
        peer.refused_fields = {"prompt"}
        with pytest.raises(PeerError, match=r"peer answered 400: .*unknown fields"):
            run_load(connect("peer", peer.url), LOAD)
