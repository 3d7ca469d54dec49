"""`--lenient`: unknown fields are ignored and named; nothing else is let through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic_core import to_json

from heddle.errors import UnsupportedParameterError
from heddle.server.generate.vendor_fields.table import CONSTRAINTS
from heddle.server.http.lenient import parse_leniently
from heddle.server.http.record import RequestRecord
from heddle.server.http.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

MESSAGE = {"role": "user", "content": "hello"}
CHAT: dict[str, Any] = {"messages": [MESSAGE], "max_tokens": 2}
NAMED = {"name": "f"}
TOOL = {"type": "function", "function": NAMED, "mood": "good"}


@pytest.fixture
def lenient(serve: Callable[..., Running]) -> Running:
    return serve(lenient=True)


def test_unknown_fields_are_named_in_the_header(lenient: Running) -> None:
    message = {"role": "user", "content": "hello", "mood": "good"}
    body = CHAT | {"foo": 1, "ba\r\nr,": [2], "messages": [message]}
    answer = lenient.post("/v1/chat/completions", body)
    assert answer.status_code == 200
    named = '299 heddle "ignored unknown parameters: mood, foo, ba??r?"'
    assert answer.headers["warning"] == named
    assert answer.json()["choices"]
    assert "warning" not in lenient.post("/v1/chat/completions", CHAT).headers


def test_a_stream_has_the_header_too(lenient: Running) -> None:
    answer = lenient.post("/v1/chat/completions", CHAT | {"foo": 1, "stream": True})
    assert answer.headers["warning"].endswith('parameters: foo"')
    assert answer.text.endswith("data: [DONE]\n\n")


def test_many_names_are_cut_short(lenient: Running) -> None:
    few = lenient.post("/v1/chat/completions", CHAT | {f"field{i}": i for i in range(900)})
    assert few.status_code == 200
    assert len(few.headers["warning"]) < 1000
    many = lenient.post("/v1/chat/completions", CHAT | {f"field{i}": i for i in range(2000)})
    assert many.headers["warning"].endswith('too many to name"')


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("/v1/chat/completions", {"n_probs": 2, "return_token_ids": True}, None),
        ("/v1/chat/completions", {"web_search_options": {}, "modalities": ["text", "audio"]}, None),
        (
            "/v1/chat/completions",
            {"messages": [MESSAGE | {"annotations": [1]}]},
            "messages.annotations",
        ),
        (
            "/v1/chat/completions",
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ("/v1/responses", {"enable_response_messages": True, "input": "a"}, None),
        ("/completion", {"stream_options": {"include_usage": True}, "prompt": "a"}, None),
    ],
)
def test_fields_that_only_add_to_an_answer_are_ignored_and_named(
    serve: Callable[..., Running], path: str, fields: dict[str, Any], named: str | None
) -> None:
    body = (CHAT if "chat" in path else {}) | fields
    assert serve().post(path, body).json()["error"]["code"] in ("unsupported_parameter", 400)
    answer = serve(lenient=True).post(path, body)
    assert answer.status_code == 200
    bare = sorted(name for name in fields if name not in ("messages", "input", "prompt"))
    assert sorted(answer.headers["x-heddle-ignored"].split(", ")) == ([named] if named else bare)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"functions": [{}]}, "functions", "unsupported_parameter"),
        ({"echo": True}, "echo", "unsupported_parameter"),
        ({"skip_special_tokens": False}, "skip_special_tokens", "unsupported_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
    ],
)
def test_known_fields_are_held_to_what_they_may_be(
    lenient: Running, fields: dict[str, Any], param: str, code: str
) -> None:
    answer = lenient.post("/v1/chat/completions", CHAT | {"foo": 1} | fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"grammar_triggers": [{"type": "word"}]}),
        pytest.param("/v1/chat/completions", {"stop_regex": "a"}, marks=pytest.mark.extensions),
        pytest.param(
            "/v1/chat/completions", {"stop_sequences": ["x"]}, marks=pytest.mark.extensions
        ),
        pytest.param("/v1/chat/completions", {"max_new_tokens": 2}, marks=pytest.mark.extensions),
        ("/v1/completions", {"tools": [{"type": "function"}]}),
        ("/v1/embeddings", {"grammar": "x"}),
        ("/v1/responses", {"response_format": {"type": "json_object"}}),
        ("/v1/responses", {"max_tokens": 4}),
        ("/v1/messages", {"stop": "x"}),
        ("/v1/messages", {"structured_outputs": {"json": {}}}),
    ],
)
def test_a_constraint_is_never_dropped(lenient: Running, path: str, fields: dict[str, Any]) -> None:
    bodies: dict[str, Any] = {"/v1/completions": {"prompt": "a"}, "/v1/responses": {"input": "a"}}
    bodies["/v1/embeddings"] = {"input": "a"}
    body = bodies.get(path, CHAT | {"model": "fake"}) | fields
    for more in ({"foo": 1}, {f"field{i}": i for i in range(2000)}):
        answer = lenient.post(path, body | more)
        assert answer.status_code == 400
        [name] = fields
        assert f"{name} is not supported by this server" in answer.json()["error"]["message"]


KNOWN = """
    grammar json_schema ebnf regex structural_tag structured_outputs
    response_format format output_format text
    guided_json guided_regex guided_choice guided_grammar
    guided_whitespace_pattern grammar_lazy grammar_triggers
    tools tool_choice parallel_tool_calls functions function_call
    stop stop_sequences stop_words stop_regex stop_token_ids stop_strings
    include_stop_str_in_output bad_words bad_words_ids allowed_token_ids
    logit_bias min_tokens ignore_eos logits_processors
    max_tokens max_completion_tokens max_output_tokens max_new_tokens
    images template n_predict truncate_prompt_tokens lora lora_path continue_final_message
"""


def leniently(body: dict[str, Any]) -> None:
    parse_leniently(to_json(body), Schema, RequestRecord(), CONSTRAINTS)


@pytest.mark.extensions
def test_the_table_has_the_constraints_of_all_vendors() -> None:
    assert set(KNOWN.split()) <= CONSTRAINTS


@pytest.mark.parametrize("name", sorted(CONSTRAINTS))
def test_every_constraint_is_refused_where_it_is_unknown(name: str) -> None:
    with pytest.raises(UnsupportedParameterError, match=f"{name} is not supported") as error:
        leniently({"mood": "good", name: "x"})
    assert error.value.param == name


def test_a_constraint_of_zero_is_refused_and_one_that_is_off_is_not() -> None:
    for value in (None, False, "", [], {}):
        leniently({"mood": "good", "max_tokens": value})
    with pytest.raises(UnsupportedParameterError, match="max_tokens is not supported"):
        leniently({"mood": "good", "max_tokens": 0})


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [*CHAT["messages"], MESSAGE | {"stop": "x"}]}),
        pytest.param(
            "/v1/chat/completions",
            {"messages": [*CHAT["messages"], MESSAGE | {"grammar": "x"}]},
            marks=pytest.mark.extensions,
        ),
        pytest.param(
            "/v1/chat/completions",
            {"tools": [TOOL | {"regex": "a"}]},
            marks=pytest.mark.extensions,
        ),
        pytest.param(
            "/v1/chat/completions",
            {"tools": [TOOL, TOOL | {"function": {"name": "f", "ebnf": "x"}}]},
            marks=pytest.mark.extensions,
        ),
        ("/v1/completions", {"structured_outputs": {"regex": "a", "ebnf": "x"}}),
        ("/v1/messages", {"messages": [MESSAGE | {"stop": "x"}]}),
        ("/v1/responses", {"text": {"format": {"type": "text"}, "regex": "a"}}),
    ],
)
def test_a_constraint_inside_of_objects_is_not_dropped(
    lenient: Running, path: str, fields: dict[str, Any]
) -> None:
    """Validation ends at the first fault of a list, here a harmless one."""
    bodies: dict[str, Any] = {"/v1/completions": {"prompt": "a"}, "/v1/responses": {"input": "a"}}
    body = bodies.get(path, CHAT | {"model": "fake"}) | {"foo": 1} | fields
    answer = lenient.post(path, body)
    assert answer.status_code == 400
    assert "is not supported by this server" in answer.json()["error"]["message"]


def test_all_unknown_fields_of_a_list_are_named(lenient: Running) -> None:
    messages = [MESSAGE | {"mood": "good"}, MESSAGE | {"weather": "fine"}]
    answer = lenient.post("/v1/chat/completions", CHAT | {"messages": messages})
    assert answer.headers["x-heddle-ignored"] == "mood, weather"


def test_an_empty_constraint_asks_for_nothing(lenient: Running) -> None:
    body = {"prompt": "a", "max_tokens": 1, "logit_bias": {}, "tools": [], "foo": 1}
    answer = lenient.post("/v1/completions", body)
    assert answer.status_code == 200
    assert answer.headers["x-heddle-ignored"] == "tools, foo"


def test_by_default_they_are_an_error(shared: Running) -> None:
    answer = shared.post("/v1/chat/completions", CHAT | {"foo": 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "foo")
