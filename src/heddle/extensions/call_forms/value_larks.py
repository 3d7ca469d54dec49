"""Lark for values that a schema allows, for forms that write values in ways of their own.

A form's class says how it writes strings, lists and objects.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.tagged import values_of
from heddle.extensions.call_forms.types import ALL, resolved, types_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from heddle.text.chat.call_forms import Schema

_DEEPEST, _LONGEST = 3, 2_000
"""Most levels of a value that a grammar takes from a schema, and most characters of its Lark. A
grammar allows any value in place of a larger one."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class ValueLarks(ABC):
    """Writes Lark for values that the schema `root` describes."""

    anything: ClassVar[str]
    """The rule for a value of any type."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        # A schema may have many members, and refer to itself: each part is written once a level.
        self._written: dict[tuple[int, int], str] = {}

    @abstractmethod
    def members(self, part: Any, depth: int) -> str:
        """Lark for the members of an object."""

    def value(self, part: Any, depth: int) -> str:
        """Lark for a value. Of strings only `enum` and `const` are enforced, of lists the items."""
        schema = resolved(part, self._root)
        place = (id(schema), depth)
        if place not in self._written:
            written = self._value(schema, depth)
            self._written[place] = written if len(written) < _LONGEST else self.anything
        return self._written[place]

    def properties(self, part: Any) -> Iterator[tuple[str, Any, bool]]:
        """The members that a schema names: their keys, their schemas, and whether they must be."""
        schema = resolved(part, self._root)
        named, required = schema.get("properties"), schema.get("required")
        required = required if isinstance(required, list) else []
        known: dict[str, Any] = {key: {} for key in required}
        known |= named if isinstance(named, dict) else {}
        return ((key, one, key in required) for key, one in known.items())

    def is_open(self, part: Any) -> bool:
        """Whether an object may have members that its schema does not name."""
        return resolved(part, self._root).get("additionalProperties") is not False

    def literal(self, value: Any) -> str:
        """Lark for the value of an `enum`, which is no list and no object."""
        return json.dumps(json.dumps(value))

    def typed(self, type: str, schema: Mapping[str, Any], depth: int) -> str:
        """Lark for a value of one type."""
        if type in ("number", "integer"):
            bounds = {key: schema[key] for key in _BOUNDS if key in schema}
            return f"%json {json.dumps({'type': type, **bounds})}"
        return '("true" | "false")' if type == "boolean" else '"null"'

    def _value(self, schema: Mapping[str, Any], depth: int) -> str:
        types, values = types_of(schema, self._root), values_of(schema, self._root)
        if values and not any(isinstance(value, (list, dict)) for value in values):
            return f"({' | '.join(map(self.literal, values))})"
        choices = schema.get("anyOf", schema.get("oneOf"))
        several = isinstance(choices, list) and len(choices) > 0
        if depth > _DEEPEST or not (several or types < ALL):
            return self.anything
        found = (
            [self.value(one, depth + 1) for one in choices]
            if several
            else [self.typed(one, schema, depth) for one in sorted(types)]
        )
        return f"({' | '.join(found)})"
