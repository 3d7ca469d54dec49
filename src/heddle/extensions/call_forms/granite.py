"""The forms of Granite 3: a list of calls after a mark, and from 3.2 on reasoning.

    <|tool_call|>[{"name": ..., "arguments": ...}]
    Here is my thought process: reasoning Here is my response: text     Granite 3.2
    <think>reasoning</think><response>text</response>                   Granite 3.3

Sources: the chat template of Granite 3.3, passages of that of Granite 3.2, and vLLM's parser of its
reasoning, which knows "Here's", too; the templates of 3.0 and 3.1 were not read. Without the
variable `thinking`, templates do not ask for reasoning.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.histories import with_contents
from heddle.extensions.call_forms.json_list import JsonList
from heddle.extensions.call_forms.responses import RESPONSE, THINK, Responding
from heddle.text.parsing.answer_reader import Marks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm

_THOUGHTS = tuple(
    Marks(f"{here} my thought process:", f"{here} my response:") for here in ("Here is", "Here's")
)


class Granite(JsonList):
    """Calls after `<|tool_call|>`. Granite's templates write only the contents of messages."""

    __slots__ = ()
    marks: ClassVar = ("<|tool_call|>",)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages, with calls in their contents."""
        return with_contents(messages, self._text_of)

    def _text_of(self, calls: Sequence[Mapping[str, Any]]) -> str:
        return f"{self.marks[0]}{json.dumps(calls, ensure_ascii=False)}"


@dataclass(frozen=True, slots=True)
class Granite32(Responding):
    """The form of 3.2, whose marks of reasoning are sentences."""

    form: ClassVar = Granite()
    thoughts: ClassVar = _THOUGHTS
    reasoning: ClassVar = _THOUGHTS[0]
    marks: ClassVar = (*(mark for marks in _THOUGHTS for mark in marks), *Granite.marks)


@dataclass(frozen=True, slots=True)
class Granite33(Responding):
    """The form of 3.3, with text in `<response>`."""

    form: ClassVar = Granite()
    marks: ClassVar = (*THINK, *RESPONSE, *Granite.marks)


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    if Granite.marks[0] not in template or "<|/tool_call|>" in template:
        return None
    if RESPONSE.opening in template and THINK.opening in template:
        return Granite33()
    return Granite32() if _THOUGHTS[0].closing in template else Granite()
