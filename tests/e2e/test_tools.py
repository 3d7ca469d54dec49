"""Function calls by real models: one whose template knows no tools, and one whose does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

from heddle.config import EngineConfig
from heddle.engine.engine import Engine
from live_server import live_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
MAIL: Any = {
    "type": "function",
    "function": {
        "name": "send_mail",
        "description": "Send an e-mail",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "string", "maxLength": 30}},
            "required": ["to"],
            "additionalProperties": False,
        },
    },
}
ASKED: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


def serving(model: str | Path) -> Iterator[openai.OpenAI]:
    with (
        Engine.load(model, EngineConfig(slots=4, context=2048)) as engine,
        live_server(engine) as live,
        openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def small(model_path: Path) -> Iterator[openai.OpenAI]:
    yield from serving(model_path)


@pytest.fixture(scope="module")
def qwen() -> Iterator[openai.OpenAI]:
    yield from serving("qwen2.5-coder-1.5b")


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    name = client.models.list().data[0].id
    options: Any = {"messages": ASKED, "temperature": 0, "max_tokens": 120}
    return client.chat.completions.create(model=name, **(options | fields))


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_model_that_knows_no_tools_calls_where_it_must(
    small: openai.OpenAI, choice: Any, temperature: float
) -> None:
    fields = {
        "tools": [WEATHER, MAIL],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "temperature": temperature,
        "seed": 3,
    }
    whole = ask(small, n=2, **fields)
    for made in whole.choices:
        [call] = made.message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert (made.finish_reason, made.message.content) == ("tool_calls", None)
        if call.function.name == "get_weather":
            assert set(arguments) == {"city", "unit"}
            assert arguments["unit"] in ("celsius", "fahrenheit")
        else:
            assert choice == "required"
            assert isinstance(arguments["to"], str)
    streamed = ["", ""]
    for chunk in ask(small, n=2, stream=True, **fields):
        [part] = chunk.choices
        for piece in part.delta.tool_calls or ():
            streamed[part.index] += piece.function.arguments
    assert streamed == [c.message.tool_calls[0].function.arguments for c in whole.choices]


@pytest.mark.large
def test_a_model_that_knows_tools_calls_when_it_should(qwen: openai.OpenAI) -> None:
    [choice] = ask(qwen, tools=[WEATHER, MAIL]).choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] == "Paris"


@pytest.mark.large
def test_strict_arguments_follow_their_schema(qwen: openai.OpenAI) -> None:
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    asked = [{"role": "user", "content": "What is the weather in Paris, in kelvin?"}]
    [choice] = ask(qwen, tools=[strict], messages=asked).choices
    [call] = choice.message.tool_calls
    assert json.loads(call.function.arguments)["unit"] in ("celsius", "fahrenheit")


@pytest.mark.large
def test_a_result_is_answered(qwen: openai.OpenAI) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris", "unit": "celsius"}'},
    }
    history = [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees and sunny"},
    ]
    answer = ask(qwen, messages=history, tools=[WEATHER], tool_choice="none")
    assert "18" in answer.choices[0].message.content
