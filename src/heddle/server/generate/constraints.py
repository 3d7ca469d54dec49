"""Finds the grammar in a body's fields.

The fields are `response_format` and `text.format` (OpenAI), `structured_outputs` and `guided_*`
(vLLM), `grammar` and `json_schema` (llama.cpp), and `regex` and `ebnf` (SGLang).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heddle.errors import InvalidRequestError
from heddle.grammars import Grammar, GrammarKind
from heddle.text.constrained.gbnf.syntax import is_gbnf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle.server.generate.fields import (
        GenerationFields,
        ResponseFormat,
        SamplingFields,
        StructuredOutputs,
    )

_ANY_OBJECT = {"type": "object"}


def grammar_of(body: SamplingFields, form: Grammar | None) -> Grammar | None:
    """The grammar of a body: `form` or the grammar in another field. It is not compiled yet.

    Clients of several versions of vLLM send the same grammar under its old and its new name.

    Raises:
        InvalidRequestError: two fields have different grammars.
        GrammarError: the grammar is too long.
    """
    grammars = [*([] if form is None else [form]), *_guided_grammars(body)]
    for other in grammars[1:]:
        if replace(other, param=grammars[0].param) != grammars[0]:
            first, second = (one.param.partition(".")[0] for one in (grammars[0], other))
            raise InvalidRequestError(
                f"{first} and {second} both constrain the answer and differ; send one of them",
                param=other.param,
            )
    return grammars[0] if grammars else None


def generation_grammar(body: GenerationFields) -> Grammar | None:
    """The grammar of a body of chat completions, text completions or infill.

    Raises:
        InvalidRequestError: two fields have different grammars, or a format has a missing or
            needless schema.
        GrammarError: the grammar is too long.
    """
    return grammar_of(body, _response_format(body.response_format))


def _response_format(form: ResponseFormat | None) -> Grammar | None:
    """The grammar of `response_format`, also with llama.cpp's `schema` beside its type.

    Raises:
        InvalidRequestError: the format lacks a field of its type, or has another type's field.
    """
    if form is None:
        return None
    field = "response_format"
    if form.type == "structural_tag":
        tag = form.model_dump(exclude_none=True, by_alias=True)
        return Grammar.structural_tag(tag, field)
    for name in ("structures", "triggers", "format", "at_least_one"):
        if getattr(form, name) is not None:
            raise InvalidRequestError(
                f"{field} of type {form.type!r} cannot have {field}.{name}", param=f"{field}.{name}"
            )
    if form.schema_ is not None and form.type != "text" and form.json_schema is None:
        return Grammar.json_schema(form.schema_, f"{field}.schema")
    if form.schema_ is not None:
        raise InvalidRequestError(
            f"{field}.schema needs the type 'json_object' or 'json_schema', and no"
            f" {field}.json_schema",
            param=f"{field}.schema",
        )
    schema = None if form.json_schema is None else form.json_schema.schema_
    return format_grammar(field, form.type, schema, "json_schema", ".schema")


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


def _guided_grammars(body: SamplingFields) -> list[Grammar]:
    """The grammars in the fields that hold nothing else. An empty `grammar` is none."""
    outputs = body.structured_outputs
    found = [] if outputs is None else [_structured(outputs)]
    for name, make in _FIELDS.items():
        value = getattr(body, name)
        if value is not None and (value or name != "grammar"):
            found.append(make(value, name))
    return found


def _structured(outputs: StructuredOutputs) -> Grammar:
    """The grammar in vLLM's `structured_outputs`.

    Raises:
        InvalidRequestError: the object has no grammar or several.
        GrammarError: the grammar is too long.
    """
    field = "structured_outputs"
    forms: dict[str, tuple[Any, Callable[[Any, str], Grammar]]] = {
        "json": (outputs.json_, _of_schema),
        "regex": (outputs.regex, Grammar.regex),
        "choice": (outputs.choice, Grammar.choice),
        "grammar": (outputs.grammar, _of_text),
        "json_object": (_ANY_OBJECT if outputs.json_object else None, _of_schema),
        "structural_tag": (outputs.structural_tag, _of_tag),
    }
    given = {name: form for name, form in forms.items() if form[0] is not None}
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise InvalidRequestError(
            f"{field} needs exactly one of {', '.join(forms)}; got {got}", param=field
        )
    [(name, (value, make))] = given.items()
    return make(value, f"{field}.{name}")


def _of_schema(schema: dict[str, object] | str, param: str) -> Grammar:
    if isinstance(schema, str):
        return Grammar(GrammarKind.JSON_SCHEMA, schema, param)
    return Grammar.json_schema(schema, param)


def _of_tag(tag: dict[str, object] | str, param: str) -> Grammar:
    if isinstance(tag, str):
        return Grammar(GrammarKind.STRUCTURAL_TAG, tag, param)
    return Grammar.structural_tag(tag, param)


def _of_text(text: str, param: str) -> Grammar:
    """A grammar in GBNF or Lark; its text shows which."""
    return Grammar.gbnf(text, param) if is_gbnf(text) else Grammar.lark(text, param)


_FIELDS: Mapping[str, Callable[[Any, str], Grammar]] = {
    "guided_json": _of_schema,
    "guided_regex": Grammar.regex,
    "guided_choice": Grammar.choice,
    "guided_grammar": _of_text,
    "json_schema": _of_schema,
    "grammar": _of_text,
    "regex": Grammar.regex,
    "ebnf": Grammar.gbnf,
}
"""The fields that hold a grammar, each with the function that reads it."""
GRAMMAR_FIELDS = frozenset({"response_format", "structured_outputs", *_FIELDS})
"""The fields that :func:`generation_grammar` reads."""
