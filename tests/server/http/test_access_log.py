"""The lines that each request leaves in the log."""

from __future__ import annotations

import json
import logging
import socket
from typing import TYPE_CHECKING

import pytest

from heddle.server.http.access_log import ENDS, STARTS
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_server import Running

BODY = {"prompt": "hello", "max_tokens": 4, "ignore_eos": True}


class Lines:
    """The records of one request."""

    def __init__(self, caplog: pytest.LogCaptureFixture, request_id: str) -> None:
        fields = [getattr(record, "fields", {}) for record in caplog.records]
        own = [
            (record, one)
            for record, one in zip(caplog.records, fields, strict=True)
            if one.get("request_id") == request_id
        ]
        self.starts = [one for record, one in own if record.name == STARTS]
        self.ends = [one for record, one in own if record.name == ENDS]
        self.texts = [record.getMessage() for record, _ in own]
        self.levels = [record.levelname for record, _ in own]


@pytest.fixture
def logged(shared: Running, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], Lines]]:
    """Gives the lines of a request, after it has ended."""
    with caplog.at_level(logging.DEBUG, "heddle"):

        def lines(request_id: str) -> Lines:
            shared.until(lambda: bool(Lines(caplog, request_id).ends))
            return Lines(caplog, request_id)

        yield lines


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer(shared: Running, logged: Callable[[str], Lines], stream: bool) -> None:
    name = f"one-{stream}"
    body = BODY | {"n": 2, "stream": stream, "prompt": ["hello", "you"]}
    shared.post("/v1/completions", body, headers={"x-request-id": name})
    lines = logged(name)
    start = {"event": "request_start", "method": "POST", "path": "/v1/completions"}
    assert lines.starts == [start | {"request_id": name, "client": "127.0.0.1"}]
    [end] = lines.ends
    times = {phase: end.pop(phase) for phase in ("queue", "prefill", "decode", "seconds")}
    assert all(seconds > 0 for seconds in times.values())
    assert max(times.values()) == times["seconds"]
    assert end.pop("cached_tokens") >= 0
    assert end == {
        **(start | {"event": "request_end", "request_id": name, "client": "127.0.0.1"}),
        "status": 200,
        "model": "fake",
        "stream": stream,
        "finish_reason": "length",
        "choices": 4,
        "prompt_tokens": 8,
        "completion_tokens": 16,
    }
    assert lines.texts[0] == f"{name} POST /v1/completions from 127.0.0.1"
    assert lines.texts[1].startswith(f"{name} POST /v1/completions: 200, fake, length, 8 prompt")
    assert lines.levels == ["INFO", "INFO"]


def test_a_refusal(shared: Running, logged: Callable[[str], Lines]) -> None:
    body = BODY | {"temperature": -1}
    answer = shared.post("/v1/completions", body)
    [end] = logged(answer.headers["x-request-id"]).ends
    assert (end["status"], end["error_code"]) == (400, "invalid_value")
    assert end["error"] == answer.json()["error"]["message"]
    assert "queue" not in end and "key" not in end


def test_a_path_that_does_not_exist(shared: Running, logged: Callable[[str], Lines]) -> None:
    answer = shared.get("/nothing%0Aforged")
    lines = logged(answer.headers["x-request-id"])
    assert lines.ends[0]["status"] == 404
    assert r"GET /nothing\nforged: 404" in lines.texts[-1]
    assert lines.levels == ["DEBUG", "INFO"]


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics", "/slots"])
def test_scrapes_log_at_level_debug(
    shared: Running, logged: Callable[[str], Lines], path: str
) -> None:
    answer = shared.get(path)
    assert logged(answer.headers["x-request-id"]).levels == ["DEBUG", "DEBUG"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_choice_that_fails(
    serve: Callable[..., Running], caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    """The engine's line about the request has its id, too."""
    server = serve()
    server.executor.poisonous = lambda history: len(history) == 7
    with caplog.at_level(logging.INFO, "heddle"):
        body = BODY | {"stream": stream}
        server.post("/v1/completions", body, headers={"x-request-id": "bad-1"})
        server.until(lambda: bool(Lines(caplog, "bad-1").ends))
    [end] = Lines(caplog, "bad-1").ends
    assert (end["status"], end["finish_reason"]) == (200 if stream else 500, "error")
    assert (end["prompt_tokens"], end["completion_tokens"]) == (5, 2)
    assert "NaN" in end["error"]
    assert "request 0 (bad-1) failed: the logits are NaN" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves(
    serve: Callable[..., Running], caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    server = serve()
    server.executor.before_step = lambda step: server.executor.gate.clear() if step == 2 else None
    body = json.dumps(BODY | {"max_tokens": 50, "stream": stream}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
    head += f"x-request-id: gone\r\ncontent-length: {len(body)}\r\n\r\n"
    with caplog.at_level(logging.INFO, "heddle"):
        with socket.create_connection(server.address, timeout=PATIENCE) as client:
            client.sendall(head.encode() + body)
            server.until(lambda: server.executor.steps >= 3 and not server.executor.gate.is_set())
        server.until(lambda: bool(Lines(caplog, "gone").ends))
        server.executor.gate.set()
    [end] = Lines(caplog, "gone").ends
    assert (end["error_code"], end["finish_reason"]) == ("client_gone", "cancelled")
    assert end["status"] == (200 if stream else 499)
    assert 2 <= end["completion_tokens"] < 50
    assert end["prefill"] > 0


def test_bytes_that_are_not_http(shared: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, ENDS)
    with socket.create_connection(shared.address, timeout=PATIENCE) as client:
        client.sendall(b"not HTTP\r\n\r\n")
        lines = client.makefile("rb").read().decode().split("\r\n")
    [name] = [line[14:] for line in lines if line.startswith("x-request-id: ")]
    shared.until(lambda: bool(Lines(caplog, name).ends))
    [end] = Lines(caplog, name).ends
    assert (end["status"], end["error_code"]) == (400, "malformed_http")


def test_embeddings(shared: Running, logged: Callable[[str], Lines]) -> None:
    answer = shared.post("/v1/embeddings", {"input": ["hello", "you"]})
    [end] = logged(answer.headers["x-request-id"]).ends
    assert (end["status"], end["model"], end["choices"]) == (200, "fake", 2)
    assert (end["prompt_tokens"], end["completion_tokens"]) == (8, 0)


def test_names_of_keys(serve: Callable[..., Running], caplog: pytest.LogCaptureFixture) -> None:
    server = serve(api_key=("alice: sk-secret",))
    with caplog.at_level(logging.INFO, "heddle"):
        for key, name in (("sk-secret", "with"), ("sk-wrong", "without")):
            headers = {"x-api-key": key, "x-request-id": name}
            server.post("/v1/completions", BODY, headers=headers)
        for name in ("with", "without"):
            server.until(lambda name=name: bool(Lines(caplog, name).ends))  # type: ignore[misc]
    [end] = Lines(caplog, "with").ends
    assert (end["key"], end["status"]) == ("alice", 200)
    [end] = Lines(caplog, "without").ends
    assert ("key" in end, end["status"], end["error_code"]) == (False, 401, "invalid_api_key")
    assert "sk-secret" not in caplog.text
