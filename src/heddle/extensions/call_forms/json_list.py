"""Forms that write all calls in one list of JSON objects after a mark of their own.

    <TOOLCALL>[{"name": ..., "arguments": ...}]</TOOLCALL>      Nemotron Nano 2 and Super 1.5
    <tool_calls>[{"name": ..., "arguments": ...}]</tool_calls>  Hunyuan A13B, Apriel

Source: the chat templates of these models; for Hunyuan, the one of vLLM's examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.histories import encodes_arguments, with_texts
from heddle.text.chat.call_forms import CallForm

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import Mark
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps


@dataclass(frozen=True, slots=True)
class JsonList(CallForm):
    """A list between two marks, the first and the last of `marks`."""

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return with_texts(messages)

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        while mark := (yield from source.until(self.marks[:1], source.add_text)):
            if (yield from source.read_objects(None)):
                yield from source.skip_one_of(self.marks[1:])
            else:
                yield from source.reject_mark(mark)

    def opening(self, mark: Mark) -> str:
        return mark(self.marks[0])

    def calls(self, mark: Mark, *, several: bool) -> str:
        more = '("," SPACE? function)*' if several else ""
        end = " ".join(f"SPACE? {mark(closing)}" for closing in self.marks[1:])
        return f'SPACE? "[" SPACE? function {more} SPACE? "]" {end} SPACE?'


class Nemotron(JsonList):
    """Calls between `<TOOLCALL>` and `</TOOLCALL>`."""

    __slots__ = ()
    marks: ClassVar = ("<TOOLCALL>", "</TOOLCALL>")


@dataclass(frozen=True, slots=True)
class ToolCalls(JsonList):
    """Calls between `<tool_calls>` and `</tool_calls>`.

    Attributes:
        encodes: whether the template itself encodes arguments as JSON.
    """

    encodes: bool = False

    marks: ClassVar = ("<tool_calls>", "</tool_calls>")

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return messages if self.encodes else with_texts(messages)


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    for form in (Nemotron(), ToolCalls(encodes_arguments(template))):
        if f"{form.marks[0]}[" in template:
            return form
    return None
