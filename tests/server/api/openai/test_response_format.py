"""`response_format` and `guided_*` over HTTP, on a model that can only say letters."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from llguidance import LLTokenizer

from heddle.text.constrained.grammar import GrammarCompiler
from patience import PATIENCE

if TYPE_CHECKING:
    from fake_server import Running
    from heddle.grammars import Grammar

CHAT = {"messages": [{"role": "user", "content": "hello"}], "seed": 1}
SCHEMA = "response_format.json_schema.schema"
LETTER_STRING = 'start: "a" (/[b-f]/)+ "z"'
NULL = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"const": None}},
    }
}
"""Asks for the text `null`."""


def chat(server: Running, **fields: Any) -> Any:
    response = server.post("/v1/chat/completions", CHAT | fields)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[a-c]{5}-[x-z]{3}"}, "[a-c]{5}-[x-z]{3}"),
        ({"guided_choice": ["tea", "ten"]}, "tea|ten"),
        ({"guided_grammar": LETTER_STRING}, "a[b-f]+z"),
        ({"guided_json": {"const": None}}, "null"),
        ({"guided_json": '{"enum": [true, false]}'}, "true|false"),
        ({"structured_outputs": {"regex": "[a-c]{5}"}}, "[a-c]{5}"),
        ({"structured_outputs": {"choice": ["tea", "ten"]}}, "tea|ten"),
        ({"structured_outputs": {"grammar": LETTER_STRING}}, "a[b-f]+z"),
        ({"structured_outputs": {"json": {"const": None}, "regex": None}}, "null"),
        ({"structured_outputs": {"json": '{"enum": [true, false]}'}}, "true|false"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": {"type": "boolean"}},
                }
            },
            "true|false",
        ),
    ],
)
def test_every_choice_is_what_was_asked_for(
    shared: Running, fields: dict[str, Any], pattern: str
) -> None:
    choices = chat(shared, n=4, **fields)["choices"]
    assert len(choices) == 4
    for choice in choices:
        assert re.fullmatch(pattern, choice["message"]["content"])
        assert choice["finish_reason"] == "stop"


@pytest.mark.extensions
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"structured_outputs": {}}, "got none"),
        ({"structured_outputs": {"json_object": False}}, "got none"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "got regex and choice"),
        (
            {"structured_outputs": {"regex": "a"}, "guided_regex": "b"},
            "structured_outputs and guided_regex both constrain",
        ),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern is not supported",
        ),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"patterns": []}}, "structured_outputs.patterns"),
    ],
)
def test_structured_outputs_hold_exactly_one_form(
    shared: Running, fields: dict[str, Any], said: str
) -> None:
    answer = shared.post("/v1/chat/completions", CHAT | fields)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


@pytest.mark.extensions
def test_structured_outputs_by_openais_client(shared: Running) -> None:
    answer = shared.openai.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "hello"}],
        extra_body={"structured_outputs": {"choice": ["tea"]}},
    )
    assert answer.choices[0].message.content == "tea"


def test_a_completion_takes_it_too(shared: Running) -> None:
    body = {"prompt": "hello", "max_tokens": 9} | NULL
    assert shared.post("/v1/completions", body).json()["choices"][0]["text"] == "null"


@pytest.mark.extensions
def test_the_best_of_some(shared: Running) -> None:
    body = {"prompt": "hello", "guided_regex": "[a-m]{4}", "n": 2, "best_of": 5, "seed": 1}
    choices = shared.post("/v1/completions", body).json()["choices"]
    assert len(choices) == 2
    assert all(re.fullmatch("[a-m]{4}", choice["text"]) for choice in choices)


def test_nobody_waits_while_a_grammar_is_compiled(shared: Running, monkeypatch: Any) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    original = GrammarCompiler._compile

    def slow(compiler: GrammarCompiler, grammar: Grammar) -> Any:
        begun.set()
        assert may_go_on.wait(PATIENCE)
        return original(compiler, grammar)

    compiler = GrammarCompiler(shared.engine.model.tokenizer)
    monkeypatch.setattr(compiler, "_compile_cached", partial(slow, compiler))
    monkeypatch.setattr(shared.engine.model.tokenizer, "grammars", compiler)
    with ThreadPoolExecutor(1) as pool:
        shaped = pool.submit(chat, shared, **NULL)
        try:
            assert begun.wait(PATIENCE)
            assert chat(shared, max_tokens=3)["choices"]
            assert shared.get("/health").status_code == 200
        finally:
            may_go_on.set()
        assert shaped.result()["choices"][0]["message"]["content"] == "null"


def test_what_all_grammars_share_is_made_before_a_server_serves(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llguidance holds the GIL while it is made, so every stream would stand still."""
    made: list[object] = []

    def make(*arguments: Any, **named: Any) -> LLTokenizer:
        made.append(arguments)
        return LLTokenizer(*arguments, **named)

    monkeypatch.setattr("heddle.text.constrained.grammar.LLTokenizer", make)
    server = serve()
    assert len(made) == 1
    chat(server, **NULL)
    assert len(made) == 1


def test_a_stream(shared: Running) -> None:
    chunks = list(
        shared.openai.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            extra_body=NULL,
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "null"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_text_asks_for_nothing(shared: Running) -> None:
    plain = chat(shared, max_tokens=9)
    shaped = chat(shared, max_tokens=9, response_format={"type": "text"})
    assert plain["choices"] == shaped["choices"]


def test_max_tokens_cuts_it_off(shared: Running) -> None:
    choice = chat(shared, **NULL, max_tokens=3)["choices"][0]
    assert choice["message"]["content"] == "nul"
    assert choice["finish_reason"] == "length"


@pytest.mark.slow
def test_what_would_take_minutes_to_compile_is_refused(serve: Any) -> None:
    patterns = [{"type": "string", "pattern": f"^(a|b)*a(a|b){{{i}}}"} for i in range(40)]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"allOf": patterns}}}
    response = serve().post("/v1/chat/completions", CHAT | {"response_format": form})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == SCHEMA


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_regex": "A"}, "guided_regex"),  # none of its tokens has that letter
        ({"guided_regex": "a{4000000000}"}, "guided_regex"),
        ({"guided_regex": "a" * 131_073}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice[0]"),
        ({"guided_grammar": "start: nowhere"}, "guided_grammar"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": {"type": "nope"}}, "guided_json"),
        ({"guided_json": {"enum": ["x" * 140_000]}}, "guided_json"),
        ({"response_format": {"type": "json_object"}}, "response_format"),  # it has no braces
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_object", "json_schema": {"schema": {}}}},
            "response_format.json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            SCHEMA,
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"minimum": 2, "maximum": 1, "type": "integer"}},
                }
            },
            SCHEMA,
        ),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": "a", "min_tokens": 1}, "min_tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refused_before_anything_is_answered(
    shared: Running, fields: dict[str, Any], param: str, stream: bool
) -> None:
    response = shared.post("/v1/chat/completions", CHAT | fields | {"stream": stream})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.split("[", maxsplit=1)[0] in error["message"]
