"""Finds the grammar in a body's fields.

The fields are `response_format` and `text.format` (OpenAI), `structured_outputs` (vLLM) and
`guided_*` (older versions of vLLM).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from heddle.errors import InvalidRequestError
from heddle.types import Grammar, GrammarKind

if TYPE_CHECKING:
    from heddle.server.generate.fields import (
        GenerationFields,
        ResponseFormat,
        SamplingFields,
        StructuredOutputs,
    )

_ANY_OBJECT = {"type": "object"}


def grammar_of(body: SamplingFields, form: Grammar | None) -> Grammar | None:
    """The grammar of a body: `form` or the grammar in another field. It is not compiled yet.

    Raises:
        InvalidRequestError: two fields have a grammar.
        GrammarError: the grammar is too long.
    """
    grammars = [grammar for grammar in (form, *_guided_grammars(body)) if grammar is not None]
    if len(grammars) > 1:
        names = " and ".join(grammar.param.partition(".")[0] for grammar in grammars)
        raise InvalidRequestError(
            f"{names} both constrain the answer; send one of them", param=grammars[1].param
        )
    return grammars[0] if grammars else None


def generation_grammar(body: GenerationFields) -> Grammar | None:
    """The grammar of a body of chat completions, text completions or infill.

    Raises:
        InvalidRequestError: two fields have a grammar, or a format has a missing or needless
            schema.
        GrammarError: the grammar is too long.
    """
    return grammar_of(body, _response_format(body.response_format))


def _response_format(form: ResponseFormat | None) -> Grammar | None:
    if form is None:
        return None
    schema = None if form.json_schema is None else form.json_schema.schema_
    return format_grammar("response_format", form.type, schema, "json_schema", ".schema")


def format_grammar(
    field: str, kind: str, schema: dict[str, object] | None, name: str, within: str = ""
) -> Grammar | None:
    """The grammar for the format in a field; None for text.

    Args:
        field: the field's name, for errors.
        kind: "text", "json_object" or "json_schema".
        schema: the schema of a "json_schema".
        name: the member of `field` that has the schema.
        within: the path to the schema inside of the member.

    Raises:
        InvalidRequestError: a "json_schema" has no schema, or another kind has a schema.
        GrammarError: the schema is too long.
    """
    member = f"{field}.{name}"
    if (schema is not None) != (kind == "json_schema"):
        needs = "needs" if schema is None else "cannot have"
        raise InvalidRequestError(f"{field} of type {kind!r} {needs} {member}", param=member)
    if schema is not None:
        return Grammar.json_schema(schema, member + within)
    return Grammar.json_schema(_ANY_OBJECT, field) if kind != "text" else None


def _guided_grammars(body: SamplingFields) -> list[Grammar | None]:
    schema, regex, choice = body.guided_json, body.guided_regex, body.guided_choice
    lark = body.guided_grammar
    return [
        None if body.structured_outputs is None else _structured(body.structured_outputs),
        None if schema is None else _of_schema(schema),
        None if regex is None else Grammar.regex(regex, "guided_regex"),
        None if choice is None else Grammar.choice(choice, "guided_choice"),
        None if lark is None else Grammar.lark(lark, "guided_grammar"),
    ]


def _structured(outputs: StructuredOutputs) -> Grammar:
    """The grammar in vLLM's `structured_outputs`.

    Raises:
        InvalidRequestError: the object has no grammar or several.
        GrammarError: the grammar is too long.
    """
    field = "structured_outputs"
    schema, regex, choice, lark = outputs.json_, outputs.regex, outputs.choice, outputs.grammar
    forms = {
        "json": schema is not None and partial(_of_schema, schema),
        "regex": regex is not None and partial(Grammar.regex, regex),
        "choice": choice is not None and partial(Grammar.choice, choice),
        "grammar": lark is not None and partial(Grammar.lark, lark),
        "json_object": bool(outputs.json_object) and partial(Grammar.json_schema, _ANY_OBJECT),
    }
    given = {name: make for name, make in forms.items() if make}
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise InvalidRequestError(
            f"{field} needs exactly one of {', '.join(forms)}; got {got}", param=field
        )
    [(name, make)] = given.items()
    return make(f"{field}.{name}")


def _of_schema(schema: dict[str, object] | str, param: str = "guided_json") -> Grammar:
    if isinstance(schema, str):
        return Grammar(GrammarKind.JSON_SCHEMA, schema, param)
    return Grammar.json_schema(schema, param)
