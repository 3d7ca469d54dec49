"""The forms in which models write function calls.

A form reads calls from an answer, writes calls into a conversation, and gives a grammar for calls.
The model's chat template decides which form applies (`text/chat/dialect.py`).
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
    """Returns a mark in Lark: a control token if the model has one for the mark, else text."""
    Schema: TypeAlias = Mapping[str, Any]
    """A JSON schema."""


class CallForm(ABC):
    """How one family of models writes calls. Forms have no state."""

    marks: ClassVar[tuple[str, ...]]
    """Marks of calls. If a mark is a control token, the detokenizer must show it in the text."""
    frames: ClassVar[bool] = False
    """Whether the form also marks reasoning and text, so that `read` reads whole answers."""

    @abstractmethod
    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        """Read an answer after its reasoning. Report text and calls to `source`.

        Characters that are still unread when this returns are text. `names` lists the functions
        that the request offers.
        """

    @abstractmethod
    def opening(self, mark: Mark) -> str:
        """Lark for the text before the first call."""

    @abstractmethod
    def calls(self, mark: Mark, *, several: bool) -> str:
        """Lark for the calls after `opening`. The Lark refers to the rule `function`."""

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        """Lark for one alternative of the rule `function`. `schema` is that of the arguments."""
        return _object(name, "arguments", schema)

    def rules(self, mark: Mark) -> Sequence[str]:
        """More rules in Lark, to which `calls` and `function` refer."""
        return ()

    def typed(self, schemas: Mapping[str, Schema]) -> CallForm:
        """The form for functions whose arguments have these schemas.

        A form that writes values without their types needs the schemas to read them.
        """
        return self

    def text_opening(self, mark: Mark) -> str:
        """Lark for what comes before an answer's text; empty if nothing does."""
        return ""

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages, with calls in the shape that templates of this family take."""
        return messages


_LOOSE = {"```json": "```", "<tools>": "</tools>"}
"""Tags that models of the Hermes family write around calls instead of the trained marks. Small Qwen
2.5 models mostly do. Between these tags, only an object that names a function is a call."""


@dataclass(frozen=True, slots=True)
class Hermes(CallForm):
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`, as Hermes and Qwen write it.

    Some models of the family write several objects, or a list of objects, between one pair of
    marks. Other models write only the object, without marks.
    """

    marks: ClassVar = ("<tool_call>", "</tool_call>")

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        opening, closing = self.marks
        closings = {opening: closing, **_LOOSE}
        yield from source.read_objects(names)
        while mark := (yield from source.until(closings, source.add_text)):
            if (yield from source.read_objects(None if mark == opening else names)):
                yield from source.skip_one_of(closings.values())
            elif mark == opening:
                yield from source.reject_mark(mark)
            else:
                source.add_text(mark)

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
        return _object(name, "parameters", schema)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages, one call in each: Llama's templates refuse a message with several calls."""
        split: list[Mapping[str, Any]] = []
        for message in messages:
            first, *others = message.get("tool_calls") or (None,)
            split.append(message if first is None else {**message, "tool_calls": [first]})
            split += ({**message, "content": "", "tool_calls": [call]} for call in others)
        return split


@dataclass(frozen=True, slots=True)
class Mistral(CallForm):
    """`[TOOL_CALLS]` and a list of `{"name": ..., "arguments": ...}`, as Mistral's models write it.

    Newer models write `[TOOL_CALLS]name[ARGS]{...}` for each call. `[CALL_ID]` and an id may follow
    the name. `read` accepts both forms for every model.

    Attributes:
        named: whether the model was trained on the newer form.
    """

    named: bool = False

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

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        if self.named:
            return f"{json.dumps(name)} {mark(self.marks[1])} {json_lark(schema)}"
        return CallForm.function(self, name, schema, mark)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages with short ids: Mistral's templates require nine letters and digits."""
        return [_with_short_ids(message) for message in messages]

    def _named(self, source: AnswerReader) -> Steps[bool]:
        """Read a function's name, its mark and its arguments. False if they do not come next."""
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
            yield from source.json_value(source.add_arguments)
        return bool(name)


def json_lark(schema: Schema) -> str:
    """Lark for JSON that a schema allows."""
    return f"%json {json.dumps(schema)}"


def _object(name: str, member: str, schema: Schema) -> str:
    """Lark for the object of a call, with optional space where JSON allows it."""
    first, second = json.dumps(f'"name": "{name}",'), json.dumps(f'"{member}": ')
    return f'"{{" SPACE? {first} SPACE? {second} {json_lark(schema)} SPACE? "}}"'


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
