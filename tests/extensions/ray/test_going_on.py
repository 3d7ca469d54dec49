"""An answer goes on at another replica, event by event as it would have been."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack, aclosing
from typing import TYPE_CHECKING, Any

import pytest

from heddle.config import ServerConfig
from heddle.extensions.ray.answering import answer
from heddle.extensions.ray.exchange import Exchange, Piece
from heddle.extensions.ray.keeping import Patience, ReplicaLostError, kept
from heddle.hosting.registry import Registry
from heddle.server.app import create_app
from heddle.server.http.error_shape import DEFAULT
from patience import PATIENCE
from talking_model import talking_engine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from starlette.types import ASGIApp

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
WAITS = Patience(PATIENCE, PATIENCE)


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


def exchange(path: str, body: dict[str, Any], **more: Any) -> Exchange:
    headers = [(b"content-type", b"application/json")]
    raw = json.dumps(body).encode()
    return Exchange("POST", path, b"", headers, raw, "", "req_1", 6, 1_700_000_000, **more)


class Replicas:
    """Asks the replicas in turn. The first ones are lost after some pieces with bytes."""

    def __init__(self, apps: list[ASGIApp], *lost_after: int) -> None:
        self._apps = apps
        self._lost_after = list(lost_after)
        self.asked: list[list[int]] = []  # tokens known for choice 0, of each exchange

    async def ask(self, sent: Exchange) -> AsyncGenerator[Piece]:
        app = self._apps[len(self.asked) % len(self._apps)]
        name = f"replica-{len(self.asked)}"
        self.asked.append(list(sent.tokens.get(0, [])))
        left = self._lost_after.pop(0) if self._lost_after else None
        async with aclosing(answer(app, sent, name, PATIENCE)) as pieces:
            async for piece in pieces:
                if left == 0:
                    raise ReplicaLostError(f"{name} is lost")
                yield piece
                left = None if left is None else left - 1


async def whole(replicas: Replicas, sent: Exchange, tries: int = 2) -> list[Piece]:
    return [piece async for piece in kept(sent, replicas.ask, tries, WAITS, DEFAULT)]


def text(pieces: list[Piece]) -> bytes:
    return b"".join(piece.body for piece in pieces)


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
            assert timeless(text(pieces)) == timeless(text(calm))
            assert sum(piece.status for piece in pieces) == 200

    asyncio.run(run())


def timeless(sent: bytes) -> list[Any]:
    """The events of each choice, without times, and without what says how they were computed."""
    lines = [line.removeprefix(b"data: ") for line in sent.splitlines()]
    events = [clean(json.loads(line)) for line in lines if line.startswith(b"{")]
    return sorted(events, key=lambda one: [each["index"] for each in one.get("choices", ())])


def clean(value: Any) -> Any:
    if isinstance(value, list):
        return [clean(one) for one in value]
    if not isinstance(value, dict):
        return value
    left_out = ("timings", "completed_at", "usage", "created_at")
    return {
        name: clean(one)
        for name, one in value.items()
        if name not in left_out and not name.endswith("_duration")
    }


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
        assert timeless(text(pieces)) == timeless(text(calm))

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
        waits = Patience(PATIENCE, 0.01)
        return [piece async for piece in kept(sent, ask, 1, waits, DEFAULT)]

    pieces = asyncio.run(run())
    assert len(asked) == 2
    assert [piece.body for piece in pieces] == [b"data: {}\n\n", b"data: {}\n\n", b""]


def test_a_client_that_leaves_ends_the_request(apps: list[ASGIApp]) -> None:
    engine = apps[0].state.engine  # type: ignore[attr-defined]

    async def run() -> None:
        sent = exchange("/v1/chat/completions", CHAT)
        async with aclosing(answer(apps[0], sent, "one", PATIENCE)) as pieces:
            await anext(pieces)
        while engine.snapshot().running:
            await asyncio.sleep(0.001)  # lets the engine end it

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
