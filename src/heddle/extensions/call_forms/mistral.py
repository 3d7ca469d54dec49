"""The forms of Mistral's models, by the version of their tokenizer.

    [TOOL_CALLS][{"name": "name", "arguments": {...}, "id": "123456789"}]   v2 to v7
    [TOOL_CALLS]name[CALL_ID]123456789[ARGS]{...}                           v11
    [TOOL_CALLS]name[ARGS]{...}                                             v13 and newer

Every model's answer is read in all of them. From v11 on, each call has a mark of its own. The id
has nine letters and digits; Heddle gives calls ids of its own.

Source: the chat templates in the tests of mistral-common 1.11.7, its `experimental/tools.py`, and
the template of Mistral-Small-3.1 that llama.cpp has.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.text.chat.call_forms import CallForm, json_lark
from heddle.text.parsing.characters import END

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

_ID = "/[A-Za-z0-9]{9}/"
_SHORT_ID = re.compile("[A-Za-z0-9]{9}")
_LONGEST_HEADER = 256


@dataclass(frozen=True, slots=True)
class Mistral(CallForm):
    """`[TOOL_CALLS]`, and then a list of objects or one call.

    Attributes:
        named: whether the model was trained on a name and `[ARGS]`.
        ids: whether `[CALL_ID]` and an id come between them.
        words: whether the template takes messages with both text and calls.
        thinks: whether the template takes reasoning, as a block of the content.
    """

    named: bool = False
    ids: bool = False
    words: bool = True
    thinks: bool = False

    marks: ClassVar = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        opening = self.marks[0]
        while (yield from source.until((opening,), source.add_text)):
            if (yield from source.read_objects(None)):
                continue
            if not (yield from source.attempt(self._named(source))):
                yield from source.reject_mark(opening)

    def opening(self, mark: Mark) -> str:
        return mark(self.marks[0])

    def calls(self, mark: Mark, *, several: bool) -> str:
        if self.named:
            return f"function (SPACE? {self.opening(mark)} function)*" if several else "function"
        more = '("," SPACE? function)*' if several else ""
        return f'SPACE? "[" function {more} "]" SPACE?'

    def rules(self, mark: Mark) -> Sequence[str]:
        if self.named:
            return [f"between: {mark(self.marks[2])} {_ID}"] if self.ids else ['between: ""']
        return [f"""id: "," SPACE? "\\"id\\": \\"" {_ID} "\\"" """]

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        arguments = json_lark(schema)
        if self.named:
            return f"{json.dumps(name)} between {mark(self.marks[1])} {arguments}"
        first, second = json.dumps(f'"name": "{name}",'), json.dumps('"arguments": ')
        return f'"{{" SPACE? {first} SPACE? {second} {arguments} id? SPACE? "}}"'

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages with short ids: Mistral's templates require nine letters and digits.

        Results get the names of their functions, which v2 requires.
        """
        names: dict[str, str] = {}
        written = []
        for message in messages:
            names |= {call["id"]: call["function"]["name"] for call in _calls(message)}
            changed = self._written(message, names)
            written.append(self._thoughtful(changed) if _calls(message) else changed)
        return written

    def _thoughtful(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message with calls, whose reasoning is where the template takes it."""
        thoughts, text = message.get("reasoning_content"), message["content"]
        if not (self.thinks and thoughts):
            return message
        blocks = [{"type": "thinking", "thinking": thoughts}]
        return {
            **message,
            "content": [*blocks, *([{"type": "text", "text": text}] if text else ())],
        }

    def _written(self, message: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
        changed = dict(message)
        if (id := message.get("tool_call_id")) is not None:
            named = {"name": names[id]} if id in names else {}
            changed = {**named, **message, "tool_call_id": _short_id(id)}
        if calls := _calls(message):
            changed["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in calls]
            if not self.words:
                changed["content"] = ""
        return changed

    def _named(self, source: AnswerReader) -> Steps[bool]:
        """Read a function's name, its mark and its arguments. False if they do not come next."""
        _, before_arguments, before_id = self.marks
        name = ""
        while not name.endswith(before_arguments):
            char = yield from source.next()
            if char in (END, "\n", "{") or len(name) > _LONGEST_HEADER:
                return False
            name += char
        name = name.removesuffix(before_arguments).partition(before_id)[0].strip()
        if name:
            source.begin_call(name)
            yield from source.json_value(source.add_arguments)
        return bool(name)


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    if Mistral.marks[0] not in template:
        return None
    words = "cannot have both content and tool calls" not in template
    thinks = "[/THINK]" in template
    return Mistral("[ARGS]" in template, "[CALL_ID]" in template, words, thinks)


def _calls(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return message.get("tool_calls") or ()


def _short_id(id: str) -> str:
    return id if _SHORT_ID.fullmatch(id) else hashlib.sha256(id.encode()).hexdigest()[:9]
