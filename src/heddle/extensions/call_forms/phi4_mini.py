"""The form of Phi-4-mini.

    <|tool_call|>[{"name": "name", "arguments": {...}}]<|/tool_call|>
    functools[{"name": "name", "arguments": {...}}]

Microsoft's template takes functions as a text in the system message and leaves out calls. Other
templates ask for the first form (llama.cpp's) or for the second (vLLM's). Every answer is read in
both; after `functools`, only a function that the request offers is a call, because it is a word of
Python too.

Source: the chat templates of Phi-4-mini-instruct, and those that llama.cpp and vLLM have for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.histories import with_contents
from heddle.extensions.call_forms.json_list import JsonList

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm, Mark
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

    Json = Mapping[str, Any]

_WORD = "functools"
_INTRODUCTION = "You are a helpful assistant with some tools."


@dataclass(frozen=True, slots=True)
class Phi4Mini(JsonList):
    """A list of calls between two marks, or after a word.

    Attributes:
        word: whether the template asks for the word.
        in_message: whether the template takes functions in the system message.
    """

    word: bool = False
    in_message: bool = False

    marks: ClassVar = ("<|tool_call|>", "<|/tool_call|>")

    def history(self, messages: Sequence[Json]) -> Sequence[Json]:
        """The messages, with calls in their contents: most templates leave calls out."""
        return with_contents(messages, self._text_of)

    def _text_of(self, calls: Sequence[Json]) -> str:
        text = json.dumps(calls, ensure_ascii=False)
        return f"{_WORD}{text}" if self.word else f"{self.marks[0]}{text}{self.marks[1]}"

    def offered(
        self, messages: Sequence[Json], tools: Sequence[Json]
    ) -> tuple[Sequence[Json], Sequence[Json] | None]:
        if not self.in_message or not tools:
            return messages, tools or None
        if messages[0]["role"] != "system":
            messages = [{"role": "system", "content": _INTRODUCTION}, *messages]
        told = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
        return [{**messages[0], "tools": told}, *messages[1:]], None

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        while mark := (yield from source.until((self.marks[0], _WORD), source.add_text)):
            if (yield from source.read_objects(names if mark == _WORD else None)):
                yield from source.skip(self.marks[1])
            elif mark == _WORD:
                source.add_text(mark)
            else:
                yield from source.reject_mark(mark)

    def opening(self, mark: Mark) -> str:
        return json.dumps(_WORD) if self.word else mark(self.marks[0])

    def calls(self, mark: Mark, *, several: bool) -> str:
        more = '("," SPACE? function)*' if several else ""
        return f'SPACE? "[" SPACE? function {more} SPACE? "]" ({mark(self.marks[1])})? SPACE?'


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    word = f"{_WORD}[" in template
    if not word and "<|/tool|>" not in template:
        return None
    return Phi4Mini(word, in_message="message['tools']" in template)
