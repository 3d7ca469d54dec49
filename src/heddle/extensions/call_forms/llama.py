"""The forms of Llama 3, 3.2 and 4: JSON, and Python's calls.

    {"name": "name", "parameters": {"key": "value"}}
    [name(key="value", other=3), name()]

Llama 4 may write calls after `<|python_start|>` or between this mark and `<|python_end|>`; Llama
3.2 writes no mark. An answer that is ordinary text may begin with a bracket too, so without a mark
only a function that the request offers is a call. Each model's answer is read in both forms.

Source: the chat templates that vLLM has for Llama 3.2 and 4, and that of Llama-4-Scout, which asks
for JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.histories import with_values
from heddle.extensions.call_forms.python_calls import PythonCalls
from heddle.text.chat.call_forms import CallForm, object_lark

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

_START, _END = "<|python_start|>", "<|python_end|>"


@dataclass(frozen=True, slots=True)
class Llama(CallForm):
    """`{"name": ..., "parameters": ...}` and nothing else, as Llama 3 writes it.

    `<|python_tag|>` may come first. Without the tag, only an object that names a function is a
    call, because an ordinary answer may be JSON too.
    """

    marks: ClassVar = ("<|python_tag|>",)

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        tagged = yield from source.skip(self.marks[0])
        yield from source.read_objects(None if tagged else names)

    def opening(self, mark: Mark) -> str:
        tag = mark(self.marks[0])
        return f"{tag}?" if tag.startswith("<") else '""'

    def calls(self, mark: Mark, *, several: bool) -> str:
        return "SPACE? function SPACE?"  # one call: templates refuse several

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        return object_lark(name, "parameters", schema)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages, one call in each: Llama's templates refuse a message with several calls."""
        split: list[Mapping[str, Any]] = []
        for message in messages:
            first, *others = message.get("tool_calls") or (None,)
            split.append(message if first is None else {**message, "tool_calls": [first]})
            split += ({**message, "content": "", "tool_calls": [call]} for call in others)
        return split


@dataclass(frozen=True, slots=True)
class LlamaPython(PythonCalls):
    """A list of Python's calls and nothing else.

    Attributes:
        quotes: whether the template itself writes quotes around values.
    """

    quotes: bool = True

    marks: ClassVar = (_START, _END)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        written = PythonCalls.history(self, messages)
        return written if self.quotes else with_values(written, _quoted)

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        tagged = yield from source.skip(_START)
        yield from source.skip(_END)  # Llama-4-Scout's template writes text between the marks
        offered = None if tagged else names
        found = yield from self.read_calls(source, offered)
        found = found or (yield from source.read_objects(offered))
        if tagged and not found and source.cut and source.ended:
            yield from source.until((), lambda _: None)  # the beginning of a call
        yield from source.skip(_END)

    def opening(self, mark: Mark) -> str:
        return _optional(mark(_START))

    def calls(self, mark: Mark, *, several: bool) -> str:
        return f"{self.list_lark(several)} {_optional(mark(_END))} SPACE?"


@dataclass(frozen=True, slots=True)
class Llama4(LlamaPython):
    """JSON objects and nothing else."""

    def calls(self, mark: Mark, *, several: bool) -> str:
        more = '(SPACE? (";" SPACE?)? function)*' if several else ""
        end = _optional(mark(_END))
        return f"{end} SPACE? function {more} SPACE? {end} SPACE?"

    def rules(self, mark: Mark) -> tuple[str, ...]:
        return ()

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        return Llama().function(name, schema, mark)


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    if "[func_name1(" in template:  # of the example in vLLM's templates
        return LlamaPython(quotes="format(" not in template or "'=\"'" in template)
    if '"parameters"' not in template:
        return None
    if "<|header_start|>" in template:
        return Llama4()
    # Models of other families that came from Llama 3 write `<tool_call>`.
    return Llama() if "<|start_header_id|>" in template and "<tool_call>" not in template else None


def _quoted(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value


def _optional(mark: str) -> str:
    """Lark for a mark that may be there, if it is a control token."""
    return f"{mark}?" if mark.startswith("<") else '""'
