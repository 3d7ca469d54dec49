"""How a server starts and stops."""

from __future__ import annotations

import gc
import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from alone import IS_CORE_ALONE
from heddle.config import ServerConfig
from heddle.errors import ConfigError
from heddle.server.http import process
from heddle.server.http.edge import is_stopping
from heddle.server.http.listener import bind, url
from heddle.server.http.protocol import HTTPProtocol
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

BODY = {"prompt": "hello", "max_tokens": 9, "ignore_eos": True, "stream": True}


def read(response: httpx.Response) -> list[str]:
    """The events of a stream, to its end."""
    return "".join(response.iter_text()).removesuffix("\n\n").split("\n\n")


def test_a_busy_port_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1 port {port} is in use") as refused:
            bind(ServerConfig(port=port))
        assert "\n" not in refused.value.message


def test_an_address_of_another_machine() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        bind(ServerConfig(host="192.0.2.1"))
    with pytest.raises(ConfigError, match=r"cannot listen on no-such-host\.invalid"):
        bind(ServerConfig(host="no-such-host.invalid"))


def test_nothing_listens_before_the_server_is_ready() -> None:
    config = ServerConfig(port=0)
    with bind(config) as listener, pytest.raises(httpx.ConnectError):
        httpx.get(url(listener, config), timeout=PATIENCE)


def test_an_ipv6_address_is_written_in_brackets() -> None:
    config = ServerConfig(host="::1", port=0)
    try:
        listener = bind(config)
    except ConfigError:
        return  # a machine without IPv6 has no such address to write
    with listener:
        assert url(listener, config).startswith("http://[::1]:")


def test_a_running_stream_may_finish(serve: Callable[..., Running]) -> None:
    server = serve(drain=60)
    server.executor.gate.clear()
    with httpx.stream(
        "POST", server.url + "/v1/completions", json=BODY, timeout=PATIENCE
    ) as response:
        server.until(server.executor.entered.is_set)
        server.server.handle_exit(signal.SIGTERM, None)
        server.until(lambda: server.get("/health/ready").status_code == 503)
        for path in ("/health", "/health/ready", "/ready"):
            answer = server.get(path)
            assert (answer.status_code, answer.json()) == (503, {"status": "stopping"})
        assert server.get("/health/live").status_code == 200
        refused = server.post("/v1/completions", BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_closed")
        assert refused.headers["retry-after"] == "5"
        server.executor.gate.set()
        events = read(response)
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    server.thread.join(PATIENCE)
    assert not server.thread.is_alive()


@pytest.fixture
def long_end_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams have their last event out in time, however slow the machine is."""
    monkeypatch.setattr(process, "_END_SECONDS", PATIENCE)


@pytest.mark.usefixtures("long_end_of_answers")
def test_a_stream_that_takes_too_long_is_told(serve: Callable[..., Running]) -> None:
    server = serve(drain=0)
    server.executor.gate.clear()
    with httpx.stream(
        "POST", server.url + "/v1/completions", json=BODY, timeout=PATIENCE
    ) as response:
        server.until(server.executor.entered.is_set)
        server.server.handle_exit(signal.SIGINT, None)
        server.until(lambda: server.engine.closed)
        server.executor.gate.set()
        *_, error, done = read(response)
    assert done == "data: [DONE]"
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_closed"
    server.thread.join(PATIENCE)
    assert not server.thread.is_alive()


@pytest.mark.usefixtures("long_end_of_answers")
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_waits_for_no_one(
    serve: Callable[..., Running], second: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(drain=86_400)
    server.executor.gate.clear()
    with httpx.stream(
        "POST", server.url + "/v1/completions", json=BODY, timeout=PATIENCE
    ) as response:
        server.until(server.executor.entered.is_set)
        server.server.handle_exit(signal.SIGINT, None)
        server.until(lambda: is_stopping(server.server.config.app))
        assert not server.engine.closed
        server.server.handle_exit(second, None)
        server.until(lambda: server.engine.closed)
        server.executor.gate.set()
        server.thread.join(PATIENCE)
        assert not server.thread.is_alive()
        assert read(response)[-1] == "data: [DONE]"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


ASKED = {"messages": [{"role": "user", "content": "hello"}]}
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello"},
    "/v1/chat/completions": ASKED,
    "/v1/responses": {"input": "hello"},
}
"""Bodies of requests for text, by their paths."""
if not IS_CORE_ALONE:
    STREAMS["/v1/messages"] = {"model": "fake", "max_tokens": 9} | ASKED


def says_why(path: str, error: Any) -> bool:
    """Whether an error, in the shape of the path's vendor, says that the server stops."""
    if path == "/v1/messages":
        return bool(error["type"] == "error" and error["error"]["type"] == "overloaded_error")
    return bool(error["error"]["code"] == "engine_closed")


class Stop:
    """A server that gets a stop signal during a step that never ends."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._pool = ThreadPoolExecutor(2 * len(STREAMS))
        server.executor.gate.clear()
        self._answers = [
            (path, stream, self._pool.submit(server.post, path, body | {"stream": stream}))
            for path, body in STREAMS.items()
            for stream in (True, False)
        ]
        server.until(lambda: self._accepted == len(self._answers))
        server.server.handle_exit(signal.SIGTERM, None)

    @property
    def _accepted(self) -> int:
        now = self._server.engine.snapshot()
        return now.running + now.queue_depth

    def check(self) -> None:
        """Every client gets an error in the shape of its API."""
        for path, stream, answer in self._answers:
            response = answer.result(PATIENCE)
            assert response.headers["x-request-id"]
            if not stream:
                assert response.status_code == 503
                assert says_why(path, response.json())
                continue
            assert response.status_code == 200
            lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
            assert says_why(path, json.loads(lines[-1].removeprefix("data: ")))
        self._pool.shutdown()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.usefixtures("long_end_of_answers")
def test_a_step_that_lasts_is_abandoned(
    serve: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(drain=0, slots=4)
    Stop(server).check()
    server.thread.join(PATIENCE)
    assert not server.thread.is_alive()
    assert server.executor.steps == 0
    assert not errors(caplog)


def test_clients_are_told_although_the_engine_does_not_end(
    serve: Callable[..., Running],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As on a machine that swaps: what the engine does not end in time, the server cancels."""
    monkeypatch.setattr(process, "_END_SECONDS", 0.5)
    server = serve(drain=0, slots=4)
    monkeypatch.setattr(server.executor, "abandon", lambda: None)
    Stop(server).check()
    server.executor.gate.set()
    server.thread.join(PATIENCE)
    assert not server.thread.is_alive()
    assert not errors(caplog)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/completions", b'"code":"engine_closed"'),
        ("/v1/messages", b'"type":"overloaded_error"'),
    ],
)
def test_a_body_on_its_way_is_refused_by_a_server_that_stops(
    serve: Callable[..., Running],
    path: str,
    said: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(process, "_END_SECONDS", 0.5)
    server = serve(drain=0)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode()
    with socket.create_connection(server.address) as client:
        client.settimeout(PATIENCE)
        client.sendall(head + b"content-length: 100\r\n\r\n{")
        server.until(lambda: bool(server.server.server_state.tasks))
        server.server.handle_exit(signal.SIGTERM, None)
        answer = b""
        while part := client.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"x-request-id: " in answer.lower()
    assert said in answer
    server.thread.join(PATIENCE)
    assert not server.thread.is_alive()
    assert not errors(caplog)


def test_a_client_that_reads_nothing_does_not_hold_up_a_stop(
    serve: Callable[..., Running],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(process, "_END_SECONDS", 0.5)
    server = serve(drain=0)
    more = {"max_tokens": 480, "logprobs": 20, "speculation": "off"}  # a step for each token
    body = json.dumps(BODY | more)
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(server.address)
        client.sendall((head + body).encode())
        server.until(lambda: server.executor.steps >= 480 and server.idle())
        server.server.handle_exit(signal.SIGTERM, None)
        server.thread.join(PATIENCE)
        assert not server.thread.is_alive()
    assert not [record for record in caplog.records if record.exc_info]


def test_a_connection_that_comes_during_the_stop_is_closed(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn tells each open connection to end. One that it accepts just then is not told."""
    monkeypatch.setattr(HTTPProtocol, "shutdown", lambda _: None)
    server = serve(drain=0)
    with socket.create_connection(server.address) as client:
        server.until(lambda: bool(server.server.server_state.connections))
        server.server.handle_exit(signal.SIGTERM, None)
        server.thread.join(PATIENCE)
        client.settimeout(PATIENCE)
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
    gc.collect()  # a transport that was not closed warns here
