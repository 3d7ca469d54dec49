"""A field of a request that holds a grammar and nothing else. Extensions bring such fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from pydantic import BaseModel

from heddle.doors import extensions, refer
from heddle.server.http.schema import with_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.grammars import Grammar

S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ConstraintField:
    """One field, on every route that generates except those of Anthropic's API.

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


def constrained(schema: type[S]) -> type[S]:
    """A decorator that adds the fields of all extensions to a schema."""
    fields: dict[str, Any] = {
        field.name: (Optional[field.kind], None)  # noqa: UP045  a value
        for field in constraint_fields()
    }
    return with_fields(schema, fields)
