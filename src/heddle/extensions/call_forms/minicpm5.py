"""The form of MiniCPM5.

    <function name="name"><param name="key">value</param></function>

A value with a newline, `<` or `&` stands in `<![CDATA[` and `]]>`. The template writes earlier
calls twice, so Heddle puts them into contents. Source: the chat template of MiniCPM5-1B.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.histories import with_contents, with_objects
from heddle.extensions.call_forms.tagged import Tagged, comes_next
from heddle.text.constrained.lark_regex import lark_regex

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm, Mark
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps, Take

_DATA, _DATA_END = "<![CDATA[", "]]>"


@dataclass(frozen=True, slots=True)
class MiniCpm5(Tagged):
    """`<param name="key">` between `<function name="name">` and `</function>`."""

    opening_tag: ClassVar = '<function name="'
    closing_tag: ClassVar = "</function>"
    before_name: ClassVar = ""
    after_name: ClassVar = '">'
    after_call: ClassVar = ""
    before_key: ClassVar = '<param name="'
    after_key: ClassVar = '">'
    after_value: ClassVar = "</param>"
    marks: ClassVar = (opening_tag, closing_tag, before_key, after_value, _DATA_END)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return with_contents(with_objects(messages), self._text_of)

    def _text_of(self, calls: Sequence[Mapping[str, Any]]) -> str:
        return "\n".join(
            f"{self.opening_tag}{call['name']}{self.after_name}"
            + "".join(
                f"{self.before_key}{key}{self.after_key}{_written(value)}{self.after_value}"
                for key, value in call["arguments"].items()
            )
            + self.closing_tag
            for call in calls
        )

    def _value_text(self, source: AnswerReader, take: Take) -> Steps[None]:
        if not (yield from source.skip(_DATA)):
            yield from Tagged._value_text(self, source, take)
            return
        while mark := (yield from source.until((_DATA_END,), take)):
            if (yield from comes_next(source, (self.after_value,))):
                yield from source.skip(self.after_value)
                return
            take(mark)

    def rules(self, mark: Mark) -> Sequence[str]:
        text, *others = Tagged.rules(self, mark)
        if mark(self.after_value).startswith("<"):  # no other text has a control token
            return [text, *others]
        end = re.escape(self.after_value)
        plain = lark_regex(f"((?:[^<]|<[^!])(?s:.*))?{end}")
        data = lark_regex(f"{re.escape(_DATA)}(?s:.*){re.escape(_DATA_END)}{end}")
        return ["text: plain | data", f"plain[lazy]: {plain}", f"data[lazy]: {data}", *others]


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    shown = (MiniCpm5.opening_tag, MiniCpm5.before_key)
    return MiniCpm5() if all(tag in template for tag in shown) else None


def _written(value: Any) -> str:
    """A value as the template writes it."""
    if isinstance(value, str) and any(char in value for char in "<&\n"):
        return f"{_DATA}{value}{_DATA_END}"
    return str(value)
