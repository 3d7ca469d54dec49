"""An answer goes on at another replica, event by event as it would have been."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack, aclosing
from typing import TYPE_CHECKING, Any

import pytest
from losing import WAITS, Replicas, clean, exchange, text, timeless, whole

from heddle.config import ServerConfig
from heddle.extensions.ray.answering import answer
from heddle.extensions.ray.exchange import Exchange, Piece
from heddle.extensions.ray.keeping import Patience, ReplicaLostError, kept
from heddle.hosting.registry import Registry
from heddle.outputs import FinishReason
from heddle.server.app import create_app
from heddle.server.http.edge import stop_admission
from heddle.server.http.error_shape import DEFAULT
from patience import PATIENCE
from talking_model import talking_engine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from starlette.types import ASGIApp

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def apps() -> Iterator[list[ASGIApp]]:
    """Two replicas of a model."""
    with ExitStack() as stack:
        made: list[ASGIApp] = []
        for _ in range(2):
            engine, executor = stack.enter_context(talking_engine(TEMPLATE))
            executor.answers = ("<think>so it is</think>well, it is a long day", "other words here")
            made.append(create_app(Registry.of(engine), ServerConfig()))
            made[-1].state.engine = engine  # type: ignore[attr-defined]
        yield made


CHAT = {"messages": [{"role": "user", "content": "ab"}], "stream": True, "logprobs": True}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "ab", "stream": True, "logprobs": 2, "n": 2},
    "/v1/responses": {"input": "ab", "stream": True},
    "/v1/messages": {
        "messages": [{"role": "user", "content": "ab"}],
        "stream": True,
        "max_tokens": 40,
    },
    "/api/chat": {"model": "fake", "messages": [{"role": "user", "content": "ab"}]},
    "/completion": {"prompt": "ab", "stream": True},
}


@pytest.mark.parametrize("path", BODIES)
def test_streams_go_on(apps: list[ASGIApp], path: str) -> None:
    async def run() -> None:
        calm = await whole(Replicas(apps), exchange(path, BODIES[path]))
        assert calm[0].status == 200
        assert calm[-1].is_last
        for lost in range(1, len(calm), 7):
            replicas = Replicas(apps, lost, 1)
            pieces = await whole(replicas, exchange(path, BODIES[path]))
            assert timeless(pieces) == timeless(calm)
            assert sum(piece.status for piece in pieces) == 200

    asyncio.run(run())


def test_known_tokens_are_computed_many_at_a_time(apps: list[ASGIApp]) -> None:
    async def run() -> tuple[int, int]:
        engine = apps[1].state.engine  # type: ignore[attr-defined]
        before = engine.snapshot().steps
        replicas = Replicas(apps, 30)
        await whole(replicas, exchange("/v1/chat/completions", CHAT))
        return len(replicas.asked[1]), engine.snapshot().steps - before

    known, steps = asyncio.run(run())
    assert known > 20
    assert steps < known


def test_an_answer_in_one_piece_begins_anew(apps: list[ASGIApp]) -> None:
    async def run() -> None:
        body = {"messages": CHAT["messages"]}
        calm = await whole(Replicas(apps), exchange("/v1/chat/completions", body))
        replicas = Replicas(apps, 0, 0)
        pieces = await whole(replicas, exchange("/v1/chat/completions", body))
        assert len(replicas.asked) == 3
        assert len(pieces) == 1
        assert clean(json.loads(text(pieces))) == clean(json.loads(text(calm)))

    asyncio.run(run())


def test_another_token_is_an_error(apps: list[ASGIApp]) -> None:
    async def run() -> list[Piece]:
        wrong = exchange("/v1/chat/completions", CHAT, begun=True, tokens={0: [ord("Z")]})
        return await whole(Replicas(apps), wrong)

    assert b'"code":"answer_changed"' in text(asyncio.run(run()))


def test_too_many_losses_end_a_stream_with_an_error(apps: list[ASGIApp]) -> None:
    async def run(path: str) -> list[Piece]:
        return await whole(Replicas(apps, 3, 0, 0), exchange(path, BODIES[path]))

    sent = text(asyncio.run(run("/v1/chat/completions")))
    assert b'event: error\ndata: {"error":{"message":"replica-2 is lost"' in sent
    last = text(asyncio.run(run("/api/chat"))).splitlines()[-1]
    assert json.loads(last)["error"]["code"] == "replica_lost"


def test_a_stream_outlives_many_losses_if_each_replica_adds_to_it(apps: list[ASGIApp]) -> None:
    async def run() -> None:
        path = "/v1/chat/completions"
        calm = await whole(Replicas(apps), exchange(path, CHAT))
        replicas = Replicas(apps, *[1] * 8)
        pieces = await whole(replicas, exchange(path, CHAT), tries=1)
        assert len(replicas.asked) == 9
        assert timeless(pieces) == timeless(calm)

    asyncio.run(run())


def test_too_many_losses_before_the_answer_raise(apps: list[ASGIApp]) -> None:
    async def run() -> None:
        await whole(Replicas(apps, 0, 0, 0), exchange("/v1/chat/completions", CHAT))

    with pytest.raises(ReplicaLostError, match="replica-2 is lost"):
        asyncio.run(run())


def test_a_silent_replica_is_lost() -> None:
    asked = []

    async def ask(sent: Exchange) -> AsyncGenerator[Piece]:
        asked.append(sent)
        yield Piece("silent", b"data: {}\n\n", 200)
        await asyncio.Event().wait()

    async def run() -> list[Piece]:
        sent = exchange("/v1/chat/completions", CHAT)
        waits = Patience(10 * PATIENCE, 0.01)
        return [piece async for piece in kept(sent, ask, 1, waits, DEFAULT)]

    pieces = asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert len(asked) == 2
    assert [piece.body for piece in pieces] == [b"data: {}\n\n", b"data: {}\n\n", b""]


def test_a_request_that_no_replica_takes_is_sent_again() -> None:
    asked = 0

    async def ask(_: Exchange) -> AsyncGenerator[Piece]:
        nonlocal asked
        asked += 1
        if asked < 4:  # more often than replicas may be lost
            await asyncio.Event().wait()
        yield Piece("awake", b"data: {}\n\n", 200, is_last=True)

    async def run() -> list[Piece]:
        sent = exchange("/v1/chat/completions", CHAT)
        return [piece async for piece in kept(sent, ask, 0, Patience(PATIENCE, 0.01), DEFAULT)]

    assert [piece.body for piece in asyncio.run(run())] == [b"data: {}\n\n"]


def test_a_request_is_not_sent_again_for_ever() -> None:
    async def ask(_: Exchange) -> AsyncGenerator[Piece]:
        await asyncio.Event().wait()
        yield Piece()

    async def run() -> None:
        sent = exchange("/v1/chat/completions", CHAT)
        [piece async for piece in kept(sent, ask, 5, Patience(0.05, 0.01), DEFAULT)]

    with pytest.raises(ReplicaLostError, match=r"no replica took the request within 0\.05 s"):
        asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_a_stream_that_no_replica_takes_over_ends() -> None:
    """Not after as many waits as replicas may be lost."""
    asked = 0

    async def ask(_: Exchange) -> AsyncGenerator[Piece]:
        nonlocal asked
        asked += 1
        if asked == 1:
            yield Piece("lost", b"data: {}\n\n", 200, ((b"content-type", b"text/event-stream"),))
        await asyncio.Event().wait()

    async def run() -> list[Piece]:
        sent = exchange("/v1/chat/completions", CHAT)
        waits = Patience(0.05, 0.05)  # so that each wait is one question
        return [piece async for piece in kept(sent, ask, 5, waits, DEFAULT)]

    _, end = asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert b'"replica_lost"' in end.body
    assert asked < 5, "not one wait for each replica that may be lost"


def test_a_replica_that_fails_again_is_no_further_loss() -> None:
    asked = 0

    async def ask(_: Exchange) -> AsyncGenerator[Piece]:
        nonlocal asked
        asked += 1
        if asked < 4:
            yield Piece("failed", failure="model_poisoned")
        yield Piece("well", b"data: {}\n\n", 200, is_last=True)

    async def run(sent: Exchange) -> list[Piece]:
        return [piece async for piece in kept(sent, ask, 1, WAITS, DEFAULT)]

    sent = exchange("/v1/chat/completions", CHAT)
    assert [piece.replica for piece in asyncio.run(run(sent))] == ["well"]
    assert (asked, sent.avoid) == (4, ("failed",))


def test_a_replica_does_not_fail_a_request_for_ever() -> None:
    async def ask(_: Exchange) -> AsyncGenerator[Piece]:
        yield Piece("failed", b"why", 503, failure="model_poisoned")

    async def run() -> list[Piece]:
        sent = exchange("/v1/chat/completions", CHAT)
        waits = Patience(0.2, PATIENCE)
        return [piece async for piece in kept(sent, ask, 1, waits, DEFAULT)]

    [piece] = asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert (piece.status, piece.body) == (503, b"why")


def test_lost_replicas_are_avoided(apps: list[ASGIApp]) -> None:
    sent = exchange("/v1/chat/completions", CHAT)
    asyncio.run(whole(Replicas(apps, 3, 5), sent))
    assert sent.avoid == ("replica-0", "replica-1")


def test_a_client_that_leaves_ends_the_request(apps: list[ASGIApp]) -> None:
    engine = apps[0].state.engine  # type: ignore[attr-defined]

    async def run() -> None:
        sent = exchange("/v1/chat/completions", CHAT)
        before = engine.snapshot().finished[FinishReason.CANCELLED]
        async with aclosing(answer(apps[0], sent, "one", PATIENCE)) as pieces:
            await anext(pieces)
        while engine.snapshot().finished[FinishReason.CANCELLED] == before:
            await asyncio.sleep(0.001)  # lets the engine end it

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_a_model_that_fails_is_left(apps: list[ASGIApp]) -> None:
    with talking_engine(TEMPLATE) as (engine, executor):
        executor.answers = ("<think>so it is</think>well, it is a long day", "other words here")

        def before_step(step: int) -> None:
            if step == 12:
                raise RuntimeError("the step burns")

        executor.before_step = before_step
        failing = create_app(Registry.of(engine), ServerConfig())

        async def run() -> None:
            calm = await whole(Replicas(apps), exchange("/v1/chat/completions", CHAT))
            replicas = Replicas([failing, apps[1]])
            pieces = await whole(replicas, exchange("/v1/chat/completions", CHAT))
            assert len(replicas.asked) == 2
            assert 5 < len(replicas.asked[1]) <= 12
            assert timeless(pieces) == timeless(calm)

        asyncio.run(run())


def test_a_server_that_stops_is_left(apps: list[ASGIApp]) -> None:
    with talking_engine(TEMPLATE) as (engine, _):
        stopping = create_app(Registry.of(engine), ServerConfig())
        stop_admission(stopping)

        async def run() -> None:
            replicas = Replicas([stopping, apps[1]])
            pieces = await whole(replicas, exchange("/v1/chat/completions", CHAT))
            assert len(replicas.asked) == 2
            assert pieces[0].status == 200

        asyncio.run(run())


def test_a_wrong_request_is_not_sent_again(apps: list[ASGIApp]) -> None:
    async def run() -> None:
        replicas = Replicas(apps)
        [piece] = await whole(replicas, exchange("/v1/chat/completions", {"messages": 7}))
        assert len(replicas.asked) == 1
        assert piece.status == 400

    asyncio.run(run())


def test_ids_and_seeds_of_a_large_body_stay(apps: list[ASGIApp]) -> None:
    """A thread translates a body of more than 16 KiB."""
    body = {"messages": CHAT["messages"], "stream": True, "user": "u" * 20_000}

    async def run() -> None:
        ids = set()
        for name in (0, 1):
            replicas = Replicas([apps[name]])
            sent = await whole(replicas, exchange("/v1/chat/completions", body))
            ids |= {one["id"] for one in timeless(sent)}
        assert len(ids) == 1

    asyncio.run(run())


def test_the_last_event_of_a_choice_is_sent_once(apps: list[ASGIApp]) -> None:
    body = {"prompt": "ab", "stream": True, "n": 2, "max_tokens": 3}

    async def run() -> list[Any]:
        calm = await whole(Replicas(apps), exchange("/v1/completions", body))
        tokens: dict[int, list[int]] = {0: [], 1: []}
        for piece in calm:
            for index, token in piece.tokens:
                tokens[index].append(token)
        sent = exchange("/v1/completions", body, begun=True, tokens=tokens, closed={0})
        return timeless(await whole(Replicas(apps), sent))

    choices = [choice for event in asyncio.run(run()) for choice in event["choices"]]
    assert {one["index"] for one in choices} == {1}


def test_choices_without_a_seed_are_the_same_at_each_replica(apps: list[ASGIApp]) -> None:
    body = {"prompt": ["ab", "ab"], "n": 4, "max_tokens": 3}

    async def run() -> None:
        answers = [
            clean(json.loads(text(await whole(Replicas([app]), exchange("/v1/completions", body)))))
            for app in apps
        ]
        assert answers[0] == answers[1]
        assert len({choice["text"] for choice in answers[0]["choices"]}) == 2

    asyncio.run(run())
