"""The JSON types that a parameter's schema allows, and values of these types from plain text.

Some forms write a value as text without quotes, so the schema says whether `3` is a number or a
string.
"""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

ALL = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
STRING = frozenset(("string",))

_LONGEST_LITERAL = 10_000
"""Most characters of a value that is read as Python. Templates write `True` and `None` so."""


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The types that `schema`, a part of the schema `root`, allows. All if it does not say."""
    return _types_of(schema, root, frozenset())


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema, or what it refers to in `root`. An empty schema if there is no such part."""
    followed: set[str] = set()
    while isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
        if reference in followed or not reference.startswith("#"):
            return {}
        followed.add(reference)
        schema = root
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, dict) else None
    return schema if isinstance(schema, dict) else {}


def json_of(text: str, types: frozenset[str]) -> str:
    """JSON for a value that a model wrote as `text`, of one of `types` if the text allows it.

    A text that is a value of another type stays a string if `types` has strings.
    """
    stripped = text.strip()
    try:
        value = from_json(stripped, allow_inf_nan=False)  # limits the depth
    except ValueError:
        written = _json_of_python(stripped)
        if written is None:
            return json.dumps(text, ensure_ascii=False)
        value, stripped = from_json(written), written
    allowed = types - STRING
    if _types(value) & allowed or not (types & STRING or isinstance(value, str)):
        return stripped
    return json.dumps(text, ensure_ascii=False)


def _types_of(schema: Any, root: Mapping[str, Any], seen: frozenset[int]) -> frozenset[str]:
    schema = resolved(schema, root)
    if id(schema) in seen:
        return ALL
    seen |= {id(schema)}
    found = ALL
    named = schema.get("type")
    if isinstance(named, str):
        found &= {named}
    elif isinstance(named, list):
        found &= {one for one in named if isinstance(one, str)}
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        found &= frozenset().union(*map(_types, values))
    for keyword in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(keyword), list) and parts:
            found &= frozenset().union(*(_types_of(part, root, seen) for part in parts))
    for part in parts if isinstance(parts := schema.get("allOf"), list) else ():
        found &= _types_of(part, root, seen)
    return found or ALL


def _types(value: Any) -> frozenset[str]:
    """The types of a JSON value."""
    match value:
        case None:
            return frozenset(("null",))
        case bool():
            return frozenset(("boolean",))
        case int():
            return frozenset(("integer", "number"))
        case float():
            return frozenset(("integer", "number") if value.is_integer() else ("number",))
        case str():
            return STRING
        case list():
            return frozenset(("array",))
    return frozenset(("object",))


def _json_of_python(text: str) -> str | None:
    """JSON for a literal in Python's form; None if `text` is none, or has no form in JSON.

    Qwen's templates write `True` and `None`, and those of Seed-OSS write `{'a': 1}`.
    """
    if len(text) > _LONGEST_LITERAL:
        return None
    try:
        value = ast.literal_eval(text)
        if isinstance(value, str):
            return None
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
