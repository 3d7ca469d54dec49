"""The fields of requests that hold a grammar and nothing else, of all vendors; structural tags.

They are `structured_outputs` and `guided_*` (vLLM), `grammar` and `json_schema` (llama.cpp), and
`regex` and `ebnf` (SGLang). vLLM also has structural tags in `response_format`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from heddle.errors import InvalidRequestError
from heddle.extensions.grammars.gbnf.syntax import is_gbnf
from heddle.grammars import JSON_SCHEMA, Grammar
from heddle.parameters import Api
from heddle.server.generate.constraint_field import AnswerFormat, ConstraintField
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.fields import Strings
from heddle.server.http.schema import MAX_ITEMS, Schema

if TYPE_CHECKING:
    from collections.abc import Callable

Choices = Annotated[Strings, Field(max_length=MAX_ITEMS)]
_ANY_OBJECT = {"type": "object"}


@decided(Api.EXTENDED, "structured_outputs")
class StructuredOutputs(Schema):
    """vLLM's constraint on the answer: exactly one of these fields."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None


_of_schema = partial(Grammar.of, JSON_SCHEMA)
_of_tag = partial(Grammar.of, "structural_tag")
_of_regex = partial(Grammar.of, "regex")
_of_choice = partial(Grammar.of, "choice")
_of_gbnf = partial(Grammar.of, "gbnf")


def _of_text(text: str, param: str) -> Grammar:
    """A grammar in GBNF or Lark; its text shows which."""
    return _of_gbnf(text, param) if is_gbnf(text) else Grammar.lark(text, param)


def _if_any(text: str, param: str) -> Grammar | None:
    """Read as `_of_text` does; llama.cpp's clients send an empty text for none."""
    return _of_text(text, param) if text else None


def _structured(outputs: StructuredOutputs, field: str) -> Grammar:
    """The grammar in vLLM's `structured_outputs`.

    Raises:
        InvalidRequestError: the object has no grammar or several.
        GrammarError: the grammar is too long.
    """
    forms: dict[str, tuple[Any, Callable[[Any, str], Grammar]]] = {
        "json": (outputs.json_, _of_schema),
        "regex": (outputs.regex, _of_regex),
        "choice": (outputs.choice, _of_choice),
        "grammar": (outputs.grammar, _of_text),
        "json_object": (_ANY_OBJECT if outputs.json_object else None, _of_schema),
        "structural_tag": (outputs.structural_tag, _of_tag),
    }
    given = {name: form for name, form in forms.items() if form[0] is not None}
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise InvalidRequestError(
            f"{field} needs exactly one of {', '.join(forms)}; got {got}", param=field
        )
    [(name, (value, make))] = given.items()
    return make(value, f"{field}.{name}")


FIELDS = (
    ConstraintField("structured_outputs", StructuredOutputs, _structured),
    ConstraintField("guided_json", dict[str, Any] | str, _of_schema),
    ConstraintField("guided_regex", str, _of_regex),
    ConstraintField("guided_choice", Choices, _of_choice),
    ConstraintField("guided_grammar", str, _of_text),
    ConstraintField("json_schema", dict[str, Any] | str, _of_schema),
    ConstraintField("grammar", str, _if_any),
    ConstraintField("regex", str, _of_regex),
    ConstraintField("ebnf", str, _of_gbnf),
)

STRUCTURAL_TAG = AnswerFormat(
    {
        "structures": Annotated[list[dict[str, Any]], Field(max_length=MAX_ITEMS)],
        "triggers": Choices,
        "format": dict[str, Any],
        "at_least_one": bool,
    },
    _of_tag,
)
