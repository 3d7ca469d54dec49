"""Answers of gpt-oss in every API: reasoning, text and calls, constrained and as streams."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import templates
from heddle.server.http.hints import HEADER
from talking_model import talking_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from talking_model import Talking

ASKED = [{"role": "user", "content": "Weather?"}]
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
FUNCTION = {"name": "f", "parameters": CITY}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[Talking]:
    with talking_server(templates.HARMONY) as server:
        yield server


def asked(server: Talking, path: str, **fields: Any) -> Any:
    """The JSON answer to a body with `fields` at `path`."""
    body: dict[str, Any] = {"model": "fake", "seed": 0, "temperature": 0}
    most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    said = {"input": "Weather?"} if path == "/v1/responses" else {"messages": ASKED}
    answer = server.post(path, body | {most: 400} | said | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def message(server: Talking, **fields: Any) -> Any:
    [choice] = asked(server, CHAT, **fields)["choices"]
    return choice["message"]


@pytest.mark.extensions
def test_reasoning_and_text_in_anthropic_s_api(server: Talking) -> None:
    server.says(f"{THOUGHT}{FINAL}Warm.")
    thinking, text = asked(server, "/v1/messages")["content"]
    assert (thinking["thinking"], text["text"]) == ("Hm.", "Warm.")


def test_reasoning_and_text(server: Talking) -> None:
    server.says(f"{THOUGHT}{FINAL}Warm.")
    chat = message(server)
    assert (chat["content"], chat["reasoning_content"]) == ("Warm.", "Hm.")
    reasoning, item = asked(server, "/v1/responses")["output"]
    assert reasoning["content"][0]["text"] == "Hm."
    assert item["content"][0]["text"] == "Warm."
    streamed = server.post(CHAT, {"messages": ASKED, "seed": 0, "stream": True})
    deltas = [
        json.loads(line[6:])["choices"][0]["delta"]
        for line in streamed.text.splitlines()
        if line.startswith("data: {")
    ]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Warm."
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm."


@pytest.mark.extensions
def test_calls_in_anthropic_s_api(server: Talking) -> None:
    server.says(THOUGHT + CALL)
    choice = asked(
        server,
        "/v1/messages",
        tools=[{"name": "f", "input_schema": CITY}],
        tool_choice={"type": "any"},
    )
    assert [block["type"] for block in choice["content"]] == ["thinking", "tool_use"]
    assert choice["content"][1]["input"] == {"city": "Rome"}


def test_calls(server: Talking) -> None:
    """The arguments that the model wants are wrong: the grammar of the call corrects them."""
    server.says(THOUGHT + CALL)
    tool = {"type": "function", "function": FUNCTION | {"strict": True}}
    made = message(server, tools=[tool])
    assert (made["content"], made["reasoning_content"]) == (None, "Hm.")
    [call] = made["tool_calls"]
    assert call["function"]["name"] == "f"
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}
    response = asked(
        server,
        "/v1/responses",
        tools=[{"type": "function", "strict": True, **FUNCTION}],
        tool_choice="required",
    )
    assert [item["type"] for item in response["output"]] == ["reasoning", "function_call"]
    assert json.loads(response["output"][1]["arguments"]) == {"city": "Rome"}


def test_a_schema_constrains_the_final_message(server: Talking) -> None:
    server.says(f'{THOUGHT}{FINAL}{{"city": "Paris"}}')
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}
    made = message(server, response_format=form)
    assert (json.loads(made["content"]), made["reasoning_content"]) == ({"city": "Rome"}, "Hm.")


@pytest.mark.parametrize(
    "field", [{"guided_regex": "(Rome|Oslo)"}, {"guided_choice": ["Rome", "Oslo"]}]
)
def test_other_grammars_constrain_a_final_message_that_the_prompt_opens(
    server: Talking, field: dict[str, Any]
) -> None:
    server.says("Oslo")
    assert message(server, **field)["content"] == "Oslo"
    assert server.prompt.endswith("<|start|>assistant" + FINAL)


def test_an_answer_that_goes_on_is_text(server: Talking) -> None:
    server.says(" warm.")
    begun = [*ASKED, {"role": "assistant", "content": "It is"}]
    made = message(server, messages=begun, continue_final_message=True, add_generation_prompt=False)
    assert (made["content"], "reasoning_content" in made) == (" warm.", False)
    assert server.prompt.endswith(FINAL + "It is")


def test_reasoning_that_goes_on(server: Talking) -> None:
    server.says(f" so.<|end|><|start|>assistant{THOUGHT}{FINAL}Warm.")
    begun = [*ASKED, {"role": "assistant", "content": "", "reasoning_content": "Well,"}]
    made = message(server, messages=begun, continue_final_message=True)
    assert (made["content"], made["reasoning_content"]) == ("Warm.", " so.\nHm.")
    assert server.prompt.endswith("<|start|>assistant<|channel|>analysis<|message|>Well,")


def test_a_budget_ends_the_reasoning(server: Talking) -> None:
    """The closing mark has eleven tokens here. They replace what the model would say."""
    server.says(f"<|channel|>analysis<|message|>abcd...........{FINAL}Yes.")
    made = message(server, thinking_token_budget=4)
    assert (made["content"], made["reasoning_content"]) == ("Yes.", "abcd")


@pytest.mark.extensions
def test_earlier_reasoning_and_calls_are_in_the_prompt(server: Talking) -> None:
    server.says(FINAL + "Warm.")
    use = {"type": "tool_use", "id": "1", "name": "f", "input": {"city": "Rome"}}
    turn = [{"type": "thinking", "thinking": "I look.", "signature": ""}, use]
    result = [{"type": "tool_result", "tool_use_id": "1", "content": "20"}]
    history = [
        *ASKED,
        {"role": "assistant", "content": turn},
        {"role": "user", "content": result},
    ]
    asked(server, "/v1/messages", messages=history)
    assert server.prompt.endswith(
        "<|start|>assistant<|channel|>analysis<|message|>I look.<|end|>"
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"city": "Rome"}'
        '<|call|><|start|>functions.f to=assistant<|channel|>commentary<|message|>"20"<|end|>'
        "<|start|>assistant"
    )


def test_the_effort_is_told(server: Talking) -> None:
    server.says(FINAL)
    for effort, told in (("low", "low"), ("minimal", "low"), ("xhigh", "high")):
        answer = server.post(CHAT, {"messages": ASKED, "seed": 0, "reasoning_effort": effort})
        assert HEADER not in answer.headers
        assert f"Reasoning: {told}<|end|>" in server.prompt
