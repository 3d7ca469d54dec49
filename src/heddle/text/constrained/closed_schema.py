"""Closes JSON schemas: objects may have only the members that the schema names.

A schema with `properties` but without `additionalProperties` allows members of any name. Few
authors want that. A small model invents members until the length limit ends its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")
_OTHER_MEMBERS = ("additionalProperties", "unevaluatedProperties")
"""Keywords that say whether an object may have members that the schema does not name."""

_SAME_OBJECT = ("properties", "allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas")
"""Keywords that constrain the object itself, not a member. If a schema has two of them, several
subschemas constrain one object."""


def closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema with `additionalProperties: false` added to each object.

    Schemas without `properties`, and schemas that say whether other members are allowed, stay
    unchanged. An object that several subschemas constrain stays open, and so does everything inside
    it: one closed subschema would forbid the members that another subschema names.
    """
    return _Closing(schema).copy(schema)


def map_subschemas(
    schema: Mapping[str, Any], change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a copy of the schema with `change` applied to each direct subschema."""

    def changed(part: Any) -> Any:
        return change(part) if isinstance(part, dict) else part

    def changed_value(key: str, value: Any) -> Any:
        if key in _BY_NAME and isinstance(value, dict):
            return {name: changed(part) for name, part in value.items()}
        if key in _IN_LISTS and isinstance(value, list):
            return [changed(part) for part in value]
        return changed(value) if key in _SINGLE else value

    return {key: changed_value(key, value) for key, value in schema.items()}


class _Closing:
    """Closes one schema. Needs the root to resolve references."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._open: set[int] = set()  # ids of the schemas that stay open
        self._find_combined(root)

    def copy(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        if id(schema) in self._open:
            return schema
        copied = map_subschemas(schema, self.copy)
        if _is_all_named(schema):
            copied["additionalProperties"] = False
        return copied

    def _find_combined(self, schema: Mapping[str, Any]) -> None:
        if _is_combined(schema):
            self._keep_open(schema)
        for part in _parts(schema):
            self._find_combined(part)

    def _keep_open(self, schema: Mapping[str, Any]) -> None:
        waiting = [schema]
        while waiting:
            part = waiting.pop()
            if id(part) in self._open:
                continue
            self._open.add(id(part))
            waiting += (
                inner for key, inner in _named_parts(part) if key not in ("$defs", "definitions")
            )
            if (target := self._target(part.get("$ref"))) is not None:
                waiting.append(target)

    def _target(self, reference: Any) -> Mapping[str, Any] | None:
        """The schema that a reference names; None if it is not in the root schema."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Any = self._root
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else None


def _is_all_named(schema: Mapping[str, Any]) -> bool:
    """Whether the schema names all members that it requires, and does not say whether other members
    are allowed."""
    named, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(named, dict) or any(key in schema for key in _OTHER_MEMBERS):
        return False
    if "patternProperties" in schema:
        return True
    return isinstance(required, list) and all(one in named for one in required)


def _is_combined(schema: Mapping[str, Any]) -> bool:
    """Whether several subschemas constrain one object."""
    all_of = schema.get("allOf")
    several = isinstance(all_of, list) and len(all_of) > 1
    return several or sum(key in schema for key in _SAME_OBJECT) > 1


def _parts(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (part for _, part in _named_parts(schema))


def _named_parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The direct subschemas of a schema, each with its keyword."""
    for key, value in schema.items():
        within: Any = ()
        if key in _BY_NAME and isinstance(value, dict):
            within = value.values()
        elif key in _IN_LISTS and isinstance(value, list):
            within = value
        elif key in _SINGLE:
            within = (value,)
        yield from ((key, part) for part in within if isinstance(part, dict))
