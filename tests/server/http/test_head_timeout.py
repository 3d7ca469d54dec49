"""Connections that do not bring a whole head of a request in time are closed; others stay."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from heddle.server.http.protocol import HTTPProtocol
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def server(serve: Callable[..., Running]) -> Running:
    return serve()


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that begin from now on have no time."""
    monkeypatch.setattr(HTTPProtocol, "HEAD_SECONDS", 0.01)


def read_answer(client: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b'{"status":"ok"}'):
        piece = client.recv(4096)
        assert piece, "closed before the answer"
        answer += piece
    return answer


@pytest.mark.parametrize("begun", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
def test_one_that_brings_no_whole_head_is_closed(
    server: Running, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    shorten(monkeypatch)
    with socket.create_connection(server.address, timeout=PATIENCE) as client:
        client.sendall(begun)
        with suppress(ConnectionResetError):  # closed before what was sent had come
            assert client.recv(4096) == b""


def test_one_that_stops_within_its_second_request_is_closed(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_connection(server.address, timeout=PATIENCE) as client:
        client.sendall(HEALTH)
        assert read_answer(client).startswith(b"HTTP/1.1 200")
        shorten(monkeypatch)
        client.sendall(HEALTH[:10])
        assert client.recv(4096) == b""


def test_it_does_not_count_while_an_answer_is_made_or_nothing_has_begun(server: Running) -> None:
    server.executor.gate.clear()
    body = b'{"prompt": "hello", "max_tokens": 1, "seed": 1}'
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    with socket.create_connection(server.address, timeout=PATIENCE) as client:
        client.sendall(head[:-2])
        server.until(lambda: bool(server.server.server_state.connections))
        [connection] = server.server.server_state.connections
        assert isinstance(connection, HTTPProtocol)
        assert connection._head_timer is not None
        client.sendall(head[-2:] + body)
        assert server.executor.entered.wait(PATIENCE)
        assert connection._head_timer is None
        server.executor.gate.set()
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        server.until(lambda: not server.server.server_state.tasks)
        assert connection._head_timer is None
        client.sendall(HEALTH)
        assert b"200" in read_answer(client)
