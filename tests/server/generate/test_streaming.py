"""Merging streams and writing events, without a server: ends that a socket cannot time."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from fake_model import FakeTokenizer
from heddle.engine.streaming.streams import Backlog, delta_bytes
from heddle.errors import BacklogError, EngineFailedError
from heddle.outputs import Delta, FinishReason, TokenLogprob, Usage
from heddle.server.api.openai.completion_writers import AnswerOptions, ChatWriter
from heddle.server.api.openai.response_writer import ResponseWriter
from heddle.server.generate.event_stream import EventStream
from heddle.server.generate.json_answer import JsonAnswers, JsonPartsResponse
from heddle.server.http.connection import ClientGoneError
from heddle.server.http.encoding import encode
from heddle.text.parsing.parts import CallArguments, CallStart
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from heddle.engine.requests.request import Ticket


class ScriptedStreams:
    """Gives out what it was told to; then it ends, or waits for ever."""

    held = 0
    tickets: tuple[Ticket, ...] = ()

    def __init__(
        self, *script: tuple[int, Delta] | Exception, endless: bool = False, choices: int = 2
    ) -> None:
        self._script = list(script)
        self._endless = endless
        self._choices = choices
        self.closed = False

    def __len__(self) -> int:
        return self._choices

    def __aiter__(self) -> ScriptedStreams:
        return self

    async def __anext__(self) -> tuple[int, Delta]:
        if self._script:
            item = self._script.pop(0)
            if isinstance(item, Exception):
                raise item
            return item
        await self.complete()
        raise StopAsyncIteration

    async def complete(self) -> None:
        if self._endless:
            await asyncio.Event().wait()

    def close(self) -> None:
        self.closed = True


LAST = Delta("!", finish=FinishReason.LENGTH, usage=Usage(3, 2))


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE))


async def gone() -> dict[str, Any]:
    return {"type": "http.disconnect"}


async def staying() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def new_writer() -> ChatWriter:
    return ChatWriter("fake", FakeTokenizer(), AnswerOptions())


def respond(streams: Any, receive: Any) -> list[bytes]:
    """The bytes that an event stream sends."""
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    run(EventStream(new_writer(), streams, len(streams), Backlog(1 << 20))({}, receive, send))
    return sent


def test_the_streams_are_closed_when_the_client_leaves_before_the_first_event() -> None:
    streams = ScriptedStreams(endless=True)
    respond(streams, gone)
    assert streams.closed


def test_the_streams_are_closed_when_one_fails() -> None:
    streams = ScriptedStreams((1, Delta("a")), EngineFailedError("boom"))
    sent = b"".join(respond(streams, staying))
    assert sent.count(b"boom") == 1
    assert sent.endswith(b"data: [DONE]\n\n")
    assert streams.closed


def test_text_that_is_held_back_makes_no_event() -> None:
    script = [Delta("a"), Delta(), Delta(), LAST]
    events = b"".join(respond(ScriptedStreams(*((0, delta) for delta in script)), staying))
    # Two roles, "a", "!", the end, and [DONE].
    assert events.count(b"data: ") == 6


def respond_json(streams: Any, receive: Any, writer: ChatWriter | None = None) -> Any:
    async def response() -> Any:
        answers = JsonAnswers(Backlog(1 << 20))
        return await answers.response(writer or new_writer(), receive, streams, n=2)

    return run(response())


def test_the_streams_are_closed_when_a_whole_answer_is_given_up() -> None:
    streams = ScriptedStreams(endless=True)
    with pytest.raises(ClientGoneError):
        respond_json(streams, gone)
    assert streams.closed


def test_the_streams_are_closed_when_a_whole_answer_fails() -> None:
    streams = ScriptedStreams((0, Delta("a")), EngineFailedError("boom"))
    with pytest.raises(EngineFailedError):
        respond_json(streams, staying)
    assert streams.closed


def test_half_a_surrogate_pair_is_escaped() -> None:
    assert encode("\ud83dü") == b'"\\ud83d\xc3\xbc"'


def sent_by(response: JsonPartsResponse) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Headers and pieces that a response sends."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    run(response({}, staying, send))
    assert [message.get("more_body") for message in messages[1:]] == [True] * (
        len(messages) - 2
    ) + [False]
    return dict(messages[0]["headers"]), [message["body"] for message in messages[1:]]


@pytest.mark.parametrize("parts", [[b"{}"], [b"a" * 70_000, b"", b"b" * 200_000, b"c"]])
def test_an_answer_is_sent_in_pieces_that_a_connection_can_wait_with(parts: list[bytes]) -> None:
    backlog = Backlog(1 << 20)
    response = JsonPartsResponse(parts, backlog)
    headers, pieces = sent_by(response)
    assert b"".join(pieces) == b"".join(parts)
    assert headers[b"content-length"] == str(len(b"".join(parts))).encode()
    assert max(map(len, pieces)) <= 64 * 1024
    assert response.held == backlog.held == 0


def test_an_answer_that_is_cut_is_not_sent_to_its_end() -> None:
    backlog = Backlog(1 << 20)
    response = JsonPartsResponse([b"a" * 100_000, b"b" * 100_000], backlog)
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)
        if len(messages) == 2:
            assert backlog.held == 200_000
            response.cut(BacklogError("full"))

    run(response({}, staying, send))
    assert [message.get("more_body") for message in messages] == [None, True]
    assert backlog.held == 0


def test_answers_that_wait_to_be_sent_are_cut_at_the_bound() -> None:
    backlog = Backlog(1 << 20)
    sizes = (300_000, 500_000, 400_000)
    responses = [JsonPartsResponse([b"a" * size], backlog) for size in sizes]
    assert [response.held for response in responses] == [300_000, 0, 400_000]


@pytest.mark.parametrize("held", [0, 1 << 20])  # small and large are encoded in different threads
def test_a_whole_answer_is_json_with_all_choices(held: int) -> None:
    delta = Delta("a", (TokenLogprob(1, -0.5, ((1, -0.5), (2, -1.5))),))
    streams = ScriptedStreams((0, delta), (1, delta), (1, LAST), (0, delta), (0, LAST))
    streams.held = held
    response = respond_json(
        streams, staying, ChatWriter("fake", FakeTokenizer(), AnswerOptions(logprobs=0))
    )
    body = json.loads(b"".join(sent_by(response)[1]))
    frame = ["id", "object", "created", "model", "system_fingerprint", "choices"]
    assert list(body) == [*frame, "usage", "timings"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert [choice["message"]["content"] for choice in body["choices"]] == ["aa!", "a!"]
    assert [len(choice["logprobs"]["content"]) for choice in body["choices"]] == [2, 1]
    assert body["usage"]["completion_tokens"] == 4


def long_response(backlog: Backlog) -> EventStream:
    """A response of 200 tokens with 20 alternatives each, which its last events say again."""
    token = TokenLogprob(1, -0.5, tuple((other, -1.0) for other in range(20)))
    script = [(0, Delta("a", (token,)))] * 200 + [(0, LAST)]
    streams: Any = ScriptedStreams(*script, choices=1)
    writer = ResponseWriter("fake", FakeTokenizer(), b'{"tools":[]}', AnswerOptions(logprobs=0))
    return EventStream(writer, streams, 1, backlog)


def test_what_is_kept_to_be_said_again_is_counted() -> None:
    backlog = Backlog(1 << 20)
    response = long_response(backlog)
    most = 0
    messages: list[Any] = []

    async def send(message: Any) -> None:
        nonlocal most
        messages.append(message)
        most = max(most, backlog.held)

    run(response({}, staying, send))
    sent = b"".join(message.get("body", b"") for message in messages)
    last = sent.rpartition(b"event: response.incomplete")[2]
    assert max(len(message.get("body", b"")) for message in messages) <= 64 * 1024
    assert messages[-1]["more_body"] is False
    # The last event is being sent while what it is made of is still kept.
    assert len(last) > 64 * 1024
    assert len(last) < most < 2 * len(sent)
    assert backlog.cut == 0


def test_an_answer_that_keeps_too_much_ends_with_an_error() -> None:
    backlog = Backlog(100_000)
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    run(long_response(backlog)({}, staying, send))
    sent = b"".join(message.get("body", b"") for message in messages)
    assert b"event: response.failed" in sent
    assert b'"code":"backlog_full"' in sent.rpartition(b"event: error")[2]
    assert b"response.output_text.done" not in sent
    assert sent.count(b"event: response.output_text.delta") < 200, "it was cut before its end"
    assert messages[-1]["more_body"] is False
    assert (backlog.cut, backlog.held) == (1, 0)


def test_a_large_event_that_is_cut_has_no_end() -> None:
    backlog = Backlog(1 << 20)
    response = long_response(backlog)
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)
        if len(message.get("body", b"")) == 64 * 1024:
            response.cut(BacklogError("full"))
            assert backlog.held == 0

    run(response({}, staying, send))
    assert messages[-1]["more_body"] is True
    assert b"response.incomplete" not in b"".join(m.get("body", b"") for m in messages[:-1])


def test_tokens_and_small_events_that_are_sent_count_no_more() -> None:
    backlog = Backlog(100_000)
    token = TokenLogprob(1, -0.5, tuple((other, -1.0) for other in range(20)))
    streams: Any = ScriptedStreams(*[(0, Delta("a", (token,)))] * 20, (0, LAST), choices=1)
    writer = ChatWriter("fake", FakeTokenizer(), AnswerOptions(logprobs=20))
    held = set()

    async def send(message: Any) -> None:
        held.add(backlog.held)

    response = EventStream(writer, streams, 1, backlog)
    run(response({}, staying, send))
    assert held == {0}


def test_tokens_that_wait_for_text_are_counted() -> None:
    """As of a model that says nothing but control tokens, with 20 alternatives to each."""
    backlog = Backlog(100_000)
    token = TokenLogprob(1, -0.5, tuple((other, -1.0) for other in range(20)))
    script = [(0, Delta("", (token,)))] * 200 + [(0, LAST)]
    streams: Any = ScriptedStreams(*script, choices=1)
    writer = ChatWriter("fake", FakeTokenizer(), AnswerOptions(logprobs=20))
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    run(EventStream(writer, streams, 1, backlog)({}, staying, send))
    sent = b"".join(message.get("body", b"") for message in messages)
    assert b'"code":"backlog_full"' in sent
    assert len(streams._script) > 100, "it was cut long before its end"
    needed = 100_000 // delta_bytes(script[0][1])
    assert len(streams._script) <= len(script) - needed, "it was not cut below the bound"
    assert (backlog.cut, backlog.held) == (1, 0)


class CountedList(list[Any]):
    """Counts how often all its members are read."""

    reads = 0

    def __iter__(self) -> Iterator[Any]:
        self.reads += 1
        return super().__iter__()


@pytest.mark.parametrize("deltas", [3, 300])
def test_the_cost_of_an_event_does_not_grow_with_the_choices(deltas: int) -> None:
    choices = 2
    script = [(0, Delta("a"))] * deltas + [(index, LAST) for index in range(choices)]
    streams: Any = ScriptedStreams(*script, choices=choices)
    response = EventStream(new_writer(), streams, choices, Backlog(1 << 20))
    response._choices = counted = CountedList(response._choices)
    run(response({}, staying, discard))
    assert counted.reads == 3, "opening, totals and the end"


def test_the_cost_of_an_event_does_not_grow_with_the_items() -> None:
    writer = ResponseWriter("fake", FakeTokenizer(), b"{}", AnswerOptions())
    writer._items = counted = CountedList()
    for call in range(100):
        writer.part(0, CallStart(call, "f"), ())
        writer.part(0, CallArguments(call, "12345"), ())
        assert writer.held == 5 * (call + 1)
    assert counted.reads == 0
    writer.discard_held()
    assert writer.held == 0


async def discard(message: Any) -> None:
    """Sends to nobody."""
