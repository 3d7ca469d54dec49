"""Tools and thinking in `/v1/messages`, as Anthropic's official client sees them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

import templates
from heddle.server.http.hints import HEADER
from talking_model import Talking, talking_server

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKED: Any = [{"role": "user", "content": "Weather?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"name": "get_weather", "description": "Tells the weather.", "input_schema": SCHEMA},
    {"name": "clock", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.fixture(scope="module")
def server() -> Iterator[Talking]:
    with talking_server(templates.QWEN3) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Talking) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def ask(client: anthropic.Anthropic, **fields: Any) -> Any:
    options = {"model": "fake", "max_tokens": 400, "messages": ASKED, "tools": TOOLS}
    return client.messages.create(**(options | {"extra_body": {"seed": 0}} | fields))


def test_a_tool_is_used(server: Talking, client: anthropic.Anthropic) -> None:
    server.says(f"Let me look.\n{CALL}\n{CALL}")
    answer = ask(client)
    text, first, second = answer.content
    assert (text.type, text.text) == ("text", "Let me look.")
    assert (first.type, first.name, first.input) == ("tool_use", "get_weather", {"city": "Paris"})
    assert first.id.startswith("toolu_")
    assert first.id != second.id
    assert answer.stop_reason == "tool_use"
    assert "Tells the weather." in server.prompt


def test_a_stream_of_blocks(server: Talking, client: anthropic.Anthropic) -> None:
    server.says(f"<think>Hm.</think>Let me look.\n{CALL}\n{CALL}")
    options: Any = {"model": "fake", "max_tokens": 400, "messages": ASKED, "tools": TOOLS}
    kinds = []
    with client.messages.stream(**options, extra_body={"seed": 0}) as stream:
        for event in stream:
            if event.type == "content_block_start":
                kinds.append((event.index, event.content_block.type))
            elif event.type == "content_block_stop":
                kinds.append((event.index, "stop"))
        last = stream.get_final_message()
    types = ["thinking", "text", "tool_use", "tool_use"]
    expected = [(place, said) for place, kind in enumerate(types) for said in (kind, "stop")]
    assert kinds == expected
    thinking, text, first, second = last.content
    assert (thinking.thinking, text.text) == ("Hm.", "Let me look.")
    assert first.input == second.input == {"city": "Paris"}
    assert first.id != second.id
    assert last.stop_reason == "tool_use"


def test_an_answer_without_text_has_no_block(server: Talking, client: anthropic.Anthropic) -> None:
    server.says("")
    assert ask(client).content == []
    answer = server.post(
        "/v1/messages", {"model": "fake", "max_tokens": 9, "messages": ASKED, "stream": True}
    )
    assert "content_block" not in answer.text


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any"}, {"get_weather", "clock"}),
        ({"type": "tool", "name": "clock"}, {"clock"}),
        (
            {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
            {"get_weather"},
        ),
    ],
)
def test_a_use_is_enforced(
    server: Talking, client: anthropic.Anthropic, choice: Any, names: set[str]
) -> None:
    server.says("<tool_call>")  # and then, if it were free, no more
    content = ask(client, tool_choice=choice).content
    assert {block.type for block in content} == {"tool_use"}
    assert {block.name for block in content} <= names
    for block in content:
        assert block.name == "clock" or block.input["city"] in ("Paris", "Rome")


@pytest.mark.parametrize("kind", ["auto", "any"])
def test_several_uses_may_be_forbidden(
    server: Talking, client: anthropic.Anthropic, kind: str
) -> None:
    server.says(f"{CALL}\n{CALL}")
    for disabled, uses in ((False, 2), (True, 1)):
        choice = {"type": kind, "disable_parallel_tool_use": disabled}
        kinds = [block.type for block in ask(client, tool_choice=choice).content]
        assert kinds.count("tool_use") == uses


def test_none_is_used_where_none_is_wanted(server: Talking, client: anthropic.Anthropic) -> None:
    server.says("Warm.")
    answer = ask(client, tool_choice={"type": "none"})
    assert (answer.content[0].text, answer.stop_reason) == ("Warm.", "end_turn")
    assert "Tells the weather." not in server.prompt


def test_strict_input_follows_its_schema(server: Talking, client: anthropic.Anthropic) -> None:
    server.says(CALL.replace("Paris", "Berlin"))
    assert ask(client).content[0].input == {"city": "Berlin"}
    strict = [TOOLS[0] | {"strict": True}]
    assert ask(client, tools=strict).content[0].input["city"] in ("Paris", "Rome")


def test_results_are_told(server: Talking, client: anthropic.Anthropic) -> None:
    server.says("Warm.")
    used = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "20 degrees"},
        {
            "type": "tool_result",
            "tool_use_id": "toolu_2",
            "content": [{"type": "text", "text": "no such city"}],
            "is_error": True,
        },
        {"type": "text", "text": "Well?"},
    ]
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    answer = ask(
        client,
        messages=[
            *ASKED,
            {"role": "assistant", "content": [thought, {"type": "text", "text": "So:"}, used]},
            {"role": "user", "content": results},
        ],
    )
    assert answer.content[0].text == "Warm."
    places = [
        server.prompt.index(said)
        for said in (
            "assistant\nSo:",
            '{"name": "get_weather", "arguments": {"city": "Rome"}}',
            "tool\n20 degrees<|im_end|>",
            "tool\nError: no such city<|im_end|>",
            "user\nWell?<|im_end|>",
        )
    ]
    assert places == sorted(places)


def test_a_result_may_be_empty(server: Talking, client: anthropic.Anthropic) -> None:
    server.says("Warm.")
    used = {"type": "tool_use", "id": "toolu_1", "name": "clock", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": []}
    turns = [{"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    answer = ask(client, system=[], messages=[*ASKED, *turns])
    assert answer.content[0].text == "Warm."
    assert "tool\n<|im_end|>" in server.prompt


def test_a_use_that_is_cut_off(server: Talking, client: anthropic.Anthropic) -> None:
    server.says(f"So: {CALL}")
    answer = ask(client, max_tokens=50)
    assert [block.type for block in answer.content] == ["text"]
    assert answer.stop_reason == "max_tokens"


@pytest.mark.parametrize("arguments", ["[" * 200, '{"a": "x" "b"}'])
def test_input_that_is_no_object_is_left_out(
    server: Talking, client: anthropic.Anthropic, arguments: str
) -> None:
    """Llama's names, which no grammar expects after Hermes' mark, leave an output free."""
    server.says(f'```json\n{{"id": 7, "name": "clock", "arguments": {arguments}')
    assert ask(client).content == []


def test_thinking(server: Talking, client: anthropic.Anthropic) -> None:
    server.says("<think>Hm.</think>Yes.")
    thinking, text = ask(client, thinking={"type": "enabled", "budget_tokens": 1024}).content
    assert (thinking.type, thinking.thinking, text.text) == ("thinking", "Hm.", "Yes.")
    server.says("Yes.")
    ask(client, thinking={"type": "disabled"})
    assert server.prompt.endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["no tools", "tools"])
def test_a_budget_ends_the_thinking(
    server: Talking, client: anthropic.Anthropic, tools: Any
) -> None:
    """The closing mark has eight tokens here. They replace what the model would say."""
    server.says("<think>abcd........Yes.")
    asked = {"thinking": {"type": "enabled", "budget_tokens": 4}, "tools": tools}
    thinking, text = ask(client, **asked).content
    assert (thinking.type, thinking.thinking, text.text) == ("thinking", "abcd", "Yes.")
    options: Any = {"model": "fake", "max_tokens": 400, "messages": ASKED}
    with client.messages.stream(**options, **asked, extra_body={"seed": 0}) as stream:
        thinking, text = stream.get_final_message().content
    assert (thinking.type, thinking.thinking, text.text) == ("thinking", "abcd", "Yes.")


def test_a_budget_that_is_not_spent_changes_nothing(
    server: Talking, client: anthropic.Anthropic
) -> None:
    server.says("<think>Hm.</think>Yes.")
    thinking, text = ask(client, thinking={"type": "enabled", "budget_tokens": 20}).content
    assert (thinking.thinking, text.text) == ("Hm.", "Yes.")
    raw = ask(client.with_raw_response, thinking={"type": "enabled", "budget_tokens": 20})
    assert HEADER not in raw.headers


def test_a_schema_holds_after_a_budget(server: Talking, client: anthropic.Anthropic) -> None:
    server.says('<think>abcd........{"city": "Oslo"}')
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    asked = {"thinking": {"type": "enabled", "budget_tokens": 4}, "output_config": form}
    thinking, text = ask(client, tools=[], **asked).content
    assert thinking.thinking == "abcd"
    assert json.loads(text.text)["city"] in ("Paris", "Rome")


def test_a_budget_is_at_least_one_token(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="budget_tokens"):
        ask(client, thinking={"type": "enabled", "budget_tokens": 0})


def test_tools_count(client: anthropic.Anthropic) -> None:
    bare = client.messages.count_tokens(model="fake", messages=ASKED)
    told = client.messages.count_tokens(model="fake", messages=ASKED, tools=TOOLS)
    assert told.input_tokens > bare.input_tokens + len(json.dumps(SCHEMA)) / 2


def test_a_wrong_schema_is_named(server: Talking) -> None:
    wrong = {"name": "f", "input_schema": {"properties": {"a": {"type": "nope"}}}, "strict": True}
    body = {"model": "fake", "max_tokens": 9, "messages": ASKED, "tools": [TOOLS[0], wrong]}
    answer = server.post("/v1/messages", body)
    assert answer.status_code == 400
    assert "tools[1].input_schema cannot be served" in answer.json()["error"]["message"]
