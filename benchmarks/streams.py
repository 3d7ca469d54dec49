"""Streamed completions sent together, and what their timing says.

The client must not compete with the server for the cores both run on: while a run lasts it only
notes when bytes arrive, and everything is decoded afterwards.

Formulas, over the streams i of a run, with n_i generated tokens:

- TTFT_i: first non-empty text - request sent.
- TPOT_i: (last text - first text) / (n_i - 1).
- ITL: gaps between consecutive texts of a stream, pooled.
- decode: sum of (n_i - 1) / (last text of any - first text of any), tokens per second.
- steady: texts of all streams per second while all of them run, from the last one's first text to
  the first one's last; decode includes prompts still being computed after the first text of any.
- request: sum of n_i / (last text of any - requests sent), tokens per second.
- prompt: sum of prompt tokens / (first text of the last stream - requests sent), tokens per second.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import h11

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servers import Server

_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Stream:
    """One finished completion. Times are seconds on one clock.

    Attributes:
        sent: when the request was sent.
        texts: when each non-empty piece of text arrived; the finishing event if there was none.
        prompt_tokens, tokens: the server's own count.
    """

    sent: float
    texts: tuple[float, ...]
    prompt_tokens: int
    tokens: int


def complete(server: Server, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Stream]:
    """Send one greedy completion request per prompt (token ids) at once; wait for all.

    Raises:
        SystemExit: a server refused a request or generated another number of tokens.
    """
    return asyncio.run(_complete(server, prompts, max_tokens))


def decode_metrics(streams: Sequence[Stream]) -> dict[str, float]:
    """Tokens per second and milliseconds, by the formulas above."""
    first = min(stream.texts[0] for stream in streams)
    last = max(stream.texts[-1] for stream in streams)
    begin, end = max(s.texts[0] for s in streams), min(s.texts[-1] for s in streams)
    together = sum(begin < text <= end for stream in streams for text in stream.texts)
    sent = min(stream.sent for stream in streams)
    gaps = [b - a for stream in streams for a, b in pairwise(stream.texts)]
    itl = statistics.quantiles(gaps, n=100)
    ttft = statistics.median(stream.texts[0] - stream.sent for stream in streams)
    tpot = statistics.median(
        (stream.texts[-1] - stream.texts[0]) / (stream.tokens - 1) for stream in streams
    )
    return {
        "decode_tok_s": sum(stream.tokens - 1 for stream in streams) / (last - first),
        "steady_tok_s": together / (end - begin) if end > begin else float("nan"),
        "request_tok_s": sum(stream.tokens for stream in streams) / (last - sent),
        "ttft_ms": 1e3 * ttft,
        "tpot_ms": 1e3 * tpot,
        "itl_p50_ms": 1e3 * itl[49],
        "itl_p99_ms": 1e3 * itl[98],
        "itl_max_ms": 1e3 * max(gaps),
    }


def prompt_metrics(streams: Sequence[Stream]) -> dict[str, float]:
    """Prompt tokens per second, by the formula above."""
    seconds = max(stream.texts[0] for stream in streams) - min(stream.sent for stream in streams)
    return {"prompt_tok_s": sum(stream.prompt_tokens for stream in streams) / seconds}


class _Recorder(asyncio.Protocol):
    """Keeps what arrives and when, until the server closes the connection."""

    def __init__(self) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self.closed = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def _complete(
    server: Server, prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[Stream]:
    loop = asyncio.get_running_loop()
    clients = [h11.Connection(h11.CLIENT) for _ in prompts]
    requests = [_request(c, server, p, max_tokens) for c, p in zip(clients, prompts, strict=True)]
    connections = [
        await loop.create_connection(_Recorder, "127.0.0.1", server.port) for _ in prompts
    ]
    sent = time.perf_counter()
    for (transport, _), request in zip(connections, requests, strict=True):
        transport.write(request)
    recorders = [recorder for _, recorder in connections]
    try:
        await asyncio.wait_for(asyncio.gather(*(r.closed for r in recorders)), _TIMEOUT)
    except TimeoutError:
        raise SystemExit(f"{server.name} did not answer in {_TIMEOUT:.0f} s") from None
    finally:
        for transport, _ in connections:
            transport.abort()
    streams = [
        _stream(server, sent, client, recorder.pieces)
        for client, recorder in zip(clients, recorders, strict=True)
    ]
    if wrong := [stream.tokens for stream in streams if stream.tokens != max_tokens]:
        raise SystemExit(
            f"{server.name} generated {wrong} tokens where {max_tokens} were asked for"
        )
    return streams


def _request(
    client: h11.Connection, server: Server, prompt: Sequence[int], max_tokens: int
) -> bytes:
    body = {
        "model": server.model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **server.extras,
    }
    data = json.dumps(body).encode()
    headers = [
        ("Host", f"127.0.0.1:{server.port}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(data))),
        ("Connection", "close"),
    ]
    head = client.send(h11.Request(method="POST", target="/v1/completions", headers=headers))
    return b"".join(
        part or b"" for part in (head, client.send(h11.Data(data)), client.send(h11.EndOfMessage()))
    )


def _stream(
    server: Server, sent: float, client: h11.Connection, pieces: Sequence[tuple[float, bytes]]
) -> Stream:
    texts, finish, usage = [], sent, None
    for moment, event in _events(server, client, pieces):
        if "error" in event:
            raise SystemExit(f"{server.name} failed: {event['error']}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if choice["text"]:
                texts.append(moment)
            if choice["finish_reason"]:
                finish = moment
    if usage is None:
        raise SystemExit(f"{server.name} ended a stream without usage")
    return Stream(
        sent, tuple(texts or [finish]), usage["prompt_tokens"], usage["completion_tokens"]
    )


def _events(
    server: Server, client: h11.Connection, pieces: Sequence[tuple[float, bytes]]
) -> Iterator[tuple[float, dict[str, Any]]]:
    """Server-sent events of the response with the times at which each was complete."""
    buffer = b""
    for moment, data in _body(server, client, pieces):
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                yield moment, json.loads(line.removeprefix(b"data: "))


def _body(
    server: Server, client: h11.Connection, pieces: Sequence[tuple[float, bytes]]
) -> Iterator[tuple[float, bytes]]:
    status, body = 0, b""
    for moment, data in pieces:
        client.receive_data(data)
        while not isinstance(event := client.next_event(), type) and event is not None:
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data) and status == 200:
                yield moment, bytes(event.data)
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
    if status == 0:
        raise SystemExit(f"{server.name} closed a connection without an answer")
    if status != 200:
        raise SystemExit(f"{server.name} answered {status}: {body.decode(errors='replace')}")
