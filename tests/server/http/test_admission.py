"""Admission: requests that the server cannot take now get a typed error before any header."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette

from heddle.config import ServerConfig
from heddle.engine.requests import admission
from heddle.errors import ConfigError, OverloadedError
from heddle.server.http.errors import error_response
from heddle.server.http.process import forms_of
from heddle.server.http.record import RequestRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

MESSAGES = [{"role": "user", "content": "hi"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 16},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3, "model": "fake"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", REQUESTS)
def test_little_memory_is_a_503_with_figures(
    shared: Running, monkeypatch: pytest.MonkeyPatch, path: str, stream: bool
) -> None:
    monkeypatch.setattr(admission, "memory_limits", lambda: {"the available memory": 3 * 10**8})
    monkeypatch.setattr(admission.FreeMemory, "SECONDS", 0.0)
    body = {**REQUESTS[path], "model": shared.engine.model.info.id, "stream": stream}
    refused = shared.post(path, body)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert "memory is 0.30 GB; min_free_memory keeps 0.54 GB free" in refused.text
    assert refused.headers["content-type"].startswith("application/json")
    monkeypatch.undo()
    monkeypatch.setattr(admission.FreeMemory, "SECONDS", 0.0)
    assert shared.post(path, body).status_code == 200


@pytest.mark.parametrize("path", REQUESTS)
def test_a_full_queue_is_a_429_before_the_stream(serve: Callable[..., Running], path: str) -> None:
    running = serve(slots=1, queue=0)
    running.executor.gate.clear()
    body = {**REQUESTS[path], "model": running.engine.model.info.id, "stream": True}
    with httpx.stream("POST", running.url + path, json=body, timeout=60) as first:
        assert first.status_code == 200
        refused = running.post(path, body)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert "1 request running or waiting" in refused.text
        running.executor.gate.set()
        first.read()


@pytest.mark.parametrize("stream", [False, True])
def test_a_queue_timeout_is_a_503_even_of_a_stream(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    running = serve(slots=1, queue_timeout=30)
    running.executor.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        body = {"prompt": "hi", "max_tokens": 3, "stream": stream}
        first = pool.submit(running.post, "/v1/completions", body)
        assert running.executor.entered.wait(60)
        late = pool.submit(running.post, "/v1/completions", body)
        running.until(lambda: running.engine.snapshot().queue_depth == 1)
        ahead = time.perf_counter() + 31.0
        monkeypatch.setattr(time, "perf_counter", lambda: ahead)
        running.executor.gate.set()
        assert first.result().status_code == 200
        refused = late.result()
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "queue_timeout"
    assert int(refused.headers["retry-after"]) >= 1


def test_clients_are_told_by_key_else_by_address(serve: Callable[..., Running]) -> None:
    body = {"prompt": "hi", "max_tokens": 3, "ignore_eos": True}
    running = serve(api_key=("a", "b"), client_tokens=4)
    for key in "ab":
        headers = {"x-api-key": key}
        assert running.post("/v1/completions", body, headers=headers).status_code == 200
        refused = running.post("/v1/completions", body, headers=headers)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 0 < int(refused.headers["retry-after"]) <= 60
    embedded = running.post("/v1/embeddings", {"input": "hi"}, headers={"x-api-key": "a"})
    assert embedded.status_code == 429
    running = serve(client_tokens=4)
    assert running.post("/v1/completions", body).status_code == 200
    assert running.post("/v1/completions", body).status_code == 429


@pytest.mark.parametrize(
    ("trusted", "is_believed"),
    [
        ((), False),
        (("192.0.2.1", "::1"), False),
        (("127.0.0.2",), False),
        (("127.0.0.1",), True),
        (("192.0.2.0/24", "127.0.0.0/8"), True),
    ],
)
def test_only_a_trusted_proxy_names_its_clients(
    serve: Callable[..., Running],
    monkeypatch: pytest.MonkeyPatch,
    trusted: tuple[str, ...],
    is_believed: bool,
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # uvicorn's own variable does not count
    running = serve(client_tokens=4, trusted_proxy=trusted)

    def ask(forwarded: str) -> int:
        body = {"prompt": "hi", "max_tokens": 3, "ignore_eos": True}
        headers = {"x-forwarded-for": forwarded}
        return running.post("/v1/completions", body, headers=headers).status_code

    assert ask("198.51.100.1") == 200
    assert ask("198.51.100.1") == 429
    assert ask("198.51.100.2") == (200 if is_believed else 429)
    # The proxy appends the address that it has seen. What stands before it is the client's text.
    assert ask("198.51.100.3, 198.51.100.1") == 429


def test_a_proxy_is_trusted_on_sockets_of_both_families() -> None:
    assert forms_of(["192.0.2.7", "10.0.0.0/8", "fd00::/8"]) == [
        *("192.0.2.7/32", "10.0.0.0/8", "fd00::/8"),
        *("::ffff:192.0.2.7/128", "::ffff:10.0.0.0/104"),
    ]


@pytest.mark.parametrize("text", ["", "*", "proxy.example", "10.0.0.1/8", "10.0.0.0/33", "10.0.0"])
def test_a_trusted_proxy_is_an_address_or_a_network(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"trusted_proxy must be .*got {re.escape(repr(text))}"):
        ServerConfig(trusted_proxy=("127.0.0.1", text))


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("unknown", "unknown", True),
    ],
)
def test_a_host_is_one_client(one: str, other: str, is_same: bool) -> None:
    clients = [RequestRecord(address=address).client for address in (one, other)]
    assert (clients[0] == clients[1]) == is_same


def test_many_texts_of_a_client_go_in_turns(serve: Callable[..., Running]) -> None:
    running = serve(client_requests=2)
    answer = running.post("/v1/embeddings", {"input": ["a", "b", "c", "d", "e"]})
    assert len(answer.json()["data"]) == 5


@pytest.mark.parametrize("path", [*REQUESTS, "/v1/embeddings"])
def test_clients_may_only_put_themselves_last(shared: Running, path: str) -> None:
    body = {**REQUESTS.get(path, {"input": "hi"}), "model": shared.engine.model.info.id}
    refused = shared.post(path, {**body, "priority": -1})
    assert refused.status_code == 400
    assert "priority must be at least 0 (min_priority), got -1" in refused.text
    assert shared.post(path, {**body, "priority": 3}).status_code == 200


def test_a_server_may_let_them_go_first(serve: Callable[..., Running]) -> None:
    running = serve(min_priority=-5)
    assert running.post("/v1/completions", {"prompt": "hi", "priority": -5}).status_code == 200


def test_a_lower_number_runs_first(serve: Callable[..., Running]) -> None:
    running = serve(slots=1)
    running.executor.gate.clear()
    ended: list[int] = []

    def ask(priority: int, most: int) -> None:
        body = {"prompt": "hi", "max_tokens": most, "ignore_eos": True, "priority": priority}
        assert running.post("/v1/completions", body).status_code == 200
        ended.append(priority)

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(ask, 2, 300)
        assert running.executor.entered.wait(60)
        others = [pool.submit(ask, 1, 300), pool.submit(ask, 0, 3)]
        running.until(lambda: running.engine.snapshot().queue_depth == 2)
        running.executor.gate.set()
        for other in (first, *others):
            other.result()
    assert ended == [0, 1, 2]
    assert running.engine.snapshot().preemptions == 1


@pytest.mark.parametrize(("seconds", "told"), [(0.2, "1"), (4.2, "5"), (5.0, "5")])
def test_retry_after_is_never_too_early(seconds: float, told: str) -> None:
    response = error_response(
        OverloadedError("the queue is full", retry_after=seconds), {"app": Starlette()}
    )
    assert response.headers["retry-after"] == told


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_is_a_504_even_of_a_stream_that_waits(
    serve: Callable[..., Running], stream: bool
) -> None:
    running = serve(slots=1)
    running.executor.gate.clear()
    body = {"prompt": "hi", "max_tokens": 3, "stream": stream, "deadline": 0.02}
    late = running.post("/v1/completions", body)
    running.executor.gate.set()
    assert late.status_code == 504
    assert late.json()["error"]["code"] == "deadline_exceeded"
