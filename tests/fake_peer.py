"""A server on a real socket that answers completions as a test asks: well, badly, or not at all."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from heddle.extensions.bench import side_by_side
from heddle.extensions.bench.exchange import Recorder
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


class Pace:
    """Keeps streams in step with each other and with the client's reading.

    Without it, a whole answer may reach the client in one piece, with no time between its tokens.
    """

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._begin = threading.Barrier(streams, action=self._reset)
        self._step = threading.Barrier(streams, action=self._advance)
        self._progress = threading.Condition()
        self._reset()

    def begin(self) -> None:
        """A stream is about to be sent: wait for the others."""
        self._begin.wait(PATIENCE)

    def sent(self) -> None:
        """A token was sent: wait until each stream has sent one and the client has read them."""
        self._step.wait(PATIENCE)
        with self._progress:
            self._progress.wait_for(lambda: self._read >= self._expected, timeout=1)

    def read(self) -> None:
        """The client has read a piece."""
        with self._progress:
            self._read += 1
            self._progress.notify_all()

    def _reset(self) -> None:
        self._expected = self._read = 0

    def _advance(self) -> None:
        self._expected += self._streams


def paced_client(monkeypatch: pytest.MonkeyPatch, streams: int) -> Pace:
    """A pace for peers whose loads all have `streams` streams. It follows the client's reading."""
    pace, receive = Pace(streams), Recorder.data_received

    def data_received(recorder: Recorder, data: bytes) -> None:
        receive(recorder, data)
        pace.read()

    monkeypatch.setattr(Recorder, "data_received", data_received)
    monkeypatch.setattr(side_by_side, "_SETTLE_SECONDS", 0)  # there is nothing to settle
    return pace


@dataclass
class FakePeer:
    """The behaviour of a peer, and the requests that it got.

    Attributes:
        manner: how it answers; see `_Handler`.
        pace: the pace of its streams; None sends them at once.
        remembers: report as cached tokens how many tokens a prompt shares with an earlier one.
        models: the ids that it lists.
        key: that every request must bring; None asks for none.
        refused_fields: fields of a body that it refuses with `refused_status`.
        bodies: of all completion requests, in the order of their arrival.
    """

    manner: str = "well"
    pace: Pace | None = None
    remembers: bool = False
    models: list[str] = field(default_factory=lambda: ["some-model"])
    key: str | None = None
    refused_fields: set[str] = field(default_factory=set)
    refused_status: int = 400
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


def _common(one: list[int], other: list[int]) -> int:
    """The number of equal leading tokens."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _prompt(body: dict[str, Any]) -> Any:
    return body["messages"][-1]["content"] if "messages" in body else body["prompt"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    peer: FakePeer

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _admitted(self) -> bool:
        return self.peer.key is None or self.headers["Authorization"] == f"Bearer {self.peer.key}"

    def do_GET(self) -> None:
        if not self._admitted():
            self.send_error(401)
            return
        if self.peer.manner == "without models" or self.path != "/v1/models":
            self.send_error(404)
            return
        if self.peer.manner == "odd models":
            self._send(200, b"[]")
            return
        self._send(200, json.dumps({"data": [{"id": name} for name in self.peer.models]}).encode())

    def do_POST(self) -> None:
        try:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            _prompt(body)
        except (ValueError, TypeError, RecursionError):
            self._send(500, b'{"error": "a fault in the parser"}')
            return
        if not self._admitted():
            self._send(401, b'{"error": "who are you?"}')
            return
        if unknown := body.keys() & self.peer.refused_fields:
            told = json.dumps({"error": f"unknown fields: {sorted(unknown)}"})
            self._send(self.peer.refused_status, told.encode())
            return
        with self.peer.lock:  # or two at once would not know of each other
            earlier = [_prompt(other) for other in self.peer.bodies]
            self.peer.bodies.append(body)
        match self.peer.manner:
            case "refusing":
                self._send(500, b'{"error": "out of luck"}')
            case "refusing sometimes" if len(earlier) % 3 == 2:
                self._send(500, b'{"error": "out of luck"}')
            case "full" if earlier:
                self._send(503, b'{"error": "come back later"}')
            case "closing":
                self.close_connection = True
            case "speaking in tongues":
                self.wfile.write(b"220 mail.example.org ESMTP\r\n\r\n")
                self.close_connection = True
            case _:
                prompt = _prompt(body)
                usage: dict[str, Any] = {"prompt_tokens": len(prompt)}
                if self.peer.remembers:
                    found = max((_common(prompt, one) for one in earlier), default=0)
                    usage["prompt_tokens_details"] = {"cached_tokens": found}
                words = self._words(prompt, earlier)
                self._stream(body["max_tokens"], usage, words, chat="messages" in body)

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _words(self, prompt: Any, earlier: list[Any]) -> list[str]:
        """The words of the answer. It repeats its prompt, or, when `leaking`, the prompt before."""
        if self.peer.manner == "leaking" and earlier:
            return earlier[-1].split()
        return (
            ["word"] if self.peer.manner == "well" or isinstance(prompt, list) else prompt.split()
        )

    def _stream(self, tokens: int, usage: dict[str, Any], words: list[str], *, chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        manner, pace = self.peer.manner, self.peer.pace
        if pace is not None:
            pace.begin()
        for index in range(tokens):
            if manner == "ending early" and index == tokens // 2:
                self.close_connection = True
                return
            if manner == "failing midway" and index == tokens // 2:
                self._event(json.dumps({"error": {"message": "the model is on fire"}}))
            last = index == tokens - 1
            text = "" if manner == "silent" else words[index % len(words)] + " "
            said = {"delta": {"content": text}} if chat else {"text": text}
            choice = {"index": 0, "finish_reason": "length" if last else None, **said}
            self._event(json.dumps({"choices": [choice]}))
            if pace is not None:
                pace.sent()
        if manner == "babbling":
            self._event("{not json")
        usage["completion_tokens"] = tokens - 1 if manner == "short" else tokens
        if manner != "without usage":
            self._event(json.dumps({"choices": [], "usage": usage}))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: str) -> None:
        chunk = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 64  # a burst that does not fit would be asked to come again in a second
    block_on_close = True


@contextmanager
def fake_peer(
    manner: str = "well", pace: Pace | None = None, *, remembers: bool = False
) -> Iterator[FakePeer]:
    """A peer that runs until the end of the block."""
    peer = FakePeer(manner, pace, remembers)
    handler = type("Handler", (_Handler,), {"peer": peer})
    with _Server(("127.0.0.1", 0), handler) as server:
        peer.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield peer
        finally:
            server.shutdown()
            thread.join()
