"""DeepSeek's DSML: what its grammars allow, with the token of its tags and without."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.extensions.call_forms.dsml import Dsml, DsmlV4
from heddle.grammars import LARK, Grammar
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.parsing.reading import Reading
from talking_model import LetterTokenizer, refused_at

PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer", "maximum": 50},
    "kind": {"enum": ["low", "high"]},
    "any": {},
}
CLOSED = {"properties": PROPERTIES, "required": ["text"], "additionalProperties": False}
CALLEES = [Callee("edit", CLOSED, strict=True), Callee("clock")]
NAMES = frozenset(("edit", "clock"))


@pytest.fixture(params=[Dsml(), DsmlV4()], ids=repr)
def form(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[True, False], ids=["token", "text"])
def tokenizer(request: pytest.FixtureRequest) -> LetterTokenizer:
    return LetterTokenizer(controls=request.param)


def invoked(name: str, *parameters: tuple[str, str, str]) -> str:
    written = "".join(
        f'<｜DSML｜parameter name="{key}" string="{kind}">{value}</｜DSML｜parameter>\n'
        for key, kind, value in parameters
    )
    return f'<｜DSML｜invoke name="{name}">\n{written}</｜DSML｜invoke>\n'


@pytest.mark.parametrize("late", [True, False])
def test_calls_follow_their_functions(form: Any, tokenizer: LetterTokenizer, late: bool) -> None:
    reading = Reading(form, NAMES)

    def refused(*calls: str, **how: Any) -> str | None:
        if late:
            text = calls_grammar(form, CALLEES, tokenizer.control_id, **how)
            grammar = Grammar(LARK, text, beginning=reading)
        else:
            grammar = Grammar.lark(answer_grammar(reading, CALLEES, tokenizer.control_id, **how))
        text = f"{form.opening_tag}\n{''.join(calls)}{form.closing_tag}"
        return refused_at(grammar, text, tokenizer)

    text = ("text", "true", "7 </p> < </")
    assert refused(invoked("edit", text)) is None
    full = invoked("edit", text, ("count", "false", "7"), ("kind", "true", "low"))
    assert refused(full) is None
    assert refused(invoked("edit", text, ("any", "true", "a"))) is None
    assert refused(invoked("edit", text, ("any", "false", "[1]"))) is None
    assert refused(invoked("clock"), invoked("clock", ("a", "false", "1"))) is None
    assert refused(invoked("clock").replace("\n", "\n\n", 1)) is None
    assert refused(invoked("clock"), invoked("clock"), parallel=False) is not None
    for wrong in (
        *(("text", "false", "7"), ("count", "true", "7"), ("count", "false", "51")),
        *(("kind", "true", "mid"), ("other", "true", "1")),
    ):
        found = refused(invoked("edit", *([text] if wrong[0] != "text" else []), wrong))
        assert found is not None, wrong
    assert refused(invoked("edit")) is not None, "text is required"
    assert refused(invoked("new")) is not None
    assert refused() is not None
