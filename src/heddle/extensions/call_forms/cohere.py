"""The form of Cohere's Command R7B and Command A.

    <|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "name", "parameters": {...}}
    ]<|END_ACTION|>

Sources: the chat templates of Command R7B and of Cohere2MoE that llama.cpp brings. The ids count
the calls of a conversation from 0. An answer without calls may stand between marks, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.json_list import JsonList
from heddle.text.chat.call_forms import json_lark

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm, Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

_FRAMES = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
"""Marks around the text of an answer. They are no text."""


class Cohere(JsonList):
    """A list of objects with `tool_name` and `parameters`."""

    __slots__ = ()
    marks: ClassVar = ("<|START_ACTION|>", "<|END_ACTION|>")

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return messages

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        opening, closing = self.marks
        while mark := (yield from source.until((opening, *_FRAMES), source.add_text)):
            if mark != opening:
                continue
            if (yield from source.read_objects(None)):
                yield from source.skip(closing)
            else:
                yield from source.reject_mark(mark)

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        id = r'("\"tool_call_id\": \"" /[0-9]{1,4}/ "\"," SPACE?)?'
        named = json.dumps(f'"tool_name": "{name}",')
        arguments = f"{json.dumps(chr(34) + 'parameters' + chr(34) + ': ')} {json_lark(schema)}"
        return f'"{{" SPACE? {id} {named} SPACE? {arguments} SPACE? "}}"'


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    return Cohere() if Cohere.marks[0] in template else None
