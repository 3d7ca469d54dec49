"""Constraints on answers that extensions bring: request fields, and types of `response_format`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Optional, TypeVar, get_args

from pydantic import BaseModel

from heddle.doors import extensions, refer
from heddle.server.http.schema import with_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from heddle.grammars import Grammar

S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """A type of `response_format` beside those of OpenAI's API.

    Attributes:
        members: the types of its members in schemas, by name. No other type has them.
        read: takes the object and the field's name; returns the grammar.
    """

    members: Mapping[str, Any]
    read: Callable[[dict[str, Any], str], Grammar]


@dataclass(frozen=True, slots=True)
class ConstraintField:
    """A field with a grammar and nothing else, on every route that generates but Anthropic's.

    Attributes:
        name: its name in bodies.
        kind: the type of its value in schemas.
        read: takes the value and the field's name; returns its grammar, or None if the value asks
            for nothing. Raises InvalidRequestError if the value is wrong.
    """

    name: str
    kind: Any
    read: Callable[[Any, str], Grammar | None]


def constraint_fields() -> Sequence[ConstraintField]:
    """The fields of all extensions."""
    return [
        field
        for extension in extensions().values()
        for reference in extension.constraints
        for field in refer(reference)
    ]


@cache
def answer_formats() -> Mapping[str, AnswerFormat]:
    """The formats of all extensions, by their `type`."""
    return {
        name: refer(one)
        for extension in extensions().values()
        for name, one in extension.formats.items()
    }


def with_formats(schema: type[S]) -> type[S]:
    """A decorator that adds the formats of all extensions to the schema of `response_format`."""
    formats = answer_formats()
    types = (*get_args(schema.model_fields["type"].annotation), *formats)
    fields: dict[str, Any] = {
        name: (Optional[kind], None)  # noqa: UP045  a value
        for one in formats.values()
        for name, kind in one.members.items()
    }
    return with_fields(schema, {"type": (Literal[types], ...)} | fields)


def constrained(schema: type[S]) -> type[S]:
    """A decorator that adds the fields of all extensions to a schema."""
    fields: dict[str, Any] = {
        field.name: (Optional[field.kind], None)  # noqa: UP045  a value
        for field in constraint_fields()
    }
    return with_fields(schema, fields)
