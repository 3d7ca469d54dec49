"""Fields of all vendors that constrain the answer, on the routes that have them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import templates
from talking_model import talking_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from talking_model import Talking

pytestmark = pytest.mark.extensions
ASKED = [{"role": "user", "content": "hello"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASKED},
    "/v1/completions": {"prompt": "hello", "max_tokens": 40},
    "/v1/responses": {"input": "hello"},
    "/completion": {"prompt": "hello"},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
}
JSON = '{"a":true}'
FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"grammar": 'root ::= "y" [a-e] root?'}, "yeya"),
    ({"grammar": 'start: "y" /[a-e]/ start?'}, "yeya"),
    ({"grammar": "", "json_schema": SCHEMA}, JSON),
    ({"json_schema": json.dumps(SCHEMA)}, JSON),
    ({"regex": "ye+s"}, "yees"),
    ({"ebnf": 'root ::= "yes"'}, "yes"),
    ({"guided_grammar": 'root ::= "yes"'}, "yes"),
    ({"structured_outputs": {"grammar": 'root ::= "yes"'}}, "yes"),
    ({"structured_outputs": {"structural_tag": TAG}}, f"Yes <f>{JSON}</f>"),
    ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, f"Yes <f>{JSON}</f>"),
]
FORMATS: list[tuple[dict[str, Any], str]] = [
    ({"type": "json_object", "schema": SCHEMA}, JSON),
    ({"type": "json_schema", "schema": SCHEMA}, JSON),
    (TAG, f"Yes <f>{JSON}</f>"),
    (
        {"type": "structural_tag", "format": {"type": "const_string", "value": "yes"}},
        "yes",
    ),
]


@pytest.fixture(scope="module")
def talking() -> Iterator[Talking]:
    with talking_server(templates.CHATML) as server:
        yield server


def said(answer: dict[str, Any]) -> str:
    if "content" in answer:
        return str(answer["content"])
    if "output" in answer:
        return str(answer["output"][0]["content"][0]["text"])
    choice = answer["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("fields", "text"), FIELDS)
def test_the_field_lets_the_model_say_what_it_allows(
    talking: Talking, path: str, fields: dict[str, Any], text: str
) -> None:
    talking.says(text)
    answer = talking.post(path, ROUTES[path] | fields)
    assert (answer.status_code, said(answer.json())) == (200, text)


@pytest.mark.parametrize(("fields", "text"), FIELDS)
def test_the_field_keeps_the_model_from_saying_anything_else(
    talking: Talking, fields: dict[str, Any], text: str
) -> None:
    other = "<f>no" if "<f>" in text else "No."
    talking.says(other)
    answer = talking.post("/v1/completions", ROUTES["/v1/completions"] | fields)
    assert answer.status_code == 200
    assert not said(answer.json()).startswith(other)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "fields",
    [
        {"guided_grammar": 'start: "yes"', "structured_outputs": {"grammar": 'start: "yes"'}},
        {"guided_json": {"const": "y"}, "json_schema": {"const": "y"}},
    ],
)
def test_the_same_constraint_may_have_several_names(
    talking: Talking, path: str, fields: dict[str, Any]
) -> None:
    """guidance's client of vLLM sends the names of two versions."""
    talking.says("No.")
    answer = talking.post(path, ROUTES[path] | fields)
    assert (answer.status_code, said(answer.json())[:2]) in [(200, "ye"), (200, '"y')]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
@pytest.mark.parametrize(("form", "text"), FORMATS)
def test_response_formats_of_llamacpp_and_vllm(
    talking: Talking, path: str, form: dict[str, Any], text: str
) -> None:
    for wish in (text, "<f>no"):
        talking.says(wish)
        answer = talking.post(path, ROUTES[path] | {"response_format": form})
        assert answer.status_code == 200
        assert (said(answer.json()) == wish) == (wish == text)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"grammar": "root ::= x"}, "grammar", "'x', which is not defined"),
        ({"grammar": 'root ::= "x"', "regex": "x"}, "regex", "grammar and regex both constrain"),
        (
            {"guided_regex": "x", "regex": "x", "structured_outputs": {"regex": "y"}},
            "guided_regex",
            "structured_outputs and guided_regex both constrain the answer and differ",
        ),
        ({"structured_outputs": {"structural_tag": {"type": "x"}}}, None, "must be an object of"),
        ({"structured_outputs": {"grammar": "x", "regex": "x"}}, None, "exactly one of"),
        (
            {"response_format": {"type": "text", "schema": {}}},
            "response_format.schema",
            "needs the type 'json_object'",
        ),
        (
            {"response_format": {"type": "json_object", "triggers": ["a"]}},
            "response_format.triggers",
            "cannot have response_format.triggers",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "schema": {},
                    "json_schema": {"schema": {}},
                }
            },
            "response_format.schema",
            "and no response_format.json_schema",
        ),
    ],
)
def test_what_is_refused(
    talking: Talking, fields: dict[str, Any], param: str | None, words: str
) -> None:
    answer = talking.post("/v1/chat/completions", {"messages": ASKED} | fields)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert words in error["message"]
    assert param in (None, error["param"])
