"""Normalises JSON schemas: bounds integers, and corrects references.

- Integers without bounds get the range -(2**53) + 1 to 2**53 - 1, at most 16 digits. All JSON
  parsers read these integers exactly (RFC 8259, section 6). Without bounds, a small model writes
  digits until the length limit ends its answer.
- The reference `/$defs/x` becomes `#/$defs/x`. LiteLLM sends `/$defs/x` to Anthropic's API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.text.constrained.closed_schema import map_subschemas

if TYPE_CHECKING:
    from collections.abc import Mapping

_LARGEST = 2**53 - 1
_LOWER = ("minimum", "exclusiveMinimum")
_UPPER = ("maximum", "exclusiveMaximum")
_FIXED = ("enum", "const")


def normalised(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema with bounds for integers and correct references."""
    copied = map_subschemas(schema, normalised)
    reference = copied.get("$ref")
    if isinstance(reference, str) and reference.startswith(("/$defs/", "/definitions/")):
        copied["$ref"] = f"#{reference}"
    if _is_integer(copied.get("type")) and not any(key in copied for key in _FIXED):
        _bound(copied)
    return copied


def _is_integer(type: Any) -> bool:
    return type == "integer" or (
        isinstance(type, list) and "integer" in type and "number" not in type
    )


def _bound(schema: dict[str, Any]) -> None:
    """Add missing bounds. If the schema has a larger bound of its own, change nothing."""
    given = [schema[key] for key in (*_LOWER, *_UPPER) if key in schema]
    if any(not isinstance(value, int | float) or abs(value) >= _LARGEST for value in given):
        return
    if not any(key in schema for key in _LOWER):
        schema["minimum"] = -_LARGEST
    if not any(key in schema for key in _UPPER):
        schema["maximum"] = _LARGEST
