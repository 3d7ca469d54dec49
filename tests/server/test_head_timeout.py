"""Connections that do not bring a whole head of a request in time are closed; others stay."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from heddle.server.protocol import HeadTimeoutProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Running

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def server(serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> Running:
    monkeypatch.setattr(HeadTimeoutProtocol, "HEAD_SECONDS", 0.2)
    return serve()


def read_answer(client: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b'{"status":"ok"}'):
        piece = client.recv(4096)
        assert piece, "closed before the answer"
        answer += piece
    return answer


@pytest.mark.parametrize("begun", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
def test_one_that_brings_no_whole_head_is_closed(server: Running, begun: bytes) -> None:
    with socket.create_connection(server.address, timeout=20) as client:
        client.sendall(begun)
        assert client.recv(4096) == b""


def test_one_that_stops_within_its_second_request_is_closed(server: Running) -> None:
    with socket.create_connection(server.address, timeout=20) as client:
        client.sendall(HEALTH)
        assert read_answer(client).startswith(b"HTTP/1.1 200")
        client.sendall(HEALTH[:10])
        assert client.recv(4096) == b""


def test_a_long_answer_and_an_idle_connection_outlast_it(server: Running) -> None:
    server.executor.gate.clear()
    body = b'{"prompt": "hello", "max_tokens": 1, "seed": 1}'
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    with socket.create_connection(server.address, timeout=20) as client:
        client.sendall(head + body)
        with socket.create_connection(server.address, timeout=20) as idle:
            assert idle.recv(1) == b"", "by now the limit has passed for the first as well"
        server.executor.gate.set()
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        with socket.create_connection(server.address, timeout=20) as idle:
            assert idle.recv(1) == b""
        client.sendall(HEALTH)
        assert b"200" in read_answer(client)
