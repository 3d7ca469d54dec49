"""Calls and reasoning in `/v1/responses`, with a model that writes a given text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from openai.types.responses import Response

import templates
from checked_responses import events_of, response_of
from talking_model import Talking, talking_server

if TYPE_CHECKING:
    from collections.abc import Iterator


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": False,
}
CLOCK = {"type": "function", "name": "clock"}
TOOLS = [WEATHER, CLOCK]
PARIS = '{"city": "Paris"}'
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
TOLD = templates.QWEN3.replace(
    "{{ message.content }}", "[{{ message.reasoning_content }}]{{ message.content }}"
)
"""A template that shows the reasoning of earlier turns."""


@pytest.fixture(scope="module")
def server() -> Iterator[Talking]:
    with talking_server(TOLD) as server:
        yield server


def respond(server: Talking, stream: bool = False, **fields: Any) -> Response:
    """A response, whole or as the last event of a stream has it."""
    body = {"input": "Weather?", "seed": 0, "max_output_tokens": 600, "stream": stream} | fields
    answer = server.post("/v1/responses", body)
    if not stream:
        return response_of(answer)
    return Response.model_validate(events_of(answer)[-1]["response"])


def told(response: Response) -> list[tuple[str, ...]]:
    """The texts and calls in the items of a response."""
    items: list[tuple[str, ...]] = []
    for item in response.output:
        if item.type == "function_call":
            items.append(("call", item.name, item.arguments))
        elif item.type == "reasoning":
            assert item.content is not None
            items.append(("reasoning", item.content[0].text))
        else:
            assert item.type == "message"
            items.append(("message", item.content[0].text))  # type: ignore[union-attr]
    return items


both = pytest.mark.parametrize("stream", [False, True])


@both
def test_a_call(server: Talking, stream: bool) -> None:
    server.says(CALL % ("get_weather", PARIS))
    response = respond(server, stream, tools=TOOLS)
    assert told(response) == [("call", "get_weather", PARIS)]
    [call] = response.output
    assert call.type == "function_call"
    assert call.call_id.startswith("call_")
    assert (call.status, response.status) == ("completed", "completed")
    assert "Tells the weather." in server.prompt
    repeated = [(tool.name, tool.strict) for tool in response.tools]  # type: ignore[union-attr]
    assert repeated == [("get_weather", False), ("clock", False)]


@both
def test_reasoning_words_and_calls_are_items_in_their_order(server: Talking, stream: bool) -> None:
    calls = f"{CALL % ('get_weather', PARIS)}\n{CALL % ('clock', '{}')}"
    server.says(f"<think>Let me see.</think>I look. {calls}")
    response = respond(server, stream, tools=TOOLS)
    assert told(response) == [
        ("reasoning", "Let me see."),
        ("message", "I look."),
        ("call", "get_weather", PARIS),
        ("call", "clock", "{}"),
    ]
    assert len({item.id for item in response.output}) == 4
    assert {item.status for item in response.output} == {"completed"}  # type: ignore[union-attr]
    assert response.usage is not None
    details = response.usage.output_tokens_details
    assert len("Let me see.") <= details.reasoning_tokens <= len("<think>Let me see.</think>")
    single = respond(server, stream, tools=TOOLS, parallel_tool_calls=False)
    assert told(single)[-1] == ("call", "get_weather", PARIS)
    assert not single.parallel_tool_calls


def test_arguments_come_as_they_are_written(server: Talking) -> None:
    server.says(CALL % ("get_weather", PARIS))
    body = {"input": "Weather?", "seed": 0, "stream": True, "tools": TOOLS}
    kinds = [one["type"] for one in events_of(server.post("/v1/responses", body))]
    assert kinds.count("response.function_call_arguments.delta") > 5
    assert "response.output_text.delta" not in kinds


@both
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "clock"}])
def test_a_call_is_enforced(server: Talking, choice: Any, stream: bool) -> None:
    server.says("I would rather not.")
    response = respond(server, stream, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    [(kind, name, arguments)] = told(response)
    assert kind == "call"
    assert name == "clock" or choice == "required"
    assert isinstance(json.loads(arguments), dict)


@both
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_functions_are_called(server: Talking, mode: str, stream: bool) -> None:
    server.says(CALL % ("get_weather", PARIS))
    allowed = {"type": "allowed_tools", "mode": mode}
    clock = allowed | {"tools": [{"type": "function", "name": "clock"}]}
    response = respond(server, stream, tools=TOOLS, tool_choice=clock)
    assert "get_weather" not in {name for kind, name, *_ in told(response) if kind == "call"}
    assert response.tool_choice.to_dict() == clock
    both = allowed | {"tools": [{"type": "function", "name": one["name"]} for one in TOOLS]}
    assert told(respond(server, stream, tools=TOOLS, tool_choice=both))[0][1] == "get_weather"


@both
def test_no_call_is_made_where_none_is_wanted(server: Talking, stream: bool) -> None:
    server.says(CALL % ("clock", "{}"))
    response = respond(server, stream, tools=TOOLS, tool_choice="none")
    assert [kind for kind, *_ in told(response)] == ["message"]
    assert response.tool_choice == "none"


def test_strict_arguments_follow_their_schema(server: Talking) -> None:
    server.says(CALL % ("get_weather", '{"city": "Berlin"}'))
    [(_, _, arguments)] = told(respond(server, tools=[WEATHER | {"strict": True}]))
    assert json.loads(arguments)["city"] in ("Paris", "Rome")
    assert told(respond(server, tools=[WEATHER]))[0][2] == '{"city": "Berlin"}'


def test_a_turn_of_several_items_is_one_message(server: Talking) -> None:
    server.says(f"<think>Hm.</think>I look. {CALL % ('get_weather', PARIS)}")
    first = respond(server, tools=TOOLS)
    call = first.output[-1]
    assert call.type == "function_call"
    server.says("Warm.")
    question = {"role": "user", "content": "Weather?"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "20 degrees"}
    made = [item.model_dump(exclude_unset=True) for item in first.output]
    second = respond(server, input=[question, *made, output], tools=TOOLS)
    assert told(second) == [("message", "Warm.")]
    turn = f"assistant\n[Hm.]I look.{CALL % ('get_weather', PARIS)}<|im_end|>\n"
    assert turn in server.prompt
    assert server.prompt.index(turn) < server.prompt.index("tool\n[]20 degrees<|im_end|>")


def test_calls_of_one_turn_are_one_message_and_reasoning_begins_another(server: Talking) -> None:
    def call(name: str) -> dict[str, str]:
        return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}

    def thought(text: str) -> dict[str, Any]:
        return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}

    server.says("x")
    items = [call("a"), call("b"), thought("So."), call("c"), thought("Lost."), {"role": "user"}]
    respond(server, input=[*items[:-1], {"role": "user", "content": "Well?"}])
    a, b, c = (CALL % (name, "{}") for name in "abc")
    assert f"assistant\n[]{a}{b}<|im_end|>\n<|im_start|>assistant\n[So.]{c}<|im_end|>" in (
        server.prompt
    )
    assert "user\n[]Well?" in server.prompt


@both
def test_an_item_that_is_cut_off_is_incomplete(server: Talking, stream: bool) -> None:
    server.says(f"Hm {CALL % ('get_weather', PARIS)}")
    response = respond(server, stream, tools=TOOLS, max_output_tokens=55)
    message, call = response.output
    assert (message.status, call.status) == ("completed", "incomplete")  # type: ignore[union-attr]
    assert response.status == "incomplete"
    assert PARIS.startswith(told(response)[-1][-1])


@both
def test_logprobs_are_those_of_the_text(server: Talking, stream: bool) -> None:
    server.says(f"<think>No.</think>Hm. {CALL % ('clock', '{}')}")
    response = respond(server, stream, tools=TOOLS, include=["message.output_text.logprobs"])
    message = response.output[1]
    assert message.type == "message"
    tokens = [entry.token for entry in message.content[0].logprobs or ()]  # type: ignore[union-attr]
    # The tokens of a mark belong to what comes after it.
    assert "".join(tokens).strip() == "</think>Hm."


def test_variables_of_the_template(server: Talking) -> None:
    server.says("Yes.")
    respond(server, chat_template_kwargs={"enable_thinking": False})
    assert server.prompt.endswith("<think>\n\n</think>\n\n")
    answer = server.post("/v1/responses", {"input": "a", "chat_template_kwargs": {"tools": 1}})
    assert answer.json()["error"]["param"] == "chat_template_kwargs"
