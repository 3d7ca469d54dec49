"""What an ingress refuses before a replica hears of it, and what a replica refuses."""

from __future__ import annotations

import asyncio
import json
import warnings
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.requests import Request

from fake_executor import FakeExecutor
from fake_model import fake_model
from heddle.config import EngineConfig, RegistryConfig, ServerConfig
from heddle.engine import Engine
from heddle.extensions.ray.config import DeployConfig, Deployed
from heddle.extensions.ray.exchange import Exchange, Piece
from heddle.extensions.ray.replica import app_of
from heddle.hosting.registry import Registry
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import Message


class Handle:
    """Ray's handle of replicas that are not there. It keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[Exchange] = []
        self.cancelled = 0
        self.answer = self

    def options(self, **_: Any) -> Handle:
        return self

    def remote(self, exchange: Exchange) -> Handle:
        self.sent.append(exchange)
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    async def __aiter__(self) -> AsyncGenerator[Piece]:
        headers = ((b"content-type", b"text/plain"), (b"x-request-id", b"one"))
        yield Piece("replica", b"first", 200, headers)
        yield Piece("replica", b"last", is_last=True)


@pytest.fixture
def handle() -> Handle:
    return Handle()


def ingress(handle: Handle, **settings: Any) -> Any:
    pytest.importorskip("ray")
    with warnings.catch_warnings():  # of pydantic, about Ray Serve
        warnings.simplefilter("ignore")
        from heddle.extensions.ray.ingress import Ingress

    deploy = DeployConfig(**settings)
    server = ServerConfig(max_body=1 << 20, body_timeout=1)
    return Ingress(
        handle,  # type: ignore[arg-type]
        Deployed(("fake",), deploy, EngineConfig(), RegistryConfig(), server, "1.0"),
    )


def ask(ingress: Any, *parts: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> Any:
    """The status, the headers and the body of the answer to a request with a body in parts."""
    received: list[Message] = [
        {"type": "http.request", "body": part, "more_body": place < len(parts) - 1}
        for place, part in enumerate(parts)
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        if not received:
            await asyncio.Event().wait()
        return received.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    async def run() -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "query_string": b"",
            "headers": headers or [],
            "client": ("127.0.0.1", 1),
        }
        response = await ingress(Request(scope, receive))
        await response(scope, receive, send)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], sent[0]["headers"], body


def code(answer: Any) -> tuple[int, str]:
    return answer[0], json.loads(answer[2])["error"]["code"]


def test_an_answer_is_what_the_replica_says(handle: Handle) -> None:
    status, headers, body = ask(ingress(handle), b"one ", b"two")
    assert (status, body) == (200, b"firstlast")
    assert headers == [(b"content-type", b"text/plain")]  # Ray's proxy adds the id
    assert handle.sent[0].body == b"one two"
    assert handle.cancelled == 1


def test_a_body_that_is_too_long_is_refused(handle: Handle) -> None:
    assert code(ask(ingress(handle), b"x" * (1 << 20), b"x")) == (413, "body_too_large")
    assert not handle.sent


def test_a_body_that_does_not_arrive_is_refused(handle: Handle) -> None:
    made = ingress(handle)
    made._server = ServerConfig(body_timeout=1)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> Any:
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
        return await made(Request(scope, receive))

    assert asyncio.run(run()).status_code == 408


def test_a_head_that_is_too_long_is_refused(handle: Handle) -> None:
    headers = [(b"a", b"b" * 500)] * 40
    assert code(ask(ingress(handle), b"{}", headers=headers)) == (431, "malformed_http")
    assert not handle.sent


def test_bodies_take_room_until_their_answers_end(handle: Handle) -> None:
    made = ingress(handle, bodies=1 << 20)
    for _ in range(3):
        assert ask(made, b"x" * (1 << 19))[0] == 200
    made._room.left = 5
    assert code(ask(made, b"12345", b"6")) == (429, "queue_full")
    assert made._room.left == 5
    assert ask(made, b"12345")[0] == 200


ADMIN = [
    ("POST", "/models/load", {"model": "other"}),
    ("POST", "/v1/models/unload", {"model": "fake"}),
    ("DELETE", "/v1/prefix_cache", None),
    ("POST", "/api/generate", {"model": "fake", "keep_alive": 0}),
]


@pytest.mark.parametrize(("method", "path", "body"), ADMIN)
def test_a_replica_has_no_admin_routes(method: str, path: str, body: Any) -> None:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app_of(Registry.of(engine), ServerConfig()))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, json=body)

    with Engine(fake_model(FakeExecutor()), EngineConfig()) as engine:
        refused = asyncio.run(run())
    assert refused.status_code == 403
    assert "deploy it again with others" in refused.text
