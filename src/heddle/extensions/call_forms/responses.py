"""The engine of forms that mark the text, too, after reasoning and before calls of another form.

    <think>reasoning</think>
    <response>text</response>
    <tool_call>...</tool_call>

A form of this kind is a class with the form of its calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.tagged import Padded, comes_next
from heddle.text.chat.call_forms import CallForm
from heddle.text.parsing.answer_reader import Marks

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

RESPONSE = Marks("<response>", "</response>")
THINK = Marks("<think>", "</think>")


class Responding(CallForm):
    """Reasoning, then text between `<response>` and `</response>`, then calls."""

    __slots__ = ()

    form: ClassVar[CallForm]
    """The form of the calls: objects after its first mark."""
    thoughts: ClassVar[Sequence[Marks]] = (THINK,)
    """Marks of reasoning. Models write any of them."""
    frames: ClassVar = True
    reasoning: ClassVar[Marks | None] = THINK

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        if (yield from source.skip_one_of([marks.opening for marks in self.thoughts])):
            closings = [marks.closing for marks in self.thoughts]
            yield from source.until(closings, source.add_reasoning)
            source.put_back((yield from source.after_space()))
        framed = yield from source.skip(RESPONSE.opening)
        if framed:
            source.put_back((yield from source.after_space()))
        call = self.form.marks[0]
        closing = (RESPONSE.closing,) if framed else ()
        calls = (call,) if names else ()
        take = Padded(source.add_text) if framed else source.add_text
        while mark := (yield from source.until((*closing, *calls), take)):
            if mark == call:
                yield from self._call(source)
            elif (yield from comes_next(source, (call,))):
                source.put_back((yield from source.after_space()))
            else:
                take(mark)

    def _call(self, source: AnswerReader) -> Steps[None]:
        if (yield from source.read_objects(None)):
            yield from source.skip_one_of(self.form.marks[1:])
        else:
            yield from source.reject_mark(self.form.marks[0])

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return self.form.history(messages)

    def opened(self, prompt: str) -> str:
        opening = self.thoughts[0].opening
        return opening if prompt.rstrip().endswith(opening) else ""

    def opening(self, mark: Mark) -> str:
        return self.form.opening(mark)

    def calls(self, mark: Mark, *, several: bool) -> str:
        return self.form.calls(mark, several=several)

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        return self.form.function(name, schema, mark)
