"""The objects of a schema that are closed, and those that stay open."""

from __future__ import annotations

import pytest

from heddle.text.constrained.closed_schema import closed

NAMED = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = {**NAMED, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (NAMED, CLOSED),
        ({"type": "array", "items": NAMED}, {"type": "array", "items": CLOSED}),
        ({"anyOf": [NAMED, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"allOf": [NAMED]}, {"allOf": [CLOSED]}),
        ({"oneOf": [NAMED]}, {"oneOf": [CLOSED]}),
        ({"prefixItems": [NAMED]}, {"prefixItems": [CLOSED]}),
        ({"definitions": {"x": NAMED}}, {"definitions": {"x": CLOSED}}),
        ({"additionalProperties": NAMED}, {"additionalProperties": CLOSED}),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": NAMED}},
            {"$ref": "#/$defs/x", "$defs": {"x": CLOSED}},
        ),
        (
            {"properties": {"b": NAMED}, "patternProperties": {"^x": NAMED}},
            {
                "properties": {"b": CLOSED},
                "patternProperties": {"^x": CLOSED},
                "additionalProperties": False,
            },
        ),
        (
            {"properties": {}, "patternProperties": {"^x": {}}, "required": ["x1"]},
            {
                "properties": {},
                "patternProperties": {"^x": {}},
                "required": ["x1"],
                "additionalProperties": False,
            },
        ),
        ({"properties": {"properties": NAMED}}, None),
    ],
)
def test_an_object_that_names_properties_is_closed(schema: dict, expected: dict | None) -> None:
    if expected is None:  # a member named `properties` is not a keyword
        expected = {"properties": {"properties": CLOSED}, "additionalProperties": False}
    assert closed(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**NAMED, "additionalProperties": True},
        {**NAMED, "unevaluatedProperties": False},
        {"allOf": [NAMED, {"properties": {"b": {}}}]},
        {**NAMED, "anyOf": [{"properties": {"b": NAMED}}]},
        {**NAMED, "allOf": [{"properties": {"b": NAMED}}]},
        {**NAMED, "oneOf": [{"properties": {"b": NAMED}}]},
        {**NAMED, "if": {"required": ["b"]}},
        {**NAMED, "dependentSchemas": {"a": {"properties": {"b": {}}}}},
        {**NAMED, "$ref": "#/$defs/b", "$defs": {"b": {"properties": {"b": {}}}}},
        {"allOf": [{"$ref": "#/$defs/a~1b"}, NAMED], "$defs": {"a/b": {"$ref": "#"}}},
        {**NAMED, "required": ["a", "other"]},
        {"const": NAMED, "default": NAMED, "not": NAMED},
        {"properties": True, "anyOf": 3, "items": [NAMED], "$ref": "#/nowhere"},
    ],
)
def test_an_explicitly_open_or_combined_object_stays_open(schema: dict) -> None:
    assert closed(schema) == schema


def test_only_schemas_that_a_combination_reaches_stay_open() -> None:
    schema = {
        "properties": {"both": {"allOf": [{"$ref": "#/$defs/a"}, NAMED]}, "one": NAMED},
        "$defs": {"a": NAMED.copy(), "c": NAMED.copy()},
    }
    schema["properties"]["one"] = NAMED.copy()
    result = closed(schema)
    assert result["properties"]["both"] == schema["properties"]["both"]
    assert result["properties"]["one"] == CLOSED
    assert result["$defs"] == {"a": NAMED, "c": CLOSED}
    assert result["additionalProperties"] is False


def test_a_reference_may_escape_slashes_and_tildes() -> None:
    references = [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c~01d"}]
    schema = {
        "properties": {"both": {"allOf": references}},
        "$defs": {"a/b": NAMED.copy(), "c~1d": NAMED.copy()},
    }
    assert closed(schema)["$defs"] == schema["$defs"]
