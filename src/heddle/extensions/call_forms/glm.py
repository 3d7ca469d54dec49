"""The form of GLM 4.5 to 5.

    <tool_call>name
    <arg_key>key</arg_key>
    <arg_value>value</arg_value>
    </tool_call>

Newer models of the family write no newlines between the tags. Source: the chat template of GLM 4.6;
the templates of GLM 4.7 and 5 were not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from heddle.extensions.call_forms.tagged import LONGEST_NAME, Tagged, comes_next
from heddle.text.parsing.characters import END

if TYPE_CHECKING:
    from heddle.text.chat.call_forms import CallForm
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps


@dataclass(frozen=True, slots=True)
class Glm(Tagged):
    """A name, and `<arg_key>` and `<arg_value>`, between `<tool_call>` and `</tool_call>`."""

    opening_tag: ClassVar = "<tool_call>"
    closing_tag: ClassVar = "</tool_call>"
    before_name: ClassVar = ""
    after_name: ClassVar = ""
    after_call: ClassVar = ""
    before_key: ClassVar = "<arg_key>"
    after_key: ClassVar = "</arg_key>"
    before_value: ClassVar = "<arg_value>"
    after_value: ClassVar = "</arg_value>"
    marks: ClassVar = (
        *(opening_tag, closing_tag),
        *(before_key, after_key, before_value, after_value),
    )

    def _function_name(self, source: AnswerReader) -> Steps[str]:
        name = ""
        source.put_back((yield from source.after_space()))
        while (char := (yield from source.next())) not in (END, "\n", "<"):
            name += char
            if len(name) > LONGEST_NAME:
                return ""
        source.put_back(char)
        follows = yield from comes_next(source, (self.before_key, self.closing_tag))
        return name.strip() if follows and not (source.cut and source.ended) else ""


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    shown = (Glm.opening_tag, Glm.before_key, Glm.before_value)
    other = "<tool_sep"  # of Hunyuan 3, whose calls differ
    return Glm() if other not in template and all(tag in template for tag in shown) else None
