"""Finds the grammar in a body's fields.

The fields are `response_format` and `text.format` (OpenAI), and those of extensions, which also
bring types of `response_format`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.errors import InvalidRequestError
from heddle.grammars import Grammar
from heddle.server.generate.constraint_field import answer_formats, constraint_fields

if TYPE_CHECKING:
    from heddle.server.generate.fields import GenerationFields, ResponseFormat, SamplingFields

_ANY_OBJECT = {"type": "object"}


def grammar_of(body: SamplingFields, form: Grammar | None) -> Grammar | None:
    """The grammar of a body: `form` or the grammar in another field. It is not compiled yet.

    Clients of several versions of vLLM send the same grammar under its old and its new name.

    Raises:
        InvalidRequestError: two fields have different grammars.
        GrammarError: the grammar is too long.
    """
    grammars = [*([] if form is None else [form]), *_further_grammars(body)]
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
    if form.type in _FORMATS:
        return _FORMATS[form.type].read(form.model_dump(exclude_none=True, by_alias=True), field)
    for name in (name for one in _FORMATS.values() for name in one.members):
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


def _further_grammars(body: SamplingFields) -> list[Grammar]:
    """The grammars in the fields that hold nothing else."""
    given = [(field, getattr(body, field.name)) for field in _FIELDS]
    read = [field.read(value, field.name) for field, value in given if value is not None]
    return [grammar for grammar in read if grammar is not None]


_FORMATS, _FIELDS = answer_formats(), constraint_fields()
GRAMMAR_FIELDS = frozenset({"response_format", *(field.name for field in _FIELDS)})
"""The fields that :func:`generation_grammar` reads."""
