"""Calls of functions and reasoning in Ollama's shape."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import templates
from heddle.server.http.hints import HEADER
from talking_model import Talking, talking_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

ASKED: Any = [{"role": "user", "content": "Weather?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
CLOCK = {"function": {"name": "clock", "description": "Tells the time."}}
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
PARIS = '{"city": "Paris"}'


@pytest.fixture(scope="module")
def hermes() -> Iterator[Talking]:
    with talking_server(templates.HERMES) as server:
        yield server


@pytest.fixture(scope="module")
def qwen() -> Iterator[Talking]:
    with talking_server(templates.QWEN3) as server:
        yield server


@pytest.fixture(scope="module")
def thinking() -> Iterator[Talking]:
    with talking_server(templates.THINKING) as server:
        yield server


def ask(server: Talking, *, stream: bool = False, **fields: Any) -> httpx.Response:
    body: Any = {"model": "fake", "messages": ASKED, "options": {"seed": 0}, "stream": stream}
    answer = server.post("/api/chat", body | fields)
    assert answer.status_code == 200, answer.text
    return answer


def message(server: Talking, **fields: Any) -> Any:
    return ask(server, **fields).json()["message"]


def calls_of(message: Any) -> list[tuple[int, str, Any]]:
    found = [call["function"] for call in message.get("tool_calls", ())]
    return [(one["index"], one["name"], one["arguments"]) for one in found]


def test_calls_have_objects_as_arguments(hermes: Talking) -> None:
    hermes.says(f"I look. {CALL % ('weather', PARIS)}\n{CALL % ('clock', '{}')}")
    expected = [(0, "weather", {"city": "Paris"}), (1, "clock", {})]
    whole = ask(hermes, tools=[WEATHER, CLOCK])
    assert whole.json()["done_reason"] == "stop"
    assert whole.json()["message"]["content"].strip() == "I look."
    assert calls_of(whole.json()["message"]) == expected
    streamed = ask(hermes, tools=[WEATHER, CLOCK], stream=True)
    lines = [json.loads(line) for line in streamed.text.splitlines()]
    assert [call for line in lines for call in calls_of(line["message"])] == expected
    assert "".join(line["message"]["content"] for line in lines).strip() == "I look."
    assert (lines[-1]["done"], lines[-1]["message"]["content"]) == (True, "")


NAMED = {"type": "function", "name": "clock"}
TWICE = f"{CALL % ('clock', '{}')}\n{CALL % ('clock', '{}')}"


@pytest.mark.parametrize(
    ("choice", "said", "calls"),
    [
        *[("auto", TWICE, 2), ("required", TWICE, 2), (NAMED, TWICE, 1), ("none", TWICE, 0)],
        *[("auto", "I do not look.", 0), (NAMED, "I do not look.", 1)],
    ],
)
def test_a_choice_of_tools(hermes: Talking, choice: Any, said: str, calls: int) -> None:
    """Ollama has no such field, but its clients have one."""
    hermes.says(said)
    answer = message(hermes, tools=[WEATHER, CLOCK], tool_choice=choice)
    assert [name for _, name, _ in calls_of(answer)] == ["clock"] * calls


def test_a_required_call_needs_tools(hermes: Talking) -> None:
    body = {"model": "fake", "messages": ASKED, "tool_choice": "required"}
    refused = hermes.post("/api/chat", body)
    assert refused.status_code == 400
    assert "tool_choice requires a call" in refused.json()["error"]


def test_a_call_that_the_limit_cuts_is_left_out(hermes: Talking) -> None:
    hermes.says(CALL % ("weather", PARIS))
    options = {"seed": 0, "num_predict": 40}
    for stream in (False, True):
        text = ask(hermes, tools=[WEATHER], options=options, stream=stream).text
        last = json.loads(text.splitlines()[-1])
        assert last["done_reason"] == "length"
        assert "tool_calls" not in text


def test_earlier_calls_and_results_are_shown(hermes: Talking) -> None:
    hermes.says("Rain.")
    call = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_name": "weather"},
    ]
    ask(hermes, messages=[*ASKED, *turns], tools=[WEATHER])
    assert CALL % ("weather", PARIS) in hermes.prompt
    assert "rain" in hermes.prompt


def test_a_format_beside_tools(hermes: Talking) -> None:
    hermes.says(CALL % ("clock", "{}"))
    assert calls_of(message(hermes, tools=[CLOCK], format=PARAMETERS)) == [(0, "clock", {})]
    hermes.says('{"city": "Rome"}')
    assert message(hermes, tools=[CLOCK], format=PARAMETERS)["content"] == '{"city": "Rome"}'
    hermes.says("[1]")
    assert message(hermes, format="json")["content"].startswith("{")


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_reasoning_is_thinking(thinking: Talking, path: str) -> None:
    thinking.says("Let me see.</think>Yes.")
    body: Any = {"model": "fake", "options": {"seed": 0}, "think": True}
    body |= {"messages": ASKED} if path == "/api/chat" else {"prompt": "Weather?"}

    def parts(answer: Any) -> tuple[str, str]:
        held = answer.get("message", answer)
        return held.get("content", held.get("response")), held.get("thinking", "")

    whole = thinking.post(path, body | {"stream": False})
    assert parts(whole.json()) == ("Yes.", "Let me see.")
    assert HEADER not in whole.headers
    lines = [json.loads(line) for line in thinking.post(path, body).text.splitlines()]
    texts, thoughts = zip(*map(parts, lines), strict=True)
    assert ("".join(texts), "".join(thoughts)) == ("Yes.", "Let me see.")


def test_without_reasoning(qwen: Talking, thinking: Talking) -> None:
    qwen.says("Yes.")
    assert message(qwen, think=False) == {"role": "assistant", "content": "Yes."}
    assert qwen.prompt.endswith("</think>\n\n")
    thinking.says("Let me see.</think>Yes.")  # its template always opens the reasoning
    answer = ask(thinking, think=False)
    assert "thinking" not in answer.json()["message"]
    assert HEADER not in answer.headers


def test_a_level_is_ignored_where_the_template_has_none(qwen: Talking) -> None:
    qwen.says("Yes.")
    assert ask(qwen, think="high").headers[HEADER] == "think"
    with talking_server(templates.HARMONY) as harmony:
        harmony.says("<|channel|>final<|message|>Yes.")
        assert HEADER not in ask(harmony, think="low").headers
        assert "low" in harmony.prompt
