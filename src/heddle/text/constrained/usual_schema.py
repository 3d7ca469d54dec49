"""JSON schemas with what their authors mean and do not say.

- An integer without bounds has at most 16 digits: those from -(2**53) + 1 to 2**53 - 1, which all
  parsers of JSON read alike (RFC 8259, 6). A small model goes on with digits until it is cut off.
- A reference to `/$defs/x` is one to `#/$defs/x`. LiteLLM sends the first to Anthropic's API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.text.constrained.closed_schema import with_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

_LARGEST = 2**53 - 1
_LOWER = ("minimum", "exclusiveMinimum")
_UPPER = ("maximum", "exclusiveMaximum")
_CHOSEN = ("enum", "const")


def usual(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with bounds for integers, and with references in their usual form."""
    copied = with_parts(schema, usual)
    reference = copied.get("$ref")
    if isinstance(reference, str) and reference.startswith(("/$defs/", "/definitions/")):
        copied["$ref"] = f"#{reference}"
    if _is_integer(copied.get("type")) and not any(key in copied for key in _CHOSEN):
        _bound(copied)
    return copied


def _is_integer(type: Any) -> bool:
    return type == "integer" or (
        isinstance(type, list) and "integer" in type and "number" not in type
    )


def _bound(schema: dict[str, Any]) -> None:
    """Add the bounds that are missing; none where the author's own one lies beyond them."""
    own = [schema[key] for key in (*_LOWER, *_UPPER) if key in schema]
    if any(not isinstance(one, int | float) or abs(one) >= _LARGEST for one in own):
        return
    if not any(key in schema for key in _LOWER):
        schema["minimum"] = -_LARGEST
    if not any(key in schema for key in _UPPER):
        schema["maximum"] = _LARGEST
