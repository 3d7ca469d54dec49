"""The form of Apertus: each call is an object with one member, the function's name.

    <|tools_prefix|>[{"name": {"key": "value"}}, {"other": {}}]<|tools_suffix|>

Sources: the chat templates of Apertus that llama.cpp brings and that are among vLLM's examples.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.histories import with_texts
from heddle.extensions.call_forms.json_list import JsonList
from heddle.text.chat.call_forms import json_lark

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm, Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

_LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class Apertus(JsonList):
    """A list of `{"name": {...}}`.

    Attributes:
        takes_texts: whether the template takes arguments as JSON, not as objects.
    """

    takes_texts: bool = False

    marks: ClassVar = ("<|tools_prefix|>", "<|tools_suffix|>")

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return with_texts(messages) if self.takes_texts else messages

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        opening, closing = self.marks
        while mark := (yield from source.until((opening,), source.add_text)):
            source.expect_call(source.position)
            if not (yield from source.attempt(self._name(source, "["))):
                yield from source.reject_mark(mark)
                continue
            yield from self._arguments(source)
            while (yield from source.attempt(self._name(source, ","))):
                yield from self._arguments(source)
            if source.cut and source.ended:
                yield from source.until((), lambda _: None)  # an incomplete name
            yield from source.skip("]")
            yield from source.skip(closing)

    def _name(self, source: AnswerReader, before: str) -> Steps[bool]:
        """Read `before`, a brace, a function's name and a colon, and begin the call."""
        yield from source.skip(before)
        if not (yield from source.skip("{")) or not (yield from source.skip('"')):
            return False
        name = ""
        while not name.endswith('"'):
            char = yield from source.next()
            name += char
            if not char or char.isspace() or len(name) > _LONGEST_NAME:
                return False
        name = name[:-1]
        if not name or not (yield from source.skip(":")):
            return False
        source.begin_call(name)
        return True

    def _arguments(self, source: AnswerReader) -> Steps[None]:
        """Read arguments and the brace after them. What is no object stays as it is."""
        char = yield from source.after_space()
        source.put_back(char)
        if char in ("}", "]"):
            source.add_arguments("{}")
        else:
            yield from source.json_value(source.add_arguments)
        yield from source.skip("}")

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        return f'"{{" SPACE? {json.dumps(json.dumps(name) + ": ")} {json_lark(schema)} SPACE? "}}"'


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    if not all(mark in template for mark in Apertus.marks):
        return None
    return Apertus(takes_texts=".arguments|tojson" not in template.replace(" ", ""))
