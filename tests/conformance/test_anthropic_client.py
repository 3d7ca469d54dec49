"""Anthropic's official client over a socket, on the default model.

The client validates every answer against its own types.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Literal

import anthropic
import pytest
from anthropic import Anthropic
from pydantic import BaseModel

from heddle import Engine, EngineConfig
from heddle.config import DEFAULT_MODEL, ServerConfig
from live_server import live_server, needs_own_server
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from live_server import LiveServer

pytestmark = pytest.mark.model

KEY = "sk-right"
QUESTION: Any = [{"role": "user", "content": "Name three colours."}]
BODY: Any = {"model": DEFAULT_MODEL, "max_tokens": 8, "messages": QUESTION}


class Colour(BaseModel):
    """Small enough that the model cannot say it at length."""

    name: Literal["red", "green", "blue"]
    shade: Literal["light", "dark"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(DEFAULT_MODEL, EngineConfig(slots=1, queue=0)) as engine:
        yield engine


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[LiveServer]:
    with live_server(engine, ServerConfig(port=0, api_key=(KEY,))) as server:
        yield server


@pytest.fixture
def client(server: LiveServer) -> Iterator[Anthropic]:
    with connect(server) as client:
        yield client


def connect(server: LiveServer, **options: Any) -> Anthropic:
    common = {"api_key": KEY, "max_retries": 0, "_strict_response_validation": True}
    return Anthropic(base_url=server.url, **common | options)


def ask(client: Anthropic, **fields: Any) -> Any:
    return client.messages.create(**BODY | {"extra_body": {"temperature": 0}} | fields)


def test_models(client: Anthropic) -> None:
    [listed] = client.models.list()
    assert (listed.id, listed.type) == (DEFAULT_MODEL, "model")
    retrieved = client.models.retrieve(DEFAULT_MODEL)
    changing = {"uptime_seconds", "device_memory"}
    assert retrieved.model_dump(exclude=changing) == listed.model_dump(exclude=changing)
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("other")


def test_a_message_streams_what_it_is_whole(client: Anthropic) -> None:
    whole = ask(client)
    with client.messages.stream(**BODY, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == last.content[0].text == whole.content[0].text
    assert last.stop_reason == whole.stop_reason == "max_tokens"
    assert last.usage.output_tokens == whole.usage.output_tokens == 8
    assert last.usage.cache_read_input_tokens > 0, "the same prompt was there before"
    kinds = [event.type for event in ask(client, stream=True)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def test_a_conversation_and_its_length(client: Anthropic) -> None:
    said: Any = {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            *QUESTION,
            {"role": "assistant", "content": ask(client).content},
            {"role": "user", "content": [{"type": "text", "text": "And three more?"}]},
        ],
    }
    count = client.messages.count_tokens(model=DEFAULT_MODEL, **said)
    usage = ask(client, **said).usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_a_stop_sequence(client: Anthropic) -> None:
    stop = ask(client).content[0].text[10:14]
    stopped = ask(client, stop_sequences=["never said", stop])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)


def test_a_message_is_parsed(client: Anthropic) -> None:
    fields: Any = BODY | {"max_tokens": 60, "extra_body": {"temperature": 0}}
    parsed = client.messages.parse(**fields, output_format=Colour)
    assert isinstance(parsed.parsed_output, Colour)
    with client.messages.stream(**fields, output_format=Colour) as stream:
        assert stream.get_final_message().parsed_output == parsed.parsed_output


def test_tools_are_used(client: Anthropic) -> None:
    paint: Any = {
        "name": "paint",
        "description": "Paints the wall.",
        "input_schema": Colour.model_json_schema(),
    }
    choice = {"type": "tool", "name": "paint", "disable_parallel_tool_use": True}
    fields: Any = {"max_tokens": 80, "tools": [paint], "tool_choice": choice}
    answer = ask(client, **fields)
    [use] = answer.content
    assert (answer.stop_reason, use.type, use.name) == ("tool_use", "tool_use", "paint")
    Colour.model_validate(use.input)
    options = BODY | fields | {"extra_body": {"temperature": 0}}
    with client.messages.stream(**options) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        [streamed] = stream.get_final_message().content
    assert json.loads("".join(pieces)) == streamed.input == use.input
    result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": "painted"}
    said = [
        *QUESTION,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    assert ask(client, messages=said, tools=[paint]).stop_reason in ("max_tokens", "end_turn")
    with pytest.raises(anthropic.BadRequestError, match="which is not in tools"):
        ask(client, tools=[paint], tool_choice={"type": "tool", "name": "other"})


@pytest.mark.parametrize("stream", [False, True])
def test_refusals(client: Anthropic, server: LiveServer, stream: bool) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature must be at least 0") as wrong:
        ask(client, extra_body={"temperature": -1}, stream=stream)
    assert wrong.value.type == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        ask(client, model="other", stream=stream)
    with (
        connect(server, api_key="sk-wrong") as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        ask(stranger, stream=stream)


@needs_own_server("one request fills it")
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_server_says_when_to_come_again(
    client: Anthropic, engine: Engine, stream: bool
) -> None:
    with ask(client, max_tokens=1000, stream=True, extra_body={"ignore_eos": True}) as running:
        next(running)
        with pytest.raises(anthropic.RateLimitError) as refusal:
            ask(client, stream=stream)
        assert int(refusal.value.response.headers["retry-after"]) >= 1
    deadline = time.monotonic() + PATIENCE
    while (now := engine.snapshot()).running or now.queue_depth:
        assert time.monotonic() < deadline, "a request goes on whose client has left"
        time.sleep(0.001)  # lets the engine's thread run
    assert ask(client).content
