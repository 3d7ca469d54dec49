"""What a request's fields say about the form of the answer: OpenAI's `response_format`, and the
`guided_*` fields of vLLM. One grammar comes of them, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import InvalidRequestError
from heddle.types import Grammar, GrammarKind

if TYPE_CHECKING:
    from heddle.server.schemas import GenerationRequest, ResponseFormat

_ANY_OBJECT = {"type": "object"}


def grammar_of(body: GenerationRequest) -> Grammar | None:
    """The grammar that a body asks for; it is not compiled here.

    Raises:
        InvalidRequestError: two fields ask for one, or one is not whole.
        GrammarError: it is too long.
    """
    asked = [grammar for grammar in _grammars(body) if grammar is not None]
    if len(asked) > 1:
        names = " and ".join(grammar.param.partition(".")[0] for grammar in asked)
        raise InvalidRequestError(
            f"{names} both say what the answer has to be; send one of them", param=asked[1].param
        )
    return asked[0] if asked else None


def _grammars(body: GenerationRequest) -> list[Grammar | None]:
    schema, regex, choice = body.guided_json, body.guided_regex, body.guided_choice
    lark = body.guided_grammar
    return [
        None if body.response_format is None else _of_format(body.response_format),
        None if schema is None else _of_schema(schema),
        None if regex is None else Grammar.regex(regex, "guided_regex"),
        None if choice is None else Grammar.choice(choice, "guided_choice"),
        None if lark is None else Grammar.lark(lark, "guided_grammar"),
    ]


def _of_schema(schema: dict[str, object] | str) -> Grammar:
    if isinstance(schema, str):
        return Grammar(GrammarKind.JSON_SCHEMA, schema, "guided_json")
    return Grammar.json_schema(schema, "guided_json")


def _of_format(wanted: ResponseFormat) -> Grammar | None:
    if (wanted.json_schema is not None) != (wanted.type == "json_schema"):
        raise InvalidRequestError(
            f"response_format of type {wanted.type!r} "
            + ("needs" if wanted.json_schema is None else "takes no")
            + " response_format.json_schema",
            param="response_format.json_schema",
        )
    if wanted.json_schema is not None:
        return Grammar.json_schema(wanted.json_schema.schema_, "response_format.json_schema.schema")
    return Grammar.json_schema(_ANY_OBJECT, "response_format") if wanted.type != "text" else None
