"""A client that goes away frees its slot within one step of when the server knows.

A closed socket looks like one whose client has only ended its side. The server knows when the first
probe after 0.05 s, or an event of a stream, is answered with a reset.
"""

from __future__ import annotations

import json
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from heddle.outputs import FinishReason
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_server import Running


STAYS: dict[str, Any] = {"prompt": "hello", "max_tokens": 20, "ignore_eos": True, "seed": 5}


@contextmanager
def asking(server: Running, **fields: Any) -> Iterator[socket.socket]:
    """A raw connection that has sent a request for much text."""
    body = json.dumps({"prompt": "hello", "max_tokens": 480, "ignore_eos": True} | fields)
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(server.address) as client:
        client.settimeout(PATIENCE)
        client.sendall((head + body).encode())
        yield client


def steps_to_idle(server: Running) -> int:
    """Let the step that is held go on; how many steps ran until nothing was left."""
    before = server.executor.steps
    server.executor.gate.set()
    server.until(server.idle)
    return server.executor.steps - before


def cancelled(server: Running) -> int:
    return server.engine.snapshot().finished[FinishReason.CANCELLED]


def noticed(server: Running, count: int) -> bool:
    """Whether `count` running requests are marked to go."""
    slots = server.engine.snapshot().slots
    return sum(slot.state.value == "draining" for slot in slots) == count


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_while_it_generates(serve: Callable[..., Running], stream: bool, n: int) -> None:
    server = serve(slots=2)
    server.executor.before_step = lambda step: server.executor.gate.clear() if step == 3 else None
    with asking(server, stream=stream, n=n):
        server.until(lambda: server.executor.steps >= 4 and not server.executor.gate.is_set())
    server.until(lambda: noticed(server, n))
    assert steps_to_idle(server) <= 1
    assert cancelled(server) == n
    assert server.engine.snapshot().pages_used == 0


@pytest.mark.parametrize("queue_timeout", [0, 86_400])
def test_while_it_waits_for_a_slot(serve: Callable[..., Running], queue_timeout: int) -> None:
    """With a queue timeout, the headers of a stream wait for the first token."""
    server = serve(slots=1, queue_timeout=queue_timeout)
    server.executor.gate.clear()

    def waiting(count: int) -> bool:
        return server.engine.snapshot().queue_depth == count

    with asking(server, stream=True):
        server.until(server.executor.entered.is_set)
        with asking(server, stream=False):
            server.until(lambda: waiting(1))
        # The queue is swept between steps, so while one is held the first is still in it.
        with asking(server, stream=True):
            server.until(lambda: waiting(2))
        server.until(lambda: len(server.server.server_state.connections) == 1)
    server.until(lambda: noticed(server, 1))
    computed = server.engine.snapshot().computed_prompt_tokens
    assert steps_to_idle(server) <= 1
    assert cancelled(server) == 3
    most = computed + len("hello")  # the step that is held may end; no queued request ran
    assert server.engine.snapshot().computed_prompt_tokens <= most
    assert server.engine.snapshot().pages_used == 0


def test_others_go_on(serve: Callable[..., Running]) -> None:
    server = serve(slots=2)
    alone = server.post("/v1/completions", STAYS).json()["choices"][0]["text"]
    server.executor.gate.clear()
    with asking(server, stream=True, **STAYS) as staying:
        with asking(server, stream=True):
            server.until(lambda: server.engine.snapshot().queue_depth <= 1)
            server.until(server.executor.entered.is_set)
        server.until(lambda: len(server.server.server_state.connections) == 1)
        server.executor.gate.set()
        answer = b""
        while b"[DONE]" not in answer:
            answer += staying.recv(65536)
    assert answer.count(b'"finish_reason":"length"') == 1
    events = [line[6:] for line in answer.splitlines() if line.startswith(b'data: {"')]
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == alone
    server.until(server.idle)


def test_texts_to_embed_leave_with_their_client(serve: Callable[..., Running]) -> None:
    """The texts that run, those that wait, and those that were not submitted yet."""
    server = serve(slots=1, queue=4)
    server.executor.gate.clear()
    body = json.dumps({"input": ["hello"] * 30})
    head = (
        "POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(server.address) as client:
        client.sendall((head + body).encode())
        server.until(lambda: server.engine.snapshot().queue_depth == 3)
    server.until(lambda: noticed(server, 1))
    assert steps_to_idle(server) <= 1
    assert cancelled(server) == 4


def test_while_the_body_is_on_its_way(serve: Callable[..., Running]) -> None:
    server = serve()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with socket.create_connection(server.address) as client:
        client.sendall(head + b"content-length: 100\r\n\r\n{")
        server.until(lambda: bool(server.server.server_state.tasks))
    server.until(lambda: not server.server.server_state.tasks)
    assert server.get("/health").status_code == 200


def test_a_reader_that_does_not_read_holds_up_no_one(serve: Callable[..., Running]) -> None:
    server = serve(slots=2, context=512)
    with asking(server, stream=True, logprobs=20) as sleeper:
        sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        response = server.post("/v1/completions", {"prompt": "hello", "max_tokens": 5})
        assert response.status_code == 200
        server.until(server.idle)  # the sleeper's text waits in memory, its slot is free
        answer = b""
        while b"[DONE]" not in answer:
            answer += sleeper.recv(65536)
    assert answer.count(b'"finish_reason":"length"') == 1
