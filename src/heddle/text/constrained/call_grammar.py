"""Grammars of answers that call functions, in the model's own form, by the functions' schemas.

Written in llguidance's form of Lark. Reasoning may come first where the model has it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heddle.text.constrained.grammar import JSON_SPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm
    from heddle.text.parsing.reading import Reading

_SPACE = r"SPACE: / |\n[ \t]{0,8}/"
"""Between the parts of a call: a space, or the indentation of a line."""

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Callee:
    """A function as a grammar knows it.

    Attributes:
        name: the function's.
        schema: of its arguments, a JSON object; None for any object.
        strict: whether what llguidance does not know of the schema is an error. If not, it is
            left out.
    """

    name: str
    schema: Mapping[str, Any] | None = None
    strict: bool = False

    def arguments(self) -> dict[str, Any]:
        """The schema as llguidance is to take it."""
        options = {"whitespace_pattern": JSON_SPACE, "lenient": not self.strict}
        return {**(self.schema or _ANY_OBJECT), "type": "object", "x-guidance": options}


def answer_grammar(
    reading: Reading,
    callees: Sequence[Callee],
    control_id: Callable[[str], int | None],
    *,
    parallel: bool = True,
    otherwise: Mapping[str, Any] | None = None,
) -> str:
    """Answers that call functions, or else are JSON by the schema `otherwise`.

    Args:
        reading: of the answers; it has a form of calls if there are callees.
        callees: what may be called; empty for an answer that has to be JSON.
        control_id: the control token of a text, if there is one.
        parallel: whether there may be several calls.
        otherwise: what the answer may be in place of calls, if anything.
    """
    ways, rules = [], []
    if callees:
        assert reading.form is not None
        rules += _rules_of_calls(reading.form, callees, control_id, parallel)
        ways.append("opening calls")
    if otherwise is not None:
        options = {"x-guidance": {"whitespace_pattern": JSON_SPACE}}
        rules.append(f"otherwise: %json {json.dumps({**otherwise, **options})}")
        ways.append("otherwise")
    before, rules_before = _reasoning(reading, control_id)
    start = f"start: {before}SPACE? ({' | '.join(ways)})"
    return "\n".join([start, _SPACE, *rules_before, *rules])


def calls_grammar(
    form: CallForm,
    callees: Sequence[Callee],
    control_id: Callable[[str], int | None],
    *,
    parallel: bool = True,
) -> str:
    """What comes after the mark of an answer's first call. Arguments as `answer_grammar`."""
    _, *rules = _rules_of_calls(form, callees, control_id, parallel)
    return "\n".join(["start: calls", _SPACE, *rules])


def _rules_of_calls(
    form: CallForm,
    callees: Sequence[Callee],
    control_id: Callable[[str], int | None],
    parallel: bool,
) -> list[str]:
    """Rules, of which `opening` is the first."""

    def mark(text: str) -> str:
        id = control_id(text)
        return json.dumps(text) if id is None else f"<[{id}]>"

    names = [f"function{place}" for place in range(len(callees))]
    return [
        f"opening: {form.opening(mark)}",
        f"calls: {form.calls(mark, several=parallel)}",
        f"function: {' | '.join(names)}",
        *(
            f"{name}: {form.function(callee.name, f'%json {json.dumps(callee.arguments())}', mark)}"
            for name, callee in zip(names, callees, strict=True)
        ),
    ]


def _reasoning(
    reading: Reading, control_id: Callable[[str], int | None]
) -> tuple[str, Sequence[str]]:
    """What of a rule precedes the answer proper, and the rules for it."""
    if reading.marks is None:
        return "", ()
    opening, closing = reading.marks
    first, last = control_id(opening), control_id(closing)
    if last is not None:
        begun = "" if reading.reasons or first is None else f"<[{first}]> "
        rule = f"reasoning: {begun}/(?s:.*)/ <[{last}]>"
    else:
        begun = "" if reading.reasons else opening
        rule = f"reasoning[lazy]: /{_escaped(begun)}(?s:.*){_escaped(closing)}/"
    return "reasoning " if reading.reasons else "(SPACE? reasoning)? ", [rule]


def _escaped(text: str) -> str:
    """`text` inside of a regular expression between slashes."""
    return re.escape(text).replace("/", r"\/")
