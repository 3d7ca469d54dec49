"""The door of grammars: languages by kind, and what is said of a kind that no extension brings."""

from __future__ import annotations

import pytest

from heddle.doors import extensions
from heddle.errors import GrammarError
from heddle.grammars import JSON_SCHEMA, LARK, Grammar
from heddle.server.generate.constraint_field import constraint_fields
from heddle.server.generate.fields import SamplingFields
from heddle.text.constrained.language import languages
from talking_model import LetterTokenizer

KINDS = [kind for one in extensions().values() for kind in one.grammars]


def test_each_kind_has_its_language() -> None:
    assert [*languages(LetterTokenizer())] == [JSON_SCHEMA, LARK, *KINDS]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_makes_a_grammar(kind: str) -> None:
    assert Grammar(kind, "x").kind == kind


def test_a_kind_that_no_extension_brings_is_refused() -> None:
    with pytest.raises(GrammarError, match=r"no extension .* kind 'ebnf'; use one of: json_") as at:
        Grammar("ebnf", "x", "ebnf")
    assert at.value.param == "ebnf"


@pytest.mark.parametrize("field", constraint_fields(), ids=lambda field: field.name)
def test_each_field_is_one_of_the_schemas(field: object) -> None:
    assert getattr(field, "name", None) in SamplingFields.model_fields
