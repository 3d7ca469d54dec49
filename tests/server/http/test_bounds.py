"""Bounds on the memory that clients can make a server hold: bodies, prompts, unread answers."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from heddle.config import ServerConfig
from heddle.engine import engine
from heddle.engine.requests.request import prepare
from heddle.errors import BodyTimeoutError, BodyTooLargeError, InvalidRequestError, OutOfMemoryError
from heddle.server.api.openai.schemas import ChatRequest, CompletionRequest
from heddle.server.http import body
from heddle.server.http.body import Bodies, _check_parts
from heddle.server.http.connection import ClientGoneError
from heddle.server.http.record import RECORD, RequestRecord
from heddle.server.http.schema import Schema
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from fake_server import Running

LONG = {
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 480,
    "ignore_eos": True,
    "logprobs": True,
    "top_logprobs": 20,
}


# --- bodies --------------------------------------------------------------------------------------


class FakeRequest:
    """A request whose body comes, and whose client leaves, when they are let.

    All but the last byte come at once, as far as the server takes them.
    """

    def __init__(
        self,
        body: bytes,
        *,
        chunked: bool = False,
        at_once: int | None = None,
        client: str = "192.0.2.1",
    ) -> None:
        self.scope: dict[str, Any] = {RECORD: RequestRecord(address=client)}
        self.headers = {"content-type": "application/json"}
        if not chunked:
            self.headers["content-length"] = str(len(body))
        self._body = body
        self._at_once = len(body) - 1 if at_once is None else at_once
        self.taken = 0
        self.arrived = asyncio.Event()
        self.left = asyncio.Event()

    async def stream(self) -> AsyncIterator[bytes]:
        for start in range(0, self._at_once, 1 << 16):
            part = self._body[start : min(start + (1 << 16), self._at_once)]
            yield part
            self.taken += len(part)
        await self.arrived.wait()
        yield self._body[self._at_once :]

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}


def completion(size: int, letter: str = "a") -> bytes:
    return json.dumps({"prompt": letter * size}).encode()


async def settle() -> None:
    """Let all tasks go on until they wait."""
    for _ in range(100):
        await asyncio.sleep(0)


def run(work: Callable[[Bodies], Any]) -> None:
    asyncio.run(asyncio.wait_for(work(Bodies(ServerConfig(), frozenset())), PATIENCE))


def length_of(body: CompletionRequest) -> int:
    return len(body.prompt)


@pytest.mark.parametrize("chunked", [False, True])
def test_sixteen_large_bodies_are_taken_at_once_and_small_ones_beside_them(chunked: bool) -> None:
    async def work(bodies: Bodies) -> None:
        def take(request: Any) -> asyncio.Task[int]:
            return asyncio.create_task(bodies.take(request, CompletionRequest, length_of))

        text = completion(300_000)
        large = [FakeRequest(text, chunked=chunked, client=f"192.0.2.{i % 7}") for i in range(20)]
        tasks = [take(request) for request in large]
        await settle()
        assert sum(request.taken > 290_000 for request in large) == 16
        for small in (FakeRequest(completion(100_000), chunked=chunked) for _ in range(2)):
            small.arrived.set()
            assert await take(small) == 100_000
        for request in large:
            request.arrived.set()
        assert await asyncio.gather(*tasks) == [300_000] * 20

    run(work)


def test_one_client_has_four_of_the_places() -> None:
    async def work(bodies: Bodies) -> None:
        def take(request: Any) -> asyncio.Task[int]:
            return asyncio.create_task(bodies.take(request, CompletionRequest, length_of))

        slow = [FakeRequest(completion(300_000)) for _ in range(20)]
        tasks = [take(request) for request in slow]
        await settle()
        assert sum(request.taken > 290_000 for request in slow) == 4
        other = FakeRequest(completion(300_000), client="192.0.2.2")
        other.arrived.set()
        assert await take(other) == 300_000
        for request in slow:
            request.arrived.set()
        assert await asyncio.gather(*tasks) == [300_000] * 20

    run(work)


@pytest.mark.parametrize("size", [20_000, 300_000])
def test_clients_take_turns_with_bodies_that_take_long(size: int) -> None:
    worked_on: list[str] = []
    go_on = threading.Event()

    def digest(body: CompletionRequest) -> None:
        worked_on.append(body.prompt[0])
        assert go_on.wait(PATIENCE)

    async def work(bodies: Bodies) -> None:
        def take(letter: str, client: str) -> asyncio.Task[None]:
            request: Any = FakeRequest(completion(size, letter), client=client)
            request.arrived.set()
            return asyncio.create_task(bodies.take(request, CompletionRequest, digest))

        tasks = [take(letter, "192.0.2.1") for letter in "abc"]
        while not worked_on:
            await asyncio.sleep(0)
        await settle()
        tasks += [take("d", "192.0.2.2")]
        await settle()
        go_on.set()
        await asyncio.gather(*tasks)

    run(work)
    assert worked_on == ["a", "d", "b", "c"]


def test_large_bodies_that_are_only_announced_take_no_place() -> None:
    async def work(bodies: Bodies) -> None:
        def take(request: Any) -> asyncio.Task[int]:
            return asyncio.create_task(bodies.take(request, CompletionRequest, length_of))

        stalled = [take(FakeRequest(completion(300_000), at_once=size)) for size in [0, 9] * 10]
        await settle()
        for size, chunked in ((30, True), (30, False), (300_000, True), (300_000, False)):
            request = FakeRequest(completion(size), chunked=chunked)
            request.arrived.set()
            assert await take(request) == size
        for task in stalled:
            task.cancel()
        await asyncio.gather(*stalled, return_exceptions=True)

    run(work)


def test_the_wait_for_a_place_is_not_held_against_a_body() -> None:
    async def work() -> None:
        bodies = Bodies(ServerConfig(), frozenset())
        bodies._timeout = 0.2  # type: ignore[assignment]

        def take(request: Any) -> asyncio.Task[int]:
            return asyncio.create_task(bodies.take(request, CompletionRequest, length_of))

        for _ in range(16):
            await bodies._places.acquire()
        last = FakeRequest(completion(300_000), at_once=270_000)
        task = take(last)
        await settle()
        await asyncio.sleep(0.3)  # longer than the body may take
        for _ in range(16):
            bodies._places.release()
        await settle()
        last.arrived.set()
        assert await task == 300_000

    asyncio.run(asyncio.wait_for(work(), PATIENCE))


def test_a_large_body_that_stalls_gives_its_place_back() -> None:
    async def work(bodies: Bodies) -> None:
        bodies._timeout = 0.05  # type: ignore[assignment]
        stalled: Any = FakeRequest(completion(300_000))
        with pytest.raises(BodyTimeoutError):
            await bodies.take(stalled, CompletionRequest, length_of)
        for _ in range(16):
            await bodies._places.acquire()

    run(work)


def test_a_large_body_is_refused_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed allocation in a library ends the process, and every other client's answer."""
    left = [0]
    monkeypatch.setattr(body, "available_bytes", lambda: left[0])

    async def work(bodies: Bodies) -> None:
        def take(size: int) -> Any:
            request: Any = FakeRequest(completion(size))
            request.arrived.set()
            return bodies.take(request, CompletionRequest, length_of)

        assert await take(200_000) == 200_000
        left[0] = 29_999_999
        with pytest.raises(OutOfMemoryError, match="may need 30 MB of memory; 30 MB are available"):
            await take(300_000)
        left[0] = 31_000_000
        assert await take(300_000) == 300_000

    run(work)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_beyond_the_limit_is_refused_before_the_rest_is_taken(chunked: bool) -> None:
    async def work(bodies: Bodies) -> None:
        request: Any = FakeRequest(completion(48 << 20), chunked=chunked)
        with pytest.raises(BodyTooLargeError, match="at most 33554432 bytes"):
            await bodies.take(request, CompletionRequest, length_of)
        assert request.taken <= (32 << 20 if chunked else 0)

    run(work)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_may_be_as_long_as_the_limit(chunked: bool) -> None:
    async def work(bodies: Bodies) -> None:
        body = completion(1000)
        body += b" " * ((32 << 20) - len(body))
        request: Any = FakeRequest(body, chunked=chunked)
        request.arrived.set()
        assert await bodies.take(request, CompletionRequest, length_of) == 1000

    run(work)


def test_a_body_of_very_many_lists_or_objects_is_refused(shared: Running) -> None:
    """2.7 million of them in the parameters of a function took 2 GB."""
    function = {"name": "f", "parameters": {"x": [{}] * 200_001}}
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [{"type": "function", "function": function}],
    }
    answer = shared.post("/v1/chat/completions", body)
    assert answer.status_code == 400
    assert "more than 200,000 lists, objects and strings" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "unit", ["[]", '{"":{}}', '"\\"",[{}]', '""', '"\\\\"', "[" * 100 + "]" * 100]
)
def test_lists_objects_and_strings_are_counted_wherever_they_are(unit: str) -> None:
    count = 200_001 // (unit.count("{") + unit.count("[") + unit.startswith('"')) + 1
    with pytest.raises(InvalidRequestError, match="more than 200,000 lists, objects and strings"):
        _check_parts(",".join([unit] * count).encode())


@pytest.mark.parametrize("text", ["{" * 300_000, '[{"' * 200_000, "\\" * 300_000 + "[" * 300_000])
def test_a_text_may_have_as_many_brackets_as_it_likes(text: str) -> None:
    _check_parts(json.dumps({"prompt": text}).encode())
    _check_parts(json.dumps({"prompt": text}).encode()[:-2])  # a string without an end


def test_one_large_body_is_worked_on_at_once_and_smaller_ones_beside_it() -> None:
    entered: list[int] = []
    go_on = threading.Event()

    def digest(body: CompletionRequest) -> int:
        if len(body.prompt) > 200_000:
            entered.append(len(body.prompt))
            assert go_on.wait(PATIENCE)
        return len(body.prompt)

    async def work(bodies: Bodies) -> None:
        def take(size: int) -> asyncio.Task[int]:
            request: Any = FakeRequest(completion(size))
            request.arrived.set()
            return asyncio.create_task(bodies.take(request, CompletionRequest, digest))

        tasks = [take(300_000) for _ in range(9)]
        while not entered:
            await asyncio.sleep(0)
        assert await take(10_000) == 10_000
        assert await take(100_000) == 100_000
        await settle()
        assert len(entered) == 1
        go_on.set()
        assert await asyncio.gather(*tasks) == [300_000] * 9

    run(work)


def test_a_body_whose_client_has_left_is_not_worked_on() -> None:
    worked_on: list[str] = []
    go_on = threading.Event()

    def digest(body: CompletionRequest) -> None:
        worked_on.append(body.prompt[0])
        assert go_on.wait(PATIENCE)

    async def work(bodies: Bodies) -> None:
        requests: Any = [FakeRequest(completion(20_000, x), client=x) for x in "abc"]
        tasks = []
        for request in requests:
            request.arrived.set()
            tasks.append(asyncio.create_task(bodies.take(request, CompletionRequest, digest)))
            await settle()
        requests[1].left.set()
        with pytest.raises(ClientGoneError):
            await tasks[1]
        go_on.set()
        await asyncio.gather(tasks[0], tasks[2])
        assert sorted(worked_on) == ["a", "c"]

    run(work)


def test_a_refused_body_gives_its_place_back() -> None:
    def refuse(body: CompletionRequest) -> None:
        raise InvalidRequestError("no")

    async def work(bodies: Bodies) -> None:
        for _ in range(20):
            request: Any = FakeRequest(completion(300_000))
            request.arrived.set()
            with pytest.raises(InvalidRequestError, match="no"):
                await bodies.take(request, CompletionRequest, refuse)

    run(work)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.slow
def test_no_part_of_a_body_stays_while_its_answer_is_made(
    serve: Callable[..., Running], path: str
) -> None:
    server = serve(slots=1)
    server.executor.gate.clear()
    said = "messages" if path == "/v1/chat/completions" else "input"
    body = {said: [{"role": "user", "content": "hello"}], "stream": True}
    earlier = parsed_bodies()  # of tests before: errors they raised hold frames in cycles
    with server.stream(path, body):
        assert server.executor.entered.wait(PATIENCE)
        assert not [body for body in parsed_bodies() if all(body is not old for old in earlier)]
        server.executor.gate.set()


def parsed_bodies() -> list[Schema]:
    return [thing for thing in gc.get_objects() if isinstance(thing, Schema)]


def test_a_conversation_of_very_many_messages_is_refused_by_their_number(shared: Running) -> None:
    message = {"role": "user", "content": "a"}
    part = {"type": "text", "text": ""}
    for messages, param in (
        ([message] * 8193, "messages"),
        ([message | {"content": [part] * 8193}], "messages[0].content"),
    ):
        response = shared.post("/v1/chat/completions", {"messages": messages})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == param
        assert "at most 8192 items" in error["message"]


def test_a_prompt_that_is_too_long_is_copied_for_one_choice_only(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = []

    def counted(*arguments: Any, **named: Any) -> Any:
        prepared.append(arguments)
        return prepare(*arguments, **named)

    monkeypatch.setattr(engine, "prepare", counted)
    for prompt in ([1] * 600, "a" * 600):
        response = shared.post("/v1/completions", {"prompt": prompt, "n": 10})
        assert response.json()["error"]["code"] == "context_length_exceeded"
    assert len(prepared) == 2


def test_of_very_many_faults_the_number_is_told(shared: Running) -> None:
    for count, told in ((1000, "unknown parameter: x0"), (1001, "1001 unknown or invalid fields")):
        faults = {f"x{index}": 1 for index in range(count)}
        response = shared.post("/v1/completions", {"prompt": "hello"} | faults)
        assert response.status_code == 400
        assert told in response.json()["error"]["message"]


WRONG: list[Any] = [
    {"prompt": ["a"] + [1] * 2000},
    {"prompt": [1] + ["a"] * 2000},
    {"prompt": [[]] * 2000},
    {"prompt": [[1] + ["a"] * 2000]},
    {"prompt": "hello", "stop": ["a"] + [1] * 2000},
    {"messages": [1] * 2000},
    {"messages": [{"role": "user", "content": [{}] * 2000}]},
]


@pytest.mark.parametrize("body", WRONG)
def test_of_a_list_only_the_first_fault_is_looked_for(body: dict[str, Any]) -> None:
    """Each would be an object of 1.6 kB: three million of them fit 8 MB of JSON."""
    schema = ChatRequest if "messages" in body else CompletionRequest
    with pytest.raises(ValidationError) as caught:
        schema.model_validate_json(json.dumps(body))
    assert caught.value.error_count() < 5


@pytest.mark.parametrize("field", ["bad_words", "dry_sequence_breakers", "stop", "samplers"])
def test_a_list_of_strings_is_refused_at_its_bound(field: str) -> None:
    """890,000 names of samplers were looked at for 5 s."""
    body = json.dumps({"prompt": "a", field: ["top_k"] * 1001})
    with pytest.raises(ValidationError, match="should have at most"):
        CompletionRequest.model_validate_json(body)


def test_what_a_request_keeps_while_it_waits_is_small(shared: Running) -> None:
    for fields, param in (
        ({"stop": "a" * 1025}, "stop"),
        ({"logit_bias": {str(token): 1 for token in range(16_385)}}, "logit_bias"),
    ):
        response = shared.post("/v1/completions", {"prompt": "hello"} | fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
        assert len(response.content) < 1000


# --- answers -------------------------------------------------------------------------------------


def asking(server: Running, **fields: Any) -> socket.socket:
    """A connection that has asked for much and reads nothing."""
    body = json.dumps(LONG | fields)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(server.address)
    client.sendall((head + body).encode())
    return client


def metric(server: Running, name: str) -> int:
    """A number that the extension `metrics` shows."""
    metrics = server.get("/metrics").text
    [number] = re.findall(rf"^heddle_{name} (\S+)$", metrics, re.MULTILINE)
    return int(float(number))


def open_connections(server: Running) -> int:
    return len(server.server.server_state.connections)


def ask_and_read(server: Running, stream: bool) -> str:
    """The answer that a client of good manners gets."""
    body = {"prompt": "hello", "max_tokens": 5, "seed": 1, "stream": stream, "ignore_eos": True}
    response = server.post("/v1/completions", body)
    assert response.status_code == 200
    if not stream:
        return str(response.json()["choices"][0]["text"])
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


@pytest.mark.extensions
@pytest.mark.parametrize("stream", [False, True])
def test_many_who_never_read_are_cut_one_by_one_and_no_one_else_notices(
    serve: Callable[..., Running], stream: bool
) -> None:
    """An answer of theirs is 4 choices of 480 tokens with 20 logprobs each: 5 MB in memory."""
    server = serve(slots=16, queue=1000, backlog=16 << 20, send_timeout=86_400)
    expected = ask_and_read(server, stream)
    with ExitStack() as clients:
        for _ in range(20):
            clients.enter_context(asking(server, stream=stream, n=4))
        server.until(lambda: metric(server, "backlog_cut_total") > 0)
        assert ask_and_read(server, stream) == expected
        server.until(server.idle)
        assert 0 < metric(server, "backlog_bytes") <= 16 << 20
        assert ask_and_read(server, stream) == expected
    server.until(lambda: metric(server, "backlog_bytes") == 0)


@pytest.mark.extensions
def test_one_who_reads_late_is_told_why_the_stream_ends(serve: Callable[..., Running]) -> None:
    server = serve(slots=16, backlog=1 << 20, send_timeout=86_400)
    with asking(server, stream=True, n=16) as client:
        server.until(lambda: metric(server, "backlog_cut_total") == 1)
        server.until(server.idle)
        client.settimeout(PATIENCE)
        answer = b""
        while b"[DONE]" not in answer:
            answer += client.recv(1 << 20)
    last = answer.rpartition(b"data: {")[2]
    assert b'"code":"backlog_full"' in last
    assert b"raise the setting `backlog`" in last


def test_an_answer_too_large_to_be_kept_is_refused(serve: Callable[..., Running]) -> None:
    server = serve(slots=16, backlog=1 << 20)
    response = server.post("/v1/chat/completions", LONG | {"n": 4})
    assert response.status_code == 429
    assert response.json()["error"]["code"] == "backlog_full"
    assert server.post("/v1/chat/completions", LONG | {"top_logprobs": 1}).status_code == 200


@pytest.mark.extensions
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_reads_nothing_is_cut_off(
    serve: Callable[..., Running], stream: bool
) -> None:
    """16 choices of 480 tokens with 20 logprobs each are more than a socket's buffers hold.

    A stream may be cut off before all of them are made.
    """
    server = serve(slots=16, send_timeout=1)
    with asking(server, stream=stream, n=16):
        server.until(lambda: server.executor.steps > 0)
        server.until(server.idle)
        server.until(lambda: metric(server, "backlog_bytes") == 0)
        server.until(lambda: not open_connections(server))
    assert server.idle()


@pytest.mark.extensions
@pytest.mark.parametrize(
    ("sent", "hundreds"), [(b"", 20), (b"POST /v1/completions HT", 20), (None, 3)]
)
def test_connections_that_are_left_leave_nothing(
    serve: Callable[..., Running], sent: bytes | None, hundreds: int
) -> None:
    server = serve(slots=2, queue=100)
    for _ in range(hundreds):
        with ExitStack() as clients:
            for _ in range(100):
                if sent is None:
                    clients.enter_context(asking(server, stream=True))
                else:
                    clients.enter_context(socket.create_connection(server.address)).sendall(sent)
        # Or a slow server would soon hold more of them than a process may have files.
        assert server.get("/health").status_code == 200
        server.until(lambda: not open_connections(server))
    server.until(lambda: not server.server.server_state.tasks)
    server.until(lambda: not open_connections(server))
    server.until(server.idle)
    assert ask_and_read(server, stream=True)
    assert metric(server, "backlog_bytes") == 0
