"""Loads over HTTP on a fake peer: the requests, the streams, and the error of each failure."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from itertools import pairwise

import pytest

from fake_peer import fake_peer, paced_client
from heddle.errors import ConfigError, PeerError
from heddle.extensions.bench.exchange import Recorder
from heddle.extensions.bench.remote import (
    Server,
    complete,
    complete_beside,
    complete_in_turn,
    connect,
)
from patience import PATIENCE

PROMPTS = [[1000, 1001, 1002], [1003, 1004, 1005]]


def test_streams_of_a_good_peer() -> None:
    with fake_peer() as peer:
        streams = complete(connect("peer", peer.url), PROMPTS, 7)
    assert len(streams) == 2
    for stream in streams:
        assert (stream.prompt_tokens, stream.tokens, len(stream.arrivals)) == (3, 7, 7)
        assert stream.sent < stream.arrivals[0]
        assert list(stream.arrivals) == sorted(stream.arrivals)
    assert sorted(body["prompt"] for body in peer.bodies) == PROMPTS
    for body in peer.bodies:
        assert body["model"] == "some-model"
        assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (7, 0, True)


def test_tokens_without_text_arrive_with_the_end() -> None:
    with fake_peer("silent") as peer:
        [stream] = complete(connect("peer", peer.url), PROMPTS[:1], 7)
    assert (stream.tokens, len(stream.arrivals)) == (7, 1)


def test_an_address_may_end_in_v1_and_name_a_model() -> None:
    with fake_peer() as peer:
        peer.models = ["one", "two"]
        assert connect("peer", peer.url + "/v1/").url == peer.url
        assert connect("peer", peer.url).model == "one"
        assert connect("peer", peer.url, "two").model == "two"
        with pytest.raises(PeerError, match="peer has no model 'three'; it has one, two"):
            connect("peer", peer.url, "three")
        peer.models = []
        with pytest.raises(PeerError, match="peer has no model at"):
            connect("peer", peer.url)


@pytest.mark.parametrize(
    ("manner", "told"),
    [
        ("refusing", "peer answered 500: .*out of luck"),
        ("closing", "peer closed a connection without an answer"),
        ("ending early", "peer ended a stream early, after 4 pieces"),
        ("failing midway", "peer failed: .*the model is on fire"),
        ("babbling", "peer sent an event that is not JSON"),
        ("without usage", "peer sent no usage"),
        ("short", "peer generated 7 tokens instead of 8"),
        ("speaking in tongues", "peer does not answer in HTTP"),
    ],
)
def test_a_peer_that_fails_is_named(manner: str, told: str) -> None:
    with fake_peer(manner) as peer, pytest.raises(PeerError, match=told):
        complete(connect("peer", peer.url), PROMPTS, 8)


@pytest.mark.parametrize(
    ("manner", "told"),
    [
        ("without models", "peer answered 404 to .*/v1/models"),
        ("odd models", "did not answer with a list of models"),
    ],
)
def test_a_peer_without_models_is_named(manner: str, told: str) -> None:
    with fake_peer(manner) as peer, pytest.raises(PeerError, match=told):
        connect("peer", peer.url)


def test_a_peer_may_ask_for_a_key() -> None:
    with fake_peer() as peer:
        peer.key = "sk-1"
        server = connect("peer", peer.url, key="sk-1")
        assert len(complete(server, PROMPTS, 3)) == len(PROMPTS)
        assert "sk-1" not in repr(server)
        with pytest.raises(PeerError, match="peer answered 401"):
            connect("peer", peer.url)
        with pytest.raises(PeerError, match=r"peer answered 401: .*who are you"):
            complete(replace(server, key="sk-2"), PROMPTS, 3)
        with pytest.raises(ConfigError, match="peer_key: key 1 of 1 must be visible ASCII"):
            connect("peer", peer.url, key="two\nlines")


def test_a_peer_that_is_down_is_named() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PeerError, match=f"peer cannot be reached at {url}"):
            connect("peer", url)
        with pytest.raises(PeerError, match=f"peer cannot be reached at {url}"):
            complete(Server("peer", url, "some-model"), PROMPTS, 8)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "ftp://127.0.0.1", "http://", "http://host:port"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(PeerError, match="peer"):
        connect("peer", url)


def test_clients_send_in_turn_and_never_more_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer answers when exactly two are asking; three or one would wait for ever."""
    prompts = [[1000 + index] for index in range(6)]
    with fake_peer(pace=paced_client(monkeypatch, streams=2)) as peer:
        streams = complete_in_turn(connect("peer", peer.url), prompts, 2, 3)
    assert [len(stream.arrivals) for stream in streams] == [3] * 6
    assert sorted(body["prompt"] for body in peer.bodies) == prompts
    ends = [stream.arrivals[-1] for stream in streams]
    begins = sorted(stream.sent for stream in streams)
    assert begins[2] > min(ends), "the third waits for an answer"


def test_one_client_sends_one_after_the_other() -> None:
    prompts = [[1000 + index] for index in range(4)]
    with fake_peer() as peer:
        streams = complete_in_turn(connect("peer", peer.url), prompts, 1, 3)
    assert [body["prompt"] for body in peer.bodies] == prompts
    for earlier, later in pairwise(streams):
        assert earlier.arrivals[-1] < later.sent


def test_more_clients_than_prompts() -> None:
    with fake_peer() as peer:
        assert len(complete_in_turn(connect("peer", peer.url), PROMPTS, 8, 3)) == 2


def test_a_newcomer_comes_when_the_others_have_begun() -> None:
    with fake_peer() as peer:
        server = connect("peer", peer.url)
        streams, newcomer = complete_beside(server, PROMPTS, 7, [5, 5, 5, 5], after=2)
    assert [body["max_tokens"] for body in peer.bodies] == [7, 7, 1]
    assert [stream.prompt_tokens for stream in (*streams, newcomer)] == [3, 3, 4]
    assert newcomer.sent > max(stream.arrivals[0] for stream in streams)


@pytest.mark.parametrize("manner", ["refusing", "closing", "ending early"])
def test_a_peer_that_fails_before_a_newcomer_comes_is_named(manner: str) -> None:
    with fake_peer(manner) as peer, pytest.raises(PeerError, match="peer"):
        complete_beside(connect("peer", peer.url), PROMPTS, 8, [5], after=1000)


def test_cached_tokens_are_what_the_peer_says() -> None:
    with fake_peer(remembers=True) as one, fake_peer() as other:
        told = complete_in_turn(connect("one", one.url), [[1, 2, 3], [1, 2, 4]], 1, 2)
        untold = complete(connect("other", other.url), PROMPTS, 2)
    assert [stream.cached_tokens for stream in told] == [0, 2]
    assert [stream.cached_tokens for stream in untold] == [None, None]


def test_a_recorder_tells_when_enough_has_come_or_nothing_more_will() -> None:
    async def record() -> None:
        recorder = Recorder()
        waiting = asyncio.ensure_future(recorder.until(2))
        for count in range(2):
            await asyncio.sleep(0)
            assert not waiting.done(), count
            recorder.data_received(b"piece")
        await asyncio.wait_for(waiting, PATIENCE)
        cut_short = Recorder()
        cut_short.connection_lost(None)
        await asyncio.wait_for(cut_short.until(2), PATIENCE)

    asyncio.run(record())
