"""The form of ERNIE 4.5's thinking models: that of Hermes, with marks around the text.

    <think>reasoning</think>

    <response>
    text
    </response>
    <tool_call>
    {"name": "name", "arguments": {...}}
    </tool_call>

The prompt opens the reasoning. Source: vLLM's parsers (`ernie45_tool_parser.py` and its parser of
reasoning) and answers in the tests of transformers; the chat template was not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from heddle.extensions.call_forms.tagged import Padded, comes_next
from heddle.text.chat.call_forms import HERMES, CallForm
from heddle.text.parsing.answer_reader import Marks

if TYPE_CHECKING:
    from collections.abc import Collection

    from heddle.text.chat.call_forms import Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

_THINK = Marks("<think>", "</think>")
_RESPONSE = Marks("<response>", "</response>")
_CALL, _CALL_END = HERMES.marks


@dataclass(frozen=True, slots=True)
class Ernie(CallForm):
    """Reasoning, then text between `<response>` and `</response>`, and Hermes' calls."""

    marks: ClassVar = (*_THINK, *_RESPONSE, *HERMES.marks)
    frames: ClassVar = True
    reasoning: ClassVar = _THINK

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        if (yield from source.skip(_THINK.opening)):
            yield from source.until((_THINK.closing,), source.add_reasoning)
            source.put_back((yield from source.after_space()))
        framed = yield from source.skip(_RESPONSE.opening)
        if framed:
            source.put_back((yield from source.after_space()))
        closing = (_RESPONSE.closing,) if framed else ()
        calls = (_CALL,) if names else ()
        take = Padded(source.add_text) if framed else source.add_text
        while mark := (yield from source.until((*closing, *calls), take)):
            if mark == _CALL:
                yield from self._call(source)
            elif (yield from comes_next(source, (_CALL,))):
                source.put_back((yield from source.after_space()))
            else:
                take(mark)

    def _call(self, source: AnswerReader) -> Steps[None]:
        if (yield from source.read_objects(None)):
            yield from source.skip(_CALL_END)
        else:
            yield from source.reject_mark(_CALL)

    def opened(self, prompt: str) -> str:
        return _THINK.opening if prompt.rstrip().endswith(_THINK.opening) else ""

    def opening(self, mark: Mark) -> str:
        return HERMES.opening(mark)

    def calls(self, mark: Mark, *, several: bool) -> str:
        return HERMES.calls(mark, several=several)

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        return HERMES.function(name, schema, mark)


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    shown = (_THINK.closing, _RESPONSE.opening, _CALL)
    return Ernie() if all(mark in template for mark in shown) else None
