"""The forms in which models write calls of functions: how each is read in an answer, written in a
conversation, and prescribed by a grammar.

A form is chosen by what the model's chat template shows (`text/chat/dialect.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from heddle.text.parsing.characters import END

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

    Mark: TypeAlias = Callable[[str], str]
    """Writes a mark in Lark: as text, or as the control token that it is."""


class CallForm(ABC):
    """How one family of models writes calls. Forms have no state."""

    marks: ClassVar[tuple[str, ...]]
    """What calls are marked with. Where these are control tokens, the text has to show them."""

    @abstractmethod
    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        """Read an answer after its reasoning: tell `source` what is text and what are calls.

        What is left unread when this returns is text. `names` are the functions there are.
        """

    @abstractmethod
    def opening(self, mark: Mark) -> str:
        """Lark of what precedes the first call."""

    @abstractmethod
    def calls(self, mark: Mark, *, several: bool) -> str:
        """Lark of the calls after that, over the rule `function`."""

    def function(self, name: str, arguments: str, mark: Mark) -> str:
        """Lark of one way of the rule `function`, where `arguments` is that of its arguments."""
        return _object(name, "arguments", arguments)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Messages with calls in them as the templates of this family take them."""
        return messages


_LOOSE = {"```json": "```", "<tools>": "</tools>"}
"""What models of Hermes' family put around calls in place of their marks: the small ones of Qwen
2.5 mostly do. Only an object that names a function is a call there."""


@dataclass(frozen=True, slots=True)
class Hermes(CallForm):
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`, as Hermes and Qwen write it.

    Some models of the family put several objects, or a list of them, between one pair of marks;
    some begin with an object and leave the marks out.
    """

    marks: ClassVar = ("<tool_call>", "</tool_call>")

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        opening, closing = self.marks
        closings = {opening: closing, **_LOOSE}
        yield from source.objects(names)
        while mark := (yield from source.until(closings, source.say)):
            if (yield from source.objects(None if mark == opening else names)):
                yield from source.skip_one_of(closings.values())
            elif mark == opening:
                yield from source.dismiss(mark)
            else:
                source.say(mark)

    def opening(self, mark: Mark) -> str:
        return mark(self.marks[0])

    def calls(self, mark: Mark, *, several: bool) -> str:
        opening, closing = map(mark, self.marks)
        closings = " | ".join([closing, *map(json.dumps, _LOOSE.values())])
        first = f"SPACE? function SPACE? ({closings})?"
        more = f"(SPACE? {opening} SPACE? function SPACE? {closing})*" if several else ""
        return f"{first} {more} SPACE?"


@dataclass(frozen=True, slots=True)
class Llama(CallForm):
    """`{"name": ..., "parameters": ...}` and nothing else, as Llama 3 writes it.

    `<|python_tag|>` may come first. Without it only an object that names a function is a call:
    an answer may well be JSON.
    """

    marks: ClassVar = ("<|python_tag|>",)

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        tagged = yield from source.skip(self.marks[0])
        yield from source.objects(None if tagged else names)

    def opening(self, mark: Mark) -> str:
        tag = mark(self.marks[0])
        return f"{tag}?" if tag.startswith("<") else '""'

    def calls(self, mark: Mark, *, several: bool) -> str:
        return "SPACE? function SPACE?"  # one: the templates refuse a message of several

    def function(self, name: str, arguments: str, mark: Mark) -> str:
        return _object(name, "parameters", arguments)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """These templates refuse messages of several calls: each call has a message of its own."""
        split: list[Mapping[str, Any]] = []
        for message in messages:
            first, *others = message.get("tool_calls") or (None,)
            split.append(message if first is None else {**message, "tool_calls": [first]})
            split += ({**message, "content": "", "tool_calls": [call]} for call in others)
        return split


@dataclass(frozen=True, slots=True)
class Mistral(CallForm):
    """`[TOOL_CALLS]` and a list of `{"name": ..., "arguments": ...}`, as Mistral's models write it.

    Newer ones write `[TOOL_CALLS]name[ARGS]{...}` for each call, perhaps with `[CALL_ID]` and an id
    after the name. Both are read, whichever the model was trained on.

    Attributes:
        named: whether the model was trained on the newer form.
    """

    named: bool = False

    marks: ClassVar = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        opening = self.marks[0]
        while (yield from source.until((opening,), source.say)):
            if (yield from source.objects(None)):
                continue
            if not (yield from source.attempt(self._named(source))):
                yield from source.dismiss(opening)

    def opening(self, mark: Mark) -> str:
        return mark(self.marks[0])

    def calls(self, mark: Mark, *, several: bool) -> str:
        if self.named:
            return f"function (SPACE? {self.opening(mark)} function)*" if several else "function"
        more = '("," SPACE? function)*' if several else ""
        return f'SPACE? "[" function {more} "]" SPACE?'

    def function(self, name: str, arguments: str, mark: Mark) -> str:
        if self.named:
            return f"{json.dumps(name)} {mark(self.marks[1])} {arguments}"
        return CallForm.function(self, name, arguments, mark)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """These templates refuse ids of calls that are not nine letters and digits."""
        return [_with_short_ids(message) for message in messages]

    def _named(self, source: AnswerReader) -> Steps[bool]:
        """Read a name, and after its mark the arguments; False if there is no such thing."""
        _, before_arguments, before_id = self.marks
        name = ""
        while not name.endswith(before_arguments):
            char = yield from source.next()
            if char in (END, "\n", "{"):
                return False
            name += char
        name = name.removesuffix(before_arguments).partition(before_id)[0].strip()
        if name:
            source.begin_call(name)
            yield from source.json_value(source.argue)
        return bool(name)


def _object(name: str, member: str, arguments: str) -> str:
    """Lark of a call's object, with as much space as there is in JSON."""
    first, second = json.dumps(f'"name": "{name}",'), json.dumps(f'"{member}": ')
    return f'"{{" SPACE? {first} SPACE? {second} {arguments} SPACE? "}}"'


_SHORT_ID = re.compile("[A-Za-z0-9]{9}")


def _with_short_ids(message: Mapping[str, Any]) -> Mapping[str, Any]:
    changed = dict(message)
    if "tool_call_id" in message:
        changed["tool_call_id"] = _short_id(message["tool_call_id"])
    if "tool_calls" in message:
        changed["tool_calls"] = [
            {**call, "id": _short_id(call["id"])} for call in message["tool_calls"]
        ]
    return changed


def _short_id(id: str) -> str:
    return id if _SHORT_ID.fullmatch(id) else hashlib.sha256(id.encode()).hexdigest()[:9]


HERMES, LLAMA = Hermes(), Llama()
MISTRAL, MISTRAL_NAMED = Mistral(), Mistral(named=True)
