"""Connections whose clients stall, stop, send too much, or send no HTTP. On raw sockets."""

from __future__ import annotations

import json
import logging
import resource
import socket
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

from heddle.outputs import FinishReason
from heddle.server.http import protocol
from heddle.server.http.protocol import Lingering
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

KEY = "sk-1"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def request(fields: dict[str, Any], *, version: str = "1.1", extra: str = "") -> bytes:
    body = json.dumps({"prompt": "hello", "ignore_eos": True, "seed": 1} | fields)
    return (
        f"POST /v1/completions HTTP/{version}\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{extra}\r\n{body}"
    ).encode()


def head(*lines: bytes, method: bytes = b"POST") -> bytes:
    return b"%s /v1/completions HTTP/1.1\r\nHost: x\r\n%s\r\n" % (method, b"".join(lines))


def connect(server: Running) -> socket.socket:
    return socket.create_connection(server.address, timeout=PATIENCE)


def until_closed(client: socket.socket) -> bytes:
    """All that comes until the server ends its side."""
    answer = b""
    while part := client.recv(1 << 16):
        answer += part
    return answer


def connections(server: Running) -> int:
    return len(server.server.server_state.connections)


def parsed(answer: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of one answer."""
    top, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = top.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, json.loads(body)


# --- refused before the body has come ------------------------------------------------------------


@pytest.mark.parametrize("length", [CHUNKED, b"Content-Length: 1000\r\n"])
@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
def test_an_early_refusal_ends_the_connection(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, length: bytes, expect: bytes
) -> None:
    monkeypatch.setattr(Lingering, "SECONDS", 0.01)
    server = serve(api_key=(KEY,))
    with connect(server) as client:
        client.sendall(head(length, expect))
        status, headers, body = parsed(until_closed(client))
        assert (status, headers["connection"]) == (401, "close")
        assert body["error"]["code"] == "invalid_api_key"
        server.until(lambda: not connections(server))


def test_a_body_without_end_after_a_refusal_is_cut(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lingering, "BYTES", 1 << 20)
    monkeypatch.setattr(Lingering, "SECONDS", 86_400)
    server = serve(api_key=(KEY,))
    with connect(server) as client:
        client.sendall(head(CHUNKED))
        assert parsed(until_closed(client))[0] == 401
        with pytest.raises(OSError, match=r"Connection reset|Broken pipe"):
            for _ in range(1000):
                client.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
    server.until(lambda: not connections(server))


@pytest.mark.parametrize("status", [401, 404, 405, 413, 415])
def test_a_client_that_sends_its_whole_body_first_reads_the_refusal(
    serve: Callable[..., Running], status: int
) -> None:
    """Without a lingering close the answer is lost to a reset."""
    server = serve(api_key=(KEY,), max_body=1024)
    lines = [b"Content-Length: 3000000\r\n"]
    lines += [b"X-API-Key: sk-1\r\n"] if status != 401 else []
    declared = b"text/plain" if status == 415 else b"application/json"
    lines += [b"Content-Type: " + declared + b"\r\n"]
    top = head(*lines, method=b"PATCH" if status == 405 else b"POST")
    if status == 404:
        top = top.replace(b"/completions", b"/nothing")
    with connect(server) as client:
        client.sendall(top)
        client.sendall(b"x" * 3_000_000)
        assert parsed(until_closed(client))[0] == status


def test_an_announced_length_beyond_the_limit_is_refused_at_once(
    serve: Callable[..., Running],
) -> None:
    server = serve(max_body=1024)
    lines = b"Content-Type: application/json\r\nContent-Length: 1025\r\n"
    with connect(server) as client:
        client.sendall(head(lines))
        status, headers, body = parsed(until_closed(client))
    assert (status, headers["connection"]) == (413, "close")
    assert body["error"]["code"] == "body_too_large"


def test_a_refusal_after_the_whole_body_keeps_the_connection(
    serve: Callable[..., Running],
) -> None:
    server = serve(api_key=(KEY,))
    with connect(server) as client:
        for _ in range(2):
            client.sendall(request({}))
            answer = client.recv(1 << 16)
            while answer.endswith(b"\r\n\r\n"):
                answer += client.recv(1 << 16)  # head and body may come in two pieces
            assert answer.startswith(b"HTTP/1.1 401")
            assert b"connection: close" not in answer


# --- no HTTP -------------------------------------------------------------------------------------

NO_HTTP = [
    (b"\x16\x03\x01\x02\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # how TLS begins
    (b"hello\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\n\r\n", 400),  # no host
    (head(b"Content-Length: x\r\n"), 400),
    (head(b"Transfer-Encoding: gzip\r\n"), 501),
    (head(CHUNKED, b"Content-Type: application/json\r\n") + b"zz\r\n", 400),
    (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 100_000, 431),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 17_000 + b"\r\n\r\n", 431),
    (b"GET /health?" + b"a" * 17_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    (head(CHUNKED, b"Content-Length: 5\r\n") + b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n", 400),
    (head(CHUNKED, b"Content-Type: application/json\r\n") + b"0\r\n" + b"x: y\r\n" * 9999, 431),
]


@pytest.mark.parametrize(("sent", "status"), NO_HTTP)
def test_bytes_that_are_no_http_get_an_error_with_an_id(
    shared: Running, sent: bytes, status: int
) -> None:
    with connect(shared) as client:
        client.sendall(sent)
        answered, headers, body = parsed(until_closed(client))
    assert answered == status
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"] == headers["request-id"]
    assert headers["x-request-id"].startswith("req_")
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["code"] == "malformed_http"
    assert "the request is not valid HTTP/1.1: " in body["error"]["message"]
    shared.until(lambda: not shared.server.server_state.tasks)


def test_bytes_that_are_no_http_make_no_warning(
    shared: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """Anyone can send such bytes, as many as they like."""
    caplog.set_level(logging.WARNING)
    with connect(shared) as client:
        client.sendall(b"hello\r\n\r\n")
        assert until_closed(client).startswith(b"HTTP/1.1 400")
    assert caplog.text == ""


def test_a_head_that_the_client_ends_is_refused_in_words(shared: Running) -> None:
    with connect(shared) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        client.shutdown(socket.SHUT_WR)
        status, _, body = parsed(until_closed(client))
    assert status == 400
    assert "ended before the end of the head" in body["error"]["message"]


def test_bytes_after_the_last_request_do_not_spoil_its_answer(
    serve: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    server.executor.gate.clear()
    with connect(server) as client:
        client.sendall(request({"max_tokens": 3}, extra="connection: close\r\n"))
        assert server.executor.entered.wait(PATIENCE)
        client.sendall(b"\n" * 100_000)
        server.executor.gate.set()
        status, _, body = parsed(until_closed(client))
    assert (status, body["usage"]["completion_tokens"]) == (200, 3)
    assert "Traceback" not in caplog.text


# --- half-closed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_ends_its_side_gets_its_answer(
    serve: Callable[..., Running], version: str, stream: bool
) -> None:
    server = serve()
    server.executor.gate.clear()
    with connect(server) as client:
        client.sendall(request({"max_tokens": 5, "stream": stream}, version=version))
        client.shutdown(socket.SHUT_WR)
        assert server.executor.entered.wait(PATIENCE)
        [connection] = server.server.server_state.connections
        server.until(lambda: connection._ended)
        first = connection._probe_timer
        server.until(lambda: connection._probe_timer is not first)  # it is still there
        server.executor.gate.set()
        answer = until_closed(client)
    final = answer.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    assert final.startswith(b"HTTP/1.1 200")
    assert b'"finish_reason":"length"' in final
    assert final.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") or not (stream and version == "1.1")
    assert server.engine.snapshot().finished[FinishReason.CANCELLED] == 0
    server.until(lambda: not connections(server))


def test_requests_one_behind_the_other_are_answered_after_the_client_has_ended_its_side(
    shared: Running,
) -> None:
    with connect(shared) as client:
        client.sendall(request({"max_tokens": 2}) * 3 + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        answer = until_closed(client)
    assert answer.count(b'"completion_tokens":2') == 3
    assert answer.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize("rest", [b"", b'{"prompt"'])
def test_a_client_that_ends_its_side_within_its_body_is_closed(
    shared: Running, rest: bytes
) -> None:
    with connect(shared) as client:
        client.sendall(head(b"Content-Type: application/json\r\nContent-Length: 99\r\n") + rest)
        client.shutdown(socket.SHUT_WR)
        assert until_closed(client) == b""
    shared.until(lambda: not shared.server.server_state.tasks)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_each_event_of_a_stream_is_a_chunk_where_the_client_knows_chunks(
    serve: Callable[..., Running], version: str
) -> None:
    with connect(serve()) as client:
        extra = "connection: close\r\n"
        client.sendall(request({"max_tokens": 5, "stream": True}, version=version, extra=extra))
        top, _, body = until_closed(client).partition(b"\r\n\r\n")
    events = []
    while version == "1.1":
        size, _, body = body.partition(b"\r\n")
        events.append(body[: int(size, 16)])
        assert body[len(events[-1]) :].startswith(b"\r\n")
        body = body[len(events[-1]) + 2 :]
        if not events[-1]:
            assert not body
            break
    assert (b"chunked" in top) == bool(events)
    lines = (b"".join(events) or body).split(b"\n\n")
    assert {line[:6] for line in lines[:-1]} == {b"data: "}
    assert len(lines) > 6  # an event for each token
    assert lines[-2:] == [b"data: [DONE]", b""]


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_ends_its_side_and_goes_is_found_out(
    serve: Callable[..., Running], stream: bool
) -> None:
    server = serve(slots=1)
    server.executor.gate.clear()
    with connect(server) as client:
        client.sendall(request({"max_tokens": 400, "stream": stream}))
        client.shutdown(socket.SHUT_WR)
        assert server.executor.entered.wait(PATIENCE)
    server.until(lambda: not connections(server))
    server.executor.gate.set()
    server.until(server.idle)
    assert server.engine.snapshot().finished[FinishReason.CANCELLED] == 1


def test_head_and_options_leave_the_connection_usable(shared: Running) -> None:
    with connect(shared) as client:
        for method in (b"HEAD", b"OPTIONS", b"GET"):
            client.sendall(method + b" /health HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = client.recv(1 << 16)
            while method != b"HEAD" and answer.endswith(b"\r\n\r\n"):
                answer += client.recv(1 << 16)  # head and body may come in two pieces
            assert answer.startswith(b"HTTP/1.1 405" if method == b"OPTIONS" else b"HTTP/1.1 200")
            assert answer.endswith(b"\r\n\r\n") == (method == b"HEAD")


def test_many_who_send_no_http_and_go_leave_nothing(serve: Callable[..., Running]) -> None:
    server = serve(api_key=(KEY,))

    def attack() -> None:
        for sent in (b"nonsense\r\n\r\n", head(CHUNKED), head(b"Content-Length: 9\r\n")) * 10:
            with connect(server) as client, suppress(OSError):
                client.sendall(sent)

    threads = [threading.Thread(target=attack) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    server.until(lambda: not connections(server))
    server.until(lambda: not server.server.server_state.tasks)


# --- very many -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 32])
def test_a_body_in_very_many_small_chunks_is_refused(
    serve: Callable[..., Running], size: int
) -> None:
    """Each chunk holds up the event loop for 20 µs, and a read may bring 40,000."""
    with connect(serve()) as client:
        chunk = b"%x\r\n%s\r\n" % (size, b" " * size)
        lines = (b"Content-Type: application/json\r\n", CHUNKED)
        client.sendall(head(*lines) + chunk * 70_000)
        status, headers, body = parsed(until_closed(client))
    assert (status, headers["connection"]) == (400, "close")
    assert "send larger chunks" in body["error"]["message"]


@pytest.mark.parametrize(("size", "count"), [(1, 900), (64, 10_000)])
def test_a_body_may_come_in_many_chunks(
    serve: Callable[..., Running], size: int, count: int
) -> None:
    body = b'{"prompt":"hello","max_tokens":1}'
    with connect(serve()) as client:
        for _ in range(2):  # the count begins anew with each body
            chunk = b"%x\r\n%s\r\n" % (size, b" " * size)
            lines = (b"Content-Type: application/json\r\n", CHUNKED)
            last = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
            client.sendall(head(*lines) + chunk * count + last)
            answer = client.recv(1 << 16)
            while not answer.endswith(b"}"):
                answer += client.recv(1 << 16)
            assert parsed(answer)[0] == 200


def test_at_the_most_of_connections_the_longest_waiting_are_closed(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "most_connections", lambda: 6)
    server = serve()
    with ExitStack() as clients:
        stream = clients.enter_context(connect(server))
        stream.sendall(request({"stream": True, "max_tokens": 400}))
        assert stream.recv(12) == b"HTTP/1.1 200"
        idle = [clients.enter_context(connect(server)) for _ in range(20)]
        for client in idle[:14]:
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
        server.until(lambda: connections(server) <= 6)
        with connect(server) as late:
            late.sendall(request({"max_tokens": 1}))
            assert late.recv(12) == b"HTTP/1.1 200"
        assert b"[DONE]" in until_done(stream)


def until_done(client: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b"\r\n0\r\n\r\n"):
        part = client.recv(1 << 16)
        assert part, "cut"
        answer += part
    return answer


def test_the_most_of_connections_leaves_half_of_the_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = [1024]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit[0], limit[0]))
    assert protocol.most_connections() == 512
    limit[0] = 1 << 20
    assert protocol.most_connections() == 4096
    limit[0] = resource.RLIM_INFINITY
    assert protocol.most_connections() == 4096


def test_names_of_headers_are_spelled_as_other_servers_spell_them(shared: Running) -> None:
    """llama.cpp's tests compare them with their case."""
    with connect(shared) as client:
        client.sendall(request({"max_tokens": 1}, extra="connection: close\r\n"))
        answer = until_closed(client)
    assert b"\r\nContent-Type: application/json\r\n" in answer
    assert answer.lower().count(b"\r\nconnection: close\r\n") == 1
