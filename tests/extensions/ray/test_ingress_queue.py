"""The ingress, with replicas that answer as Ray lets them. Needs Ray, and no cluster."""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("ray.serve", reason="needs Ray")

import ray.exceptions
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.requests import Request

from heddle.config import EngineConfig, RegistryConfig, ServerConfig
from heddle.extensions.ray.config import DeployConfig, Deployed
from heddle.extensions.ray.exchange import FULL, Piece
from heddle.extensions.ray.ingress import Ingress
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response
    from starlette.types import Message

    from heddle.extensions.ray.exchange import Exchange

PIECE = Piece("one", b"{}", 200, ((b"content-type", b"application/json"),), is_last=True)
FULL_QUEUE = BackPressureError(num_queued_requests=40, max_queued_requests=40)
LOST = ray.exceptions.ActorDiedError()


class Answer:
    """A stream of Ray. Its `cancel` raises the error that the stream has ended with."""

    def __init__(self, pieces: list[Piece | Exception]) -> None:
        self._pieces = pieces
        self._error: Exception | None = None
        self.is_cancelled = False

    async def __aiter__(self) -> AsyncIterator[Piece]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                self._error = piece
                raise piece
            yield piece
        if not self._pieces:
            await asyncio.Event().wait()

    def cancel(self) -> None:
        self.is_cancelled = True
        if self._error is not None:
            raise self._error


class Handle:
    """A handle of Ray. Each request gets the next answer."""

    def __init__(self, *answers: list[Piece | Exception], told: Any = ()) -> None:
        self._answers = list(answers)
        self._told = told
        self.made: list[Answer] = []
        self.asked: list[Exchange] = []

    def options(self, *, stream: bool) -> Handle:
        assert stream
        return self

    @property
    def answer(self) -> Handle:
        return self

    def remote(self, exchange: Exchange) -> Answer:
        self.asked.append(exchange)
        self.made.append(Answer(self._answers.pop(0)))
        return self.made[-1]

    def broadcast(self, method: str, exchange: Exchange) -> Handle:
        assert method == "tell"
        self.asked.append(exchange)
        return self

    async def results_async(self, *, timeout_s: float, return_exceptions: bool) -> list[Any]:
        assert timeout_s > 0
        assert return_exceptions
        if isinstance(self._told, Exception):
            raise self._told
        return list(self._told)


def ingress(handle: Handle, **settings: Any) -> Ingress:
    deploy = DeployConfig(**{"replicas": 1, "waiting": 40, **settings})
    deployed = Deployed(
        ("m",), deploy, EngineConfig(), RegistryConfig(), ServerConfig(), version("heddle")
    )
    return Ingress(handle, deployed)


async def ask(one: Ingress, path: str = "/v1/chat/completions", method: str = "POST") -> Response:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [],
        "client": None,
        "server": None,
    }
    return await asyncio.wait_for(one(Request(scope, receive)), PATIENCE)


def test_a_full_queue_is_429_in_openai_s_shape() -> None:
    response = asyncio.run(ask(ingress(Handle([FULL_QUEUE]))))
    error = json.loads(response.body)["error"]
    assert (response.status_code, response.headers["retry-after"]) == (429, "5")
    assert error["code"] == "queue_full"
    assert "40 requests wait for a replica" in error["message"]
    assert "about 5 s" in error["message"]


def test_retry_after_follows_from_how_fast_replicas_take_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("heddle.extensions.ray.ingress.time.monotonic", lambda: now[0])
    one = ingress(Handle([PIECE], [PIECE], [FULL_QUEUE]))

    async def run() -> Response:
        await ask(one)
        now[0] = 1.0
        await ask(one)
        now[0] = 1.5
        return await ask(one)

    assert asyncio.run(run()).headers["retry-after"] == "30"  # 40 requests at 2 in 1.5 s


def test_a_request_that_was_taken_waits_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.extensions.ray.ingress._AGAIN", 0.0)
    handle = Handle([Piece("one"), LOST], [FULL_QUEUE], [FULL_QUEUE], [PIECE])
    assert asyncio.run(ask(ingress(handle))).status_code == 200
    assert len(handle.asked) == 4


def test_a_request_that_a_full_replica_refuses_looks_for_a_place_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("heddle.extensions.ray.ingress._AGAIN", 0.0)
    handle = Handle([Piece("one", failure=FULL)], [PIECE])
    assert asyncio.run(ask(ingress(handle))).status_code == 200
    assert [one.avoid for one in handle.asked] == [(), ()], "the replica has failed nothing"
    full = ingress(Handle([Piece("one", failure=FULL)], [FULL_QUEUE]))
    assert asyncio.run(ask(full)).status_code == 429, "no replica has taken it"


def test_an_ingress_with_too_many_requests_answers_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("heddle.extensions.ray.ingress.CONNECTIONS", 1)
    health = Piece("b", b"{}", 200)
    one = ingress(Handle([PIECE], [PIECE], told=[health]))

    async def run() -> list[int]:
        first = await ask(one)  # the client has not read its answer
        statuses = [(await ask(one)).status_code, (await ask(one, "/health", "GET")).status_code]

        async def send(_: Message) -> None:
            pass

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        await first({"type": "http"}, receive, send)
        return [*statuses, (await ask(one)).status_code]

    assert asyncio.run(run()) == [429, 200, 200]


def test_a_question_does_not_wait_for_its_body() -> None:
    health = Piece("b", b"{}", 200)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    scope = {"type": "http", "method": "GET", "path": "/health", "query_string": b"", "headers": []}
    asked = ingress(Handle(told=[health]))(Request(scope, receive))
    assert asyncio.run(asyncio.wait_for(asked, PATIENCE)).status_code == 200


def test_an_answer_that_nobody_reads_is_cancelled() -> None:
    handle = Handle([])

    async def run() -> None:
        asking = asyncio.create_task(ask(ingress(handle)))
        while not handle.made:
            await asyncio.sleep(0)  # lets it ask
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})

    asyncio.run(run())
    assert handle.made[0].is_cancelled


def test_questions_go_to_all_replicas() -> None:
    health = Piece("b", b'{"status":"ok"}', 200, ((b"content-type", b"application/json"),))
    handle = Handle(told=[LOST, health])
    response = asyncio.run(ask(ingress(handle), "/health", "GET"))
    assert (response.status_code, response.body) == (200, b'{"status":"ok"}')
    assert len(handle.asked) == 1


def test_questions_to_no_replica() -> None:
    none = Handle(told=DeploymentUnavailableError("replicas"))
    assert asyncio.run(ask(ingress(none), "/health", "GET")).status_code == 503
    empty = ingress(none, replicas=0, most_replicas=1)
    assert asyncio.run(ask(empty, "/health", "GET")).status_code == 200


def test_a_question_to_a_silent_replica_fails() -> None:
    response = asyncio.run(ask(ingress(Handle(told=TimeoutError())), "/metrics", "GET"))
    assert response.status_code == 503
    assert json.loads(response.body)["error"]["code"] == "replica_lost"


def test_a_deployment_that_ends_is_named() -> None:
    ended = DeploymentUnavailableError("replicas")
    response = asyncio.run(ask(ingress(Handle([ended], [ended], [ended]))))
    error = json.loads(response.body)["error"]
    assert (response.status_code, error["code"]) == (503, "replica_lost")
    assert error["message"].startswith("the deployment ends")
