"""Tools and reasoning in chat completions, over a socket, in the form of every family of models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

import templates
from talking_model import Talking, talking_server

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKED: Any = [{"role": "user", "content": "Weather?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS: Any = [WEATHER, CLOCK]
EMPTY = {"name": "clock", "input_schema": {"type": "object"}}
PARIS = '{"city": "Paris"}'

FAMILIES = {
    "hermes": (
        templates.HERMES,
        '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>',
        '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>\n'
        '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>',
    ),
    "unknowing": (
        templates.CHATML,
        '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>',
        '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>\n'
        '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>',
    ),
    "llama": (templates.LLAMA, '<|python_tag|>{"name": "%s", "parameters": %s}', None),
    "mistral": (
        templates.MISTRAL,
        '[TOOL_CALLS][{"name": "%s", "arguments": %s}]',
        '[TOOL_CALLS][{"name": "%s", "arguments": %s}, {"name": "%s", "arguments": %s}]',
    ),
    "named": (
        templates.MISTRAL_NAMED,
        "[TOOL_CALLS]%s[ARGS]%s",
        "[TOOL_CALLS]%s[ARGS]%s[TOOL_CALLS]%s[ARGS]%s",
    ),
    "harmony": (
        templates.HARMONY,
        "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s<|call|>",
        None,
    ),
}


OF_EXTENSIONS = ("llama", "mistral", "named", "harmony")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.extensions if name in OF_EXTENSIONS else ())
        for name in FAMILIES
    ],
)
def family(request: pytest.FixtureRequest) -> Iterator[tuple[Talking, str, str | None]]:
    """A server of a family's template, and how it writes one call and two."""
    template, one, two = FAMILIES[request.param]
    with talking_server(template) as server:
        yield server, one, two


@pytest.fixture(scope="module")
def hermes() -> Iterator[Talking]:
    with talking_server(templates.HERMES) as server:
        yield server


@pytest.fixture(scope="module")
def thinking() -> Iterator[Talking]:
    with talking_server(templates.QWEN3) as server:
        yield server


def ask(server: Talking, **fields: Any) -> Any:
    options: Any = {"model": "fake", "messages": ASKED, "seed": 0, "max_tokens": 600}
    return server.openai.chat.completions.create(**(options | fields))


def called(choice: Any) -> list[tuple[str, str]]:
    calls = choice.message.tool_calls or ()
    return [(call.function.name, call.function.arguments) for call in calls]


def gathered(chunks: Any) -> tuple[str, str, list[tuple[str, str]], str]:
    """Content, reasoning, calls and finish reason of a stream of one choice."""
    content, reasoning, finish = "", "", None
    calls: list[list[str]] = []
    ids = set()
    for chunk in chunks:
        [choice] = chunk.choices
        content += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", "") or ""
        for call in choice.delta.tool_calls or ():
            if call.index == len(calls):
                assert call.type == "function"
                ids.add(call.id)
                calls.append([call.function.name, ""])
            else:
                assert (call.id, call.function.name) == (None, None)
            calls[call.index][1] += call.function.arguments
        finish = choice.finish_reason or finish
    assert len(ids) == len(calls)
    assert finish is not None
    return content, reasoning, [(name, arguments) for name, arguments in calls], finish


def test_a_call(family: Any) -> None:
    server, one, _ = family
    server.says(one % ("get_weather", PARIS))
    answer = ask(server, tools=TOOLS)
    [choice] = answer.choices
    assert called(choice) == [("get_weather", PARIS)]
    assert choice.message.content is None
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert call.id.startswith("call_")
    assert answer.usage.completion_tokens > 5
    assert "get_weather" in server.prompt
    assert "Tells the weather." in server.prompt


def test_a_call_as_a_stream(family: Any) -> None:
    server, one, _ = family
    server.says(one % ("get_weather", PARIS))
    chunks = list(ask(server, tools=TOOLS, stream=True))
    assert gathered(chunks) == ("", "", [("get_weather", PARIS)], "tool_calls")
    pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert len(pieces) > 5, "arguments come as they are written"


def test_several_calls(family: Any) -> None:
    server, _, two = family
    if two is None:
        return  # the family has none
    server.says(two % ("get_weather", PARIS, "clock", "{}"))
    expected = [("get_weather", PARIS), ("clock", "{}")]
    assert called(ask(server, tools=TOOLS).choices[0]) == expected
    assert gathered(ask(server, tools=TOOLS, stream=True))[2] == expected
    single = ask(server, tools=TOOLS, parallel_tool_calls=False).choices[0]
    assert called(single) == expected[:1]


def test_a_function_that_is_named_is_called_once(family: Any) -> None:
    server, _, two = family
    if two is None:
        return  # the family has no way to write two calls
    server.says(two % ("clock", "{}", "clock", "{}"))
    [choice] = ask(server, tools=TOOLS, tool_choice=CLOCK).choices
    assert (called(choice), choice.finish_reason) == ([("clock", "{}")], "tool_calls")
    [choice] = ask(server, tools=TOOLS, tool_choice="required").choices
    assert called(choice) == [("clock", "{}")] * 2


def test_words_instead_of_a_call(family: Any) -> None:
    server, _, _ = family
    server.says(" It is warm. \n")
    [choice] = ask(server, tools=TOOLS).choices
    assert (choice.message.content, choice.finish_reason) == (" It is warm. \n", "stop")
    assert choice.message.tool_calls is None
    assert gathered(ask(server, tools=TOOLS, stream=True)) == (" It is warm. \n", "", [], "stop")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "clock"}}]
)
def test_a_call_is_enforced(family: Any, choice: Any, stream: bool) -> None:
    server, _, _ = family
    server.says("I would rather not.")
    answer = ask(server, tools=TOOLS, tool_choice=choice, stream=stream, parallel_tool_calls=False)
    if stream:
        content, _, calls, finish = gathered(answer)
    else:
        [made] = answer.choices
        content, calls, finish = made.message.content or "", called(made), made.finish_reason
    assert (content, finish) == ("", "tool_calls")
    [(name, arguments)] = calls
    if choice != "required":
        assert name == "clock"
    if name == "get_weather":
        assert json.loads(arguments)["city"] in ("Paris", "Rome")
    else:
        assert isinstance(json.loads(arguments), dict)


def allowed(mode: str, *names: str) -> Any:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_functions_are_called(family: Any, mode: str) -> None:
    server, one, two = family
    server.says(one % ("get_weather", PARIS))
    [choice] = ask(server, tools=TOOLS, tool_choice=allowed(mode, "clock")).choices
    assert {name for name, _ in called(choice)} <= {"clock"}
    assert called(choice) or mode == "auto"
    assert "Tells the weather." in server.prompt, "the prompt has all functions"
    [choice] = ask(server, tools=TOOLS, tool_choice=allowed(mode, "clock", "get_weather")).choices
    assert called(choice) == [("get_weather", PARIS)]
    if two is not None:
        server.says(two % ("clock", "{}", "clock", "{}"))
        [choice] = ask(server, tools=TOOLS, tool_choice=allowed(mode, "clock")).choices
        assert called(choice) == [("clock", "{}")] * 2


def test_words_are_allowed_beside_allowed_functions_unless_a_call_is_required(family: Any) -> None:
    server, _, _ = family
    server.says("It is warm.")
    [choice] = ask(server, tools=TOOLS, tool_choice=allowed("auto", "clock")).choices
    assert (choice.message.content, called(choice)) == ("It is warm.", [])
    [choice] = ask(server, tools=TOOLS, tool_choice=allowed("required", "clock")).choices
    assert "clock" in {name for name, _ in called(choice)}


def test_no_call_is_made_where_none_is_wanted(family: Any) -> None:
    server, one, _ = family
    server.says(one % ("clock", "{}"))
    [choice] = ask(server, tools=TOOLS, tool_choice="none").choices
    assert choice.message.tool_calls is None
    assert '"clock"' in choice.message.content or choice.message.content in ("clock{}", "{}")
    assert choice.finish_reason == "stop"
    assert "Tells the weather." not in server.prompt


def test_a_call_is_held_to_json_once_it_has_begun(family: Any) -> None:
    server, one, _ = family
    server.says(one % ("get_weather", '{"city": , "x": 3'))
    [choice] = ask(server, tools=TOOLS).choices
    [(name, arguments)] = called(choice)
    assert name == "get_weather"
    assert isinstance(json.loads(arguments), dict)


def test_strict_arguments_follow_their_schema(family: Any) -> None:
    server, one, _ = family
    server.says(one % ("get_weather", '{"city": "Berlin", "unit": "K"}'))
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    for _, arguments in called(ask(server, tools=[strict]).choices[0]):
        assert json.loads(arguments)["city"] in ("Paris", "Rome")
        assert json.loads(arguments).keys() <= {"city", "days"}
    [(_, arguments)] = called(ask(server, tools=TOOLS).choices[0])
    assert arguments == '{"city": "Berlin", "unit": "K"}'


def test_what_was_called_before_is_told(family: Any) -> None:
    server, _, _ = family
    server.says("Warm.")
    calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": arguments},
        }
        for number, arguments in enumerate([PARIS, "no json"])
    ]
    history = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_0", "content": "20 degrees"},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "none"}]},
    ]
    assert ask(server, messages=history, tools=TOOLS).choices[0].message.content == "Warm."
    assert PARIS in server.prompt
    assert '"no json"' in server.prompt
    assert server.prompt.index(PARIS) < server.prompt.index("20 degrees")


@pytest.mark.parametrize("arguments", ["[" * 3000, '{"a": NaN}', '{"a": %s}' % ("9" * 2000), ""])
def test_strange_arguments_of_earlier_calls_do_no_harm(hermes: Talking, arguments: str) -> None:
    hermes.says("Warm.")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    history = [{"role": "assistant", "tool_calls": [call]}, *ASKED]
    assert ask(hermes, messages=history).choices[0].message.content == "Warm."


def test_a_model_that_knows_no_tools_is_told(hermes: Talking) -> None:
    with talking_server(templates.CHATML) as server:
        server.says("x")
        system = {"role": "system", "content": "Be brief."}
        ask(server, messages=[system, *ASKED], tools=[CLOCK])
        assert server.prompt.startswith("<|im_start|>system\nBe brief.\n\n# Functions\n")
        assert '{"type": "function", "function": {"name": "clock", "parameters"' in server.prompt
        ask(server, messages=ASKED, tools=[CLOCK])
        assert server.prompt.startswith("<|im_start|>system\n# Functions\n")
        results = [
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
        ]
        ask(server, messages=[*ASKED, *results])
        told = "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
        assert f"<|im_start|>user\n{told}<|im_end|>" in server.prompt
        assert "Functions" not in server.prompt


def test_choices_have_calls_of_their_own(hermes: Talking) -> None:
    call = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    hermes.says(call, "Words.", f"Both. {call}")
    choices = ask(hermes, tools=TOOLS, n=3).choices
    assert [choice.message.content for choice in choices] == [None, "Words.", "Both."]
    assert [bool(choice.message.tool_calls) for choice in choices] == [True, False, True]
    assert [choice.finish_reason for choice in choices] == ["tool_calls", "stop", "tool_calls"]
    finishes = {}
    for chunk in ask(hermes, tools=TOOLS, n=3, stream=True):
        [choice] = chunk.choices
        finishes[choice.index] = choice.finish_reason
    assert finishes == {0: "tool_calls", 1: "stop", 2: "tool_calls"}


def test_a_call_that_is_cut_off_says_so(hermes: Talking) -> None:
    hermes.says('<tool_call>\n{"name": "clock", "arguments": {"a": "bcdefg"}}\n</tool_call>')
    [choice] = ask(hermes, tools=TOOLS, max_tokens=45).choices
    assert choice.finish_reason == "length"
    [(name, arguments)] = called(choice)
    assert name == "clock"
    assert '{"a": "bcdefg"}'.startswith(arguments)


@pytest.mark.parametrize(
    ("path", "fields", "most"),
    [
        ("/v1/chat/completions", {"messages": ASKED, "tools": [CLOCK]}, "max_tokens"),
        ("/v1/messages", {"messages": ASKED, "tools": [EMPTY]}, "max_tokens"),
        (
            "/v1/responses",
            {"input": "Weather?", "tools": [{"type": "function", "name": "clock"}]},
            "max_output_tokens",
        ),
    ],
)
def test_half_a_mark_is_not_told(hermes: Talking, path: str, fields: Any, most: str) -> None:
    said = "Well, <tool_ca"
    hermes.says(said + "t>")
    body = {"model": "fake", "temperature": 0, "seed": 0, most: len(said)} | fields
    for stream in (False, True):
        answer = hermes.post(path, body | {"stream": stream})
        assert answer.status_code == 200
        assert stream or "Well," in answer.text
        assert "<tool_ca" not in answer.text
    hermes.says(said)  # and that is all
    assert said in hermes.post(path, body | {most: len(said) + 1}).text


def test_a_stop_string_ends_an_answer_with_calls(hermes: Talking) -> None:
    hermes.says('Hm <tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>')
    [choice] = ask(hermes, tools=TOOLS, stop="</tool_call>").choices
    assert (called(choice), choice.finish_reason) == ([("clock", "{}")], "tool_calls")
    [choice] = ask(hermes, tools=TOOLS, stop="m").choices
    assert (choice.message.content, choice.finish_reason) == ("H", "stop")


def test_every_token_has_its_logprob(hermes: Talking) -> None:
    hermes.says('Hm <tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>')
    whole = ask(hermes, tools=TOOLS, logprobs=True)
    told = whole.choices[0].logprobs.content
    assert len(told) == whole.usage.completion_tokens
    streamed = [
        token.token
        for chunk in ask(hermes, tools=TOOLS, logprobs=True, stream=True)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    assert streamed == [token.token for token in told]


def test_an_answer_may_be_json_or_a_call(hermes: Talking) -> None:
    form = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object", "required": ["ok"]}},
    }
    hermes.says('<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>')
    assert called(ask(hermes, tools=TOOLS, response_format=form).choices[0]) == [("clock", "{}")]
    hermes.says('{"ok": 1}')
    [choice] = ask(hermes, tools=TOOLS, response_format=form).choices
    assert (choice.message.content, choice.finish_reason) == ('{"ok": 1}', "stop")


NESTED = {
    "type": "object",
    "properties": {"colour": {"$ref": "#/$defs/Colour"}},
    "required": ["colour"],
    "$defs": {"Colour": {"enum": ["red"]}},
}


def test_a_schema_beside_tools_may_refer_to_its_parts(hermes: Talking) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": NESTED}}
    hermes.says('{"colour": "blue"}')
    [choice] = ask(hermes, tools=TOOLS, response_format=form).choices
    assert json.loads(choice.message.content) == {"colour": "red"}


def test_a_schema_after_reasoning_may_refer_to_its_parts(thinking: Talking) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": NESTED}}
    thinking.says('<think>Hm.</think>{"colour": "blue"}')
    message = ask(thinking, response_format=form).choices[0].message
    assert (json.loads(message.content), message.reasoning_content) == ({"colour": "red"}, "Hm.")


# --- reasoning


def test_reasoning(thinking: Talking) -> None:
    thinking.says("<think>\nLet me see.\n</think>\n\nYes.")
    message = ask(thinking).choices[0].message
    assert (message.content, message.reasoning_content) == ("Yes.", "Let me see.")
    assert gathered(ask(thinking, stream=True)) == ("Yes.", "Let me see.", [], "stop")


@pytest.mark.parametrize(
    "name", ["thinking_token_budget", "thinking_budget_tokens", "thinking_budget"]
)
def test_a_budget_of_reasoning(thinking: Talking, name: str) -> None:
    """The closing mark has eight tokens here. They replace what the model would say."""
    said = "<think>abcd........Yes."
    thinking.says(said)
    message = ask(thinking, extra_body={"seed": 0, name: 4}).choices[0].message
    assert (message.content, message.reasoning_content) == ("Yes.", "abcd")
    streamed = ask(thinking, stream=True, extra_body={"seed": 0, name: 4})
    assert gathered(streamed) == ("Yes.", "abcd", [], "stop")
    thinking.says("<think>........Yes.")
    message = ask(thinking, extra_body={"seed": 0, name: 0}).choices[0].message
    assert (message.content, message.model_extra) == ("Yes.", {})
    thinking.says(said)
    message = ask(thinking, extra_body={"seed": 0, name: -1}).choices[0].message
    assert message.reasoning_content == "abcd........Yes."


def test_two_budgets_that_differ(thinking: Talking) -> None:
    body = {"thinking_token_budget": 4, "thinking_budget_tokens": 5}
    with pytest.raises(openai.BadRequestError, match="differ; send one"):
        ask(thinking, extra_body=body)


def test_tokens_of_reasoning_are_counted(thinking: Talking) -> None:
    said = "<think>\nLet me see.\n</think>\n\nYes."
    thinking.says(said)
    usage = ask(thinking, n=2).usage
    counted = usage.completion_tokens_details.reasoning_tokens
    assert 2 * len("Let me see.") <= counted <= 2 * len("<think>\nLet me see.\n</think>\n")
    *_, last = ask(thinking, n=2, stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens_details == usage.completion_tokens_details
    thinking.says("Yes.")
    assert ask(thinking).usage.completion_tokens_details.reasoning_tokens == 0


def test_reasoning_before_a_call(thinking: Talking) -> None:
    thinking.says('<think>A <tool_call>?</think><tool_call>{"name": "clock"}</tool_call>')
    [choice] = ask(thinking, tools=TOOLS).choices
    assert choice.message.reasoning_content == "A <tool_call>?"
    assert [name for name, _ in called(choice)] == ["clock"]


@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_before_what_is_enforced(opened: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [7]}}}
    with talking_server(templates.THINKING if opened else templates.QWEN3) as server:
        thoughts = "Hm.</think>" if opened else "<think>Hm.</think>"
        server.says(f"{thoughts}I will not.")
        [choice] = ask(server, tools=TOOLS, tool_choice="required").choices
        assert choice.message.reasoning_content == "Hm."
        assert choice.finish_reason == "tool_calls"
        message = ask(server, response_format=form).choices[0].message
        assert (message.reasoning_content, message.content.strip()) == ("Hm.", "7")


def test_variables_reach_the_template(thinking: Talking) -> None:
    thinking.says("Yes.")
    message = (
        ask(thinking, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
        .choices[0]
        .message
    )
    assert thinking.prompt.endswith("<think>\n\n</think>\n\n")
    assert message.content == "Yes."
    assert not hasattr(message, "reasoning_content")


def test_a_prompt_that_opens_the_reasoning() -> None:
    with talking_server(templates.THINKING) as server:
        server.says("Let me see.\n</think>\nYes.")
        assert gathered(ask(server, stream=True)) == ("Yes.", "Let me see.", [], "stop")
        begun = {"role": "assistant", "content": "<think>\nWell, "}
        message = (
            ask(
                server,
                messages=[*ASKED, begun],
                extra_body={"continue_final_message": True},
            )
            .choices[0]
            .message
        )
        assert server.prompt.endswith("<think>\nWell, ")
        assert message.reasoning_content == "Let me see."


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "clock"}}]
)
def test_a_call_that_has_to_be_made_has_no_part_in_the_form_of_a_text(
    hermes: Talking, choice: Any
) -> None:
    hermes.says('<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>')
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 1}}}
    [answer] = ask(hermes, tools=TOOLS, tool_choice=choice, response_format=form).choices
    assert called(answer) == [("clock", "{}")]


CUT: Any = {"role": "assistant", "content": None, "reasoning_content": "Let me see,"}


@pytest.mark.parametrize("template", [templates.QWEN3, templates.THINKING])
def test_reasoning_that_was_cut_goes_on(template: str) -> None:
    with talking_server(template) as server:
        server.says(" or not.\n</think>\nYes.")
        goes_on: Any = {"messages": [*ASKED, CUT], "extra_body": {"continue_final_message": True}}
        assert gathered(ask(server, stream=True, **goes_on)) == ("Yes.", " or not.", [], "stop")
        opened = "<think>\n" if template == templates.THINKING else "<think>"
        assert server.prompt.endswith(f"assistant\n{opened}Let me see,")
        answer = ask(server, **goes_on)
        [choice] = answer.choices
        assert (choice.message.content, choice.message.reasoning_content) == ("Yes.", " or not.")
        assert answer.usage.completion_tokens_details.reasoning_tokens == len(" or not.")
        goes_on["messages"] = [*ASKED, CUT | {"content": "Y"}]
        ask(server, **goes_on)
        assert server.prompt.endswith("assistant\nY")


def test_reasoning_that_was_cut_goes_on_to_a_call_and_to_a_bound(thinking: Talking) -> None:
    goes_on: Any = {"messages": [*ASKED, CUT]}
    more: Any = {"continue_final_message": True}
    thinking.says(' I call.</think><tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>')
    [choice] = ask(thinking, **goes_on, tools=TOOLS, extra_body=more).choices
    assert (choice.message.reasoning_content, called(choice)) == (" I call.", [("clock", "{}")])
    thinking.says(" abcdef")
    [choice] = ask(thinking, **goes_on, extra_body=more | {"thinking_token_budget": 3}).choices
    assert choice.message.reasoning_content == " ab"


def test_reasoning_goes_on_only_where_the_template_marks_it(hermes: Talking) -> None:
    with pytest.raises(openai.BadRequestError, match="shows no marks of reasoning") as refused:
        ask(hermes, messages=[*ASKED, CUT], extra_body={"continue_final_message": True})
    assert refused.value.param == "messages"


def test_reasoning_in_control_tokens() -> None:
    template = templates.CHATML + "{# [THINK][/THINK] #}"
    with talking_server(template) as server:
        server.says("[THINK]Hm.[/THINK]Yes.")
        message = ask(server).choices[0].message
        assert (message.content, message.reasoning_content) == ("Yes.", "Hm.")


def test_reasoning_of_earlier_answers_is_accepted(thinking: Talking) -> None:
    thinking.says("Yes.")
    earlier = {"role": "assistant", "content": "No.", "reasoning_content": "Hm."}
    assert ask(thinking, messages=[*ASKED, earlier, *ASKED]).choices[0].message.content == "Yes."


# --- what is refused


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f"} | fields}


SCHEMA = "tools[0].function.parameters"


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"tools": [function(name="a b")]}, "tools[0].function.name", "'a b'"),
        ({"tools": [function(name="")]}, "tools[0].function.name", "''"),
        ({"tools": [{"type": "code"}]}, "tools[0].type", "'code'"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
        ({"tools": [function(extra=1)]}, "tools[0].function.extra", "unknown"),
        ({"tools": [function(), function()]}, "tools", "two functions"),
        ({"tools": [function(parameters={"type": "string"})]}, SCHEMA, "'object'"),
        ({"tools": [function(parameters=[])]}, SCHEMA, "[]"),
        (
            {"tools": [CLOCK, function(parameters={"$ref": "#/no"}, strict=True)]},
            "tools[1].function.parameters",
            "cannot be served",
        ),
        (
            {
                "tools": [function(parameters={"properties": {"a": {"type": "nope"}}})],
                "tool_choice": "required",
            },
            SCHEMA,
            "nope",
        ),
        (
            {"tools": [function(parameters={"enum": ["x" * 140_000]}, strict=True)]},
            SCHEMA,
            "131,072",
        ),
        ({"tool_choice": "required"}, "tool_choice", "tools is missing or empty"),
        ({"tool_choice": "any"}, "tool_choice", "'any'"),
        ({"tool_choice": 3}, "tool_choice", "names a function"),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "'g'",
        ),
        (
            {
                "tools": [CLOCK],
                "tool_choice": "required",
                "guided_json": {"type": "object"},
            },
            "guided_json",
            "tools",
        ),
        ({"tools": [CLOCK], "guided_regex": "a"}, "guided_regex", "tools"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "'messages'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": "x",
                        "tool_calls": [
                            {
                                "id": "1",
                                "type": "function",
                                "function": {"name": "f", "arguments": "{}"},
                            }
                        ],
                    }
                ]
            },
            "messages[0].tool_calls",
            "'assistant'",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
            "messages[0].tool_calls[0].type",
            "missing",
        ),
    ],
)
def test_what_is_refused(hermes: Talking, fields: dict[str, Any], param: str, said: str) -> None:
    for stream in (False, True):
        body = {"messages": ASKED, "stream": stream} | fields
        response = hermes.post("/v1/chat/completions", body)
        error = response.json()["error"]
        assert response.status_code == 400
        assert error["param"] == param
        assert said in error["message"]


@pytest.mark.extensions
def test_templates_can_be_looked_at_with_tools(hermes: Talking) -> None:
    body = {"messages": ASKED, "tools": [CLOCK]}
    prompt = hermes.post("/apply_template", body).json()["prompt"]
    assert '"name": "clock"' in prompt
    counted = hermes.post("/tokenize", body).json()["count"]
    assert counted > hermes.post("/tokenize", {"messages": ASKED}).json()["count"]
