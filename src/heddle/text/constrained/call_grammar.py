"""Grammars of answers that call functions, in the model's call form.

The functions' schemas constrain the arguments. The grammars are in llguidance's dialect of Lark.
Reasoning may come first if the model reasons.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heddle.text.constrained.language import JSON_SPACE
from heddle.text.constrained.lark_regex import lark_regex

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm, Mark
    from heddle.text.parsing.reading import Reading

_SPACE = r"SPACE: / |\n[ \t]{0,8}/"
"""Space between the parts of a call: one space, or a new line and its indentation."""

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Callee:
    """A function that an answer may call.

    Attributes:
        name: the function's name.
        schema: JSON schema of its arguments; None for any object.
        strict: whether a keyword of the schema that llguidance does not know is an error. If not,
            the keyword is ignored.
    """

    name: str
    schema: Mapping[str, Any] | None = None
    strict: bool = False

    def arguments(self) -> dict[str, Any]:
        """The schema of the arguments, with options for llguidance."""
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
    """Lark for answers that call functions, or are JSON that matches the schema `otherwise`.

    Args:
        reading: how to read the answers. It has a call form if there are callees.
        callees: functions that the answer may call; empty for an answer that must be JSON.
        control_id: returns the control token of a text; None if there is none.
        parallel: whether an answer may have several calls.
        otherwise: schema of an answer without calls; None if the answer must call a function.
    """
    alternatives, rules = [], []
    mark = _mark(reading.specials, control_id)
    if callees:
        assert reading.form is not None
        rules += _rules_of_calls(reading.form, callees, mark, parallel)
        alternatives.append("opening calls")
    if otherwise is not None:
        options = {"x-guidance": {"whitespace_pattern": JSON_SPACE}}
        rules.append(f"otherwise: %json {json.dumps({**otherwise, **options})}")
        if reading.form is not None and not reading.opened:
            alternatives.append(f"{reading.form.text_opening(mark)} otherwise")
        else:
            alternatives.append("otherwise")
    before, rules_before = _reasoning(reading, mark)
    start = f"start: {before}SPACE? ({' | '.join(alternatives)})"
    return "\n".join([start, _SPACE, *rules_before, *rules])


def calls_grammar(
    form: CallForm,
    callees: Sequence[Callee],
    control_id: Callable[[str], int | None],
    *,
    parallel: bool = True,
) -> str:
    """Lark for the text after the mark of an answer's first call. See `answer_grammar`."""
    _, *rules = _rules_of_calls(form, callees, _mark(form.marks, control_id), parallel)
    return "\n".join(["start: calls", _SPACE, *rules])


def _rules_of_calls(
    form: CallForm,
    callees: Sequence[Callee],
    mark: Mark,
    parallel: bool,
) -> list[str]:
    """Rules for calls. The first rule is `opening`."""
    names = [f"function{place}" for place in range(len(callees))]
    return [
        f"opening: {form.opening(mark)}",
        f"calls: {form.calls(mark, several=parallel)}",
        f"function: {' | '.join(names)}",
        *form.rules(mark),
        *(
            f"{name}: {form.function(callee.name, callee.arguments(), mark)}"
            for name, callee in zip(names, callees, strict=True)
        ),
    ]


def _mark(specials: Sequence[str], control_id: Callable[[str], int | None]) -> Mark:
    """A function that returns Lark for a text with some of the marks `specials`."""
    ids = {text: id for text in specials if (id := control_id(text)) is not None}
    control = re.compile(f"({'|'.join(map(re.escape, ids)) or '(?!)'})")

    def mark(text: str) -> str:
        pieces = filter(None, control.split(text))
        return " ".join(f"<[{ids[one]}]>" if one in ids else json.dumps(one) for one in pieces)

    return mark


def _reasoning(reading: Reading, mark: Mark) -> tuple[str, Sequence[str]]:
    """The Lark for optional reasoning before the answer proper, and the rules that it uses."""
    if reading.marks is None:
        return "", ()
    opening, closing = reading.marks
    first, last = map(mark, reading.marks)
    if last.startswith("<"):  # a control token ends the reasoning
        begun = "" if reading.reasons else first
        rule = f"reasoning: {begun} /(?s:.*)/ {last}"
    else:
        begun = "" if reading.reasons else opening
        reasoning = f"{re.escape(begun)}(?s:.*){re.escape(closing)}"
        rule = f"reasoning[lazy]: {lark_regex(reasoning)}"
    if reading.reasons:
        return "reasoning SPACE? ", [rule]
    return f"(SPACE? reasoning SPACE?){'*' if reading.frames else '?'} ", [rule]
