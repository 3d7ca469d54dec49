"""Normalised schemas bound integers and correct references."""

from __future__ import annotations

import pytest

from fake_model import FakeTokenizer
from heddle.grammars import Grammar
from heddle.text.constrained.grammar import GrammarCompiler
from heddle.text.constrained.normalised_schema import normalised
from heddle.text.constrained.trial import ByteTokens

MOST = 2**53 - 1
INTEGER = {"type": "integer"}
BOUNDED = {"type": "integer", "minimum": -MOST, "maximum": MOST}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (INTEGER, BOUNDED),
        ({"type": ["integer", "null"]}, {**BOUNDED, "type": ["integer", "null"]}),
        ({**INTEGER, "minimum": 0}, {**INTEGER, "minimum": 0, "maximum": MOST}),
        (
            {**INTEGER, "exclusiveMaximum": 9},
            {**INTEGER, "minimum": -MOST, "exclusiveMaximum": 9},
        ),
        (
            {"properties": {"a": INTEGER}, "$defs": {"b": {"items": INTEGER}}},
            {"properties": {"a": BOUNDED}, "$defs": {"b": {"items": BOUNDED}}},
        ),
        ({"$ref": "/$defs/x"}, {"$ref": "#/$defs/x"}),
        ({"anyOf": [{"$ref": "/definitions/x"}]}, {"anyOf": [{"$ref": "#/definitions/x"}]}),
    ],
)
def test_a_schema_gets_the_implied_keywords(schema: dict, expected: dict) -> None:
    assert normalised(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number"},
        {"type": ["integer", "number"]},
        {**INTEGER, "minimum": 1, "maximum": 5},
        {**INTEGER, "minimum": 10**20},
        {**INTEGER, "maximum": "9"},
        {**INTEGER, "enum": [10**20]},
        {"properties": {"$ref": {"const": "/$defs/x"}}, "const": INTEGER},
        {"$ref": "#/$defs/x"},
        {"$ref": "https://example.org/x"},
        {"type": "integer", "const": 3},
    ],
)
def test_explicit_keywords_stay(schema: dict) -> None:
    assert normalised(schema) == schema


def test_an_integer_has_at_most_16_digits() -> None:
    """A grammar of a bounded integer allows no 17th digit."""
    tokens = ByteTokens(300, sorted(FakeTokenizer().eos_ids), {})
    digit = tokens.encode("1")
    for schema, allowed in ((INTEGER, True), (normalised(INTEGER), False)):
        state = GrammarCompiler(tokens, keep=0).compile(Grammar.json_schema(schema)).begin()
        mask = state.next_mask(digit * 16)
        assert bool(mask[digit[0] // 8] >> digit[0] % 8 & 1) is allowed
