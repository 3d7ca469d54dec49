"""Schemas are closed in every API, unless the request or the server says otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from heddle.engine import Engine
from heddle.errors import GrammarError
from heddle.text.constrained.grammar import GrammarCompiler

if TYPE_CHECKING:
    from fake_server import Running
    from heddle.grammars import Grammar

SCHEMA = {"type": "object", "properties": {"a": {"type": "null"}}}
ASKED = {"messages": [{"role": "user", "content": "hello"}]}
FUNCTION = {"name": "f", "parameters": SCHEMA}
FORM = {"type": "json_schema", "schema": SCHEMA}


def asking(schema: dict[str, Any]) -> dict[str, Any]:
    """A completion that must be JSON of this schema."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"prompt": "x", "response_format": form}


CLOSED = '"additionalProperties":false'

BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "x", "guided_json": SCHEMA}),
    ("/v1/completions", {"prompt": "x", "guided_json": str(SCHEMA).replace("'", '"')}),
    (
        "/v1/chat/completions",
        {
            **ASKED,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            },
        },
    ),
    (
        "/v1/chat/completions",
        {
            **ASKED,
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": "required",
        },
    ),
    (
        "/v1/chat/completions",
        {**ASKED, "tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}]},
    ),
    ("/v1/responses", {"input": "x", "text": {"format": {**FORM, "name": "x"}}}),
    (
        "/v1/responses",
        {
            "input": "x",
            "tools": [{"type": "function", **FUNCTION, "strict": False}],
            "tool_choice": "required",
        },
    ),
    (
        "/v1/messages",
        {**ASKED, "model": "tiny", "max_tokens": 9, "output_config": {"format": FORM}},
    ),
    (
        "/v1/messages",
        {
            **ASKED,
            "model": "tiny",
            "max_tokens": 9,
            "tools": [{"name": "f", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any"},
        },
    ),
]


@pytest.fixture
def asked(monkeypatch: Any) -> list[str]:
    """Collects the grammars to compile; none of them is compiled."""
    texts: list[str] = []

    def compile_none(compiler: GrammarCompiler, grammar: Grammar) -> None:
        texts.append(grammar.text.replace(": ", ":").replace(", ", ","))
        raise GrammarError("seen")

    monkeypatch.setattr(GrammarCompiler, "compile", compile_none)
    monkeypatch.setattr(Engine, "check_length", lambda *_, **__: None)  # tools are long prompts
    return texts


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_every_schema_is_closed_unless_the_request_opens_it(
    shared: Running, asked: list[str], path: str, body: dict[str, Any]
) -> None:
    if "model" in body:
        body = body | {"model": shared.engine.model.info.id}
    assert shared.post(path, body).json()["error"]["message"] == "seen"
    assert CLOSED in asked[0]
    asked.clear()
    assert shared.post(path, body | {"open_schemas": True}).status_code == 400
    assert CLOSED not in asked[0]


def test_a_server_may_open_them_and_a_request_close_them(serve: Any, asked: list[str]) -> None:
    server = serve(open_schemas=True)
    body = asking(SCHEMA)
    server.post("/v1/completions", body)
    server.post("/v1/completions", body | {"open_schemas": False})
    assert [CLOSED in text for text in asked] == [False, True]


@pytest.mark.parametrize("is_open", [True, False])
def test_integers_end_and_references_are_found_in_open_schemas_too(
    shared: Running, asked: list[str], is_open: bool
) -> None:
    """A small model wrote digits until it was cut; LiteLLM's references were a 400."""
    schema = {"properties": {"n": {"$ref": "/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    shared.post("/v1/completions", asking(schema) | {"open_schemas": is_open})
    assert '"maximum":9007199254740991' in asked[0]
    assert '"$ref":"#/$defs/n"' in asked[0]
