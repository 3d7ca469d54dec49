"""The forms of Functionary: of v3.1, which begins with Llama 3.1, and of v3.2.

    <function=name>{...}</function>

    >>>all
    text>>>name
    {...}

In v3.2 a recipient begins each part of an answer: `all` for text, or a function. The prompt ends
with `>>>`, so the answer begins with a recipient. Source: the chat templates of
functionary-medium-v3.1 and v3.2.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.histories import with_texts
from heddle.text.chat.call_forms import CallForm, json_lark
from heddle.text.parsing.characters import END

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

    Json = Mapping[str, Any]

_NAME = re.compile(r"[\w.\-]{1,256}")
_RECIPIENT, _ALL = ">>>", "all\n"


@dataclass(frozen=True, slots=True)
class FunctionTags(CallForm):
    """A JSON object between `<function=name>` and `</function>`."""

    marks: ClassVar = ("<function=", "</function>")

    def offered(
        self, messages: Sequence[Json], tools: Sequence[Json]
    ) -> tuple[Sequence[Json], Sequence[Json] | None]:
        """The messages, and functions that all have a description, as the template requires."""
        return messages, [
            {**tool, "function": {"description": "", **tool["function"]}} for tool in tools
        ] or None

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        opening, closing = self.marks
        while mark := (yield from source.until((opening,), source.add_text)):
            source.expect_call(source.position)
            if (yield from source.attempt(_named(source, ">", None))):
                yield from source.json_value(source.add_arguments)
                yield from source.skip(closing)
            else:
                yield from source.reject_mark(mark)

    def opening(self, mark: Mark) -> str:
        return mark(self.marks[0])

    def calls(self, mark: Mark, *, several: bool) -> str:
        more = f"({mark(self.marks[0])} function)*" if several else ""
        return f"function {more}"

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        return f"{json.dumps(f'{name}>')} {json_lark(schema)} {mark(self.marks[1])} SPACE?"


@dataclass(frozen=True, slots=True)
class Functionary(CallForm):
    """Parts with a recipient each. Only a function that the request offers is a recipient."""

    marks: ClassVar = (_RECIPIENT,)
    frames: ClassVar = True

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        yield from source.skip(_RECIPIENT)
        mark = ""
        while True:
            if (yield from source.attempt(_named(source, "\n", names))):
                yield from source.json_value(source.add_arguments)
                source.put_back((yield from source.after_space()))
            elif not (yield from _begins(source, _ALL)):
                yield from source.reject_mark(mark)
            mark = yield from source.until(self.marks, source.add_text)
            if not mark:
                return

    def opening(self, mark: Mark) -> str:
        return '""'

    def calls(self, mark: Mark, *, several: bool) -> str:
        more = f"({mark(_RECIPIENT)} function)*" if several else ""
        return f"function {more}"

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        header = json.dumps(name + "\n")
        return f"{header} {json_lark(schema)} SPACE?"

    def opened(self, prompt: str) -> str:
        last = prompt.rpartition("<|end_header_id|>")[2]
        return _RECIPIENT + _ALL if last.strip().startswith(_RECIPIENT + _ALL.strip()) else ""

    def text_opened(self, prompt: str) -> str:
        return prompt if self.opened(prompt) else prompt + _ALL

    def text_opening(self, mark: Mark) -> str:
        return json.dumps(_ALL)

    def history(self, messages: Sequence[Json]) -> Sequence[Json]:
        return with_texts(messages)


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    if ">>>all" in template:
        return Functionary()
    shown = "<function=example_function_name>{" in template
    return FunctionTags() if shown or "'<function=' + tool_call" in template else None


def _named(source: AnswerReader, end: str, names: Collection[str] | None) -> Steps[bool]:
    """Read a function's name, `end`, and space up to a brace. Begin the call.

    `names` lists the functions that may be called; None: any.
    """
    start, name = source.position, ""
    while (char := (yield from source.next())) not in (end, END):
        name += char
        if not _NAME.fullmatch(name):
            return False
    brace = yield from source.after_space()
    if not name or brace != "{" or (names is not None and name not in names):
        return False
    source.put_back(brace)
    source.expect_call(start)
    source.begin_call(name)
    return True


def _begins(source: AnswerReader, text: str) -> Steps[bool]:
    """Read `text`, if it comes next. If the text was cut off inside of it, drop the rest."""
    read = ""
    while read != text:
        char = yield from source.next()
        read += char
        if char == END or not text.startswith(read):
            if not (char == END and source.cut):
                source.put_back(read)
            return False
    return True
