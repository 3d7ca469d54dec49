"""Merging streams and writing events, without a server: ends that a socket cannot time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fake_model import FakeTokenizer
from heddle.errors import EngineFailedError
from heddle.server.connection import ClientGoneError
from heddle.server.encoding import encode
from heddle.server.generation import collect
from heddle.server.responses import ChatAnswer
from heddle.server.streaming import EventStream, merge
from heddle.types import Delta, FinishReason, Usage

if TYPE_CHECKING:
    from collections.abc import Coroutine


class ScriptedStream:
    """Gives out what it was told to; then it ends, or waits for ever."""

    def __init__(self, *script: Delta | Exception, endless: bool = False) -> None:
        self._script = list(script)
        self._endless = endless
        self.closed = False

    def __aiter__(self) -> ScriptedStream:
        return self

    async def __anext__(self) -> Delta:
        if self._script:
            item = self._script.pop(0)
            if isinstance(item, Exception):
                raise item
            return item
        if self._endless:
            await asyncio.Event().wait()
        raise StopAsyncIteration

    def close(self) -> None:
        self.closed = True


LAST = Delta("!", finish=FinishReason.LENGTH, usage=Usage(3, 2))


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 20))


async def gone() -> dict[str, Any]:
    return {"type": "http.disconnect"}


async def staying() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def answer() -> ChatAnswer:
    return ChatAnswer("fake", FakeTokenizer(), logprobs=False)


def respond(streams: list[Any], receive: Any) -> list[bytes]:
    """What an event stream sends."""
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    run(EventStream(answer(), streams, len(streams), usage=False)({}, receive, send))
    return sent


def test_deltas_of_all_streams_arrive_with_their_index() -> None:
    async def main() -> list[tuple[int, Delta]]:
        streams: Any = [ScriptedStream(Delta("a"), LAST), ScriptedStream(LAST)]
        return [arrival async for arrival in merge(streams)]

    arrivals = run(main())
    assert [delta.text for index, delta in arrivals if index == 0] == ["a", "!"]
    assert [delta.text for index, delta in arrivals if index == 1] == ["!"]


def test_every_stream_is_closed_when_the_client_leaves_before_the_first_event() -> None:
    streams = [ScriptedStream(endless=True), ScriptedStream(endless=True)]
    respond(streams, gone)
    assert [stream.closed for stream in streams] == [True, True]


def test_every_stream_is_closed_when_one_fails() -> None:
    streams = [ScriptedStream(Delta("a"), endless=True), ScriptedStream(EngineFailedError("boom"))]
    sent = b"".join(respond(streams, staying))
    assert sent.count(b"boom") == 1
    assert sent.endswith(b"data: [DONE]\n\n")
    assert [stream.closed for stream in streams] == [True, True]


def test_text_that_is_held_back_makes_no_event() -> None:
    events = b"".join(respond([ScriptedStream(Delta("a"), Delta(), Delta(), LAST)], staying))
    # The role, "a", "!", the end, and [DONE].
    assert events.count(b"data: ") == 5


def test_every_stream_is_closed_when_an_answer_is_given_up() -> None:
    streams: Any = [ScriptedStream(endless=True), ScriptedStream(endless=True)]
    with pytest.raises(ClientGoneError):
        run(collect(gone, streams))
    assert [stream.closed for stream in streams] == [True, True]


def test_every_stream_is_closed_when_an_answer_fails() -> None:
    streams: Any = [ScriptedStream(EngineFailedError("boom")), ScriptedStream(endless=True)]
    with pytest.raises(EngineFailedError):
        run(collect(staying, streams))
    assert [stream.closed for stream in streams] == [True, True]


def test_half_a_surrogate_pair_is_escaped() -> None:
    assert encode("\ud83dü") == b'"\\ud83d\xc3\xbc"'
