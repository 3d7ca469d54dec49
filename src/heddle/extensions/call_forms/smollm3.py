"""The forms of SmolLM3: that of Hermes for `xml_tools`, and Python between tags for `python_tools`.

    <tool_call>
    {"name": "name", "arguments": {...}}
    </tool_call>

    <code>
    name(key="value")
    </code>

The template leaves out earlier calls. Heddle offers functions as `xml_tools`; a request may set
`python_tools` itself. Code is a call only if it consists of calls of functions that the request
offers. Source: a copy of the chat template of SmolLM3-3B.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.histories import with_contents
from heddle.extensions.call_forms.python_calls import PythonCalls
from heddle.text.chat.call_forms import HERMES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm, Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

_CODE, _CODE_END = "<code>", "</code>"


@dataclass(frozen=True, slots=True)
class SmolLM3(PythonCalls):
    """Objects between `<tool_call>` and `</tool_call>`; also calls in code."""

    tools_variable: ClassVar = "xml_tools"
    marks: ClassVar = HERMES.marks
    brackets: ClassVar = ("", "")
    separator: ClassVar = ""

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return with_contents(messages, self._text_of)

    def _text_of(self, calls: Sequence[Mapping[str, Any]]) -> str:
        opening, closing = self.marks
        texts = (json.dumps(call, ensure_ascii=False) for call in calls)
        return "\n".join(f"{opening}\n{text}\n{closing}" for text in texts)

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        opening, closing = self.marks
        while mark := (yield from source.until((opening, _CODE), source.add_text)):
            if mark == opening:
                if (yield from source.read_objects(None)):
                    yield from source.skip(closing)
                else:
                    yield from source.reject_mark(mark)
            elif (yield from self.read_calls(source, names)):
                yield from source.skip(_CODE_END)
            else:
                source.add_text(mark)

    def opening(self, mark: Mark) -> str:
        return HERMES.opening(mark)

    def calls(self, mark: Mark, *, several: bool) -> str:
        return HERMES.calls(mark, several=several)

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        return HERMES.function(name, schema, mark)

    def rules(self, mark: Mark) -> Sequence[str]:
        return ()


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    return SmolLM3() if "xml_tools" in template and HERMES.marks[0] in template else None
