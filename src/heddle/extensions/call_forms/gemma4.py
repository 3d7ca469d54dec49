"""The form of Gemma 4: JSON with quotes of its own, and keys without quotes.

    <|tool_call>call:name{key:<|"|>value<|"|>,other:[1,{deep:true}]}<tool_call|>

Sources: the chat templates of gemma-4-31B-it, an older one and the one that llama.cpp brings, and
vLLM's gemma4_tool_parser.py. Templates write the keys in alphabetical order, and escape nothing: a
quote ends a string only where something that may follow a value comes next.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.histories import with_objects
from heddle.extensions.call_forms.rows import row
from heddle.extensions.call_forms.tagged import LONGEST_NAME, comes_next, escaped, up_to
from heddle.extensions.call_forms.types import STRING, json_of, resolved, types_of
from heddle.extensions.call_forms.value_larks import ValueLarks
from heddle.text.chat.call_forms import CallForm
from heddle.text.parsing.characters import END

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps, Take

_RESULT = "<|tool_response>"
"""What the model writes after its calls, and the template before their results."""
_NAME = re.compile(r"[\w.\-]+")
_DEEPEST = 64
"""Most levels of a value that are read as Gemma writes them. A deeper value is a string."""


@dataclass(frozen=True, slots=True)
class Gemma4(CallForm):
    """`call:name{...}` between two marks.

    Attributes:
        knows_results: whether the template writes messages of the role `tool`. If not, it writes
            results that are in the message with the calls.
        schemas: schemas of the functions' arguments, by function.
    """

    knows_results: bool = True
    schemas: Mapping[str, Schema] = field(default_factory=dict, compare=False)

    quote: ClassVar = '<|"|>'
    marks: ClassVar = ("<|tool_call>", "<tool_call|>", quote, _RESULT)

    def typed(self, schemas: Mapping[str, Schema]) -> CallForm:
        return replace(self, schemas=schemas)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        written = with_objects(messages)
        return written if self.knows_results else _with_results(written)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        opening, closing = self.marks[:2]
        called = False
        while mark := (yield from source.until((opening, _RESULT), source.add_text)):
            if mark == _RESULT:
                if not called:
                    source.add_text(mark)
                continue
            source.expect_call(source.position)
            found: list[str] = []
            if not (yield from source.attempt(self._name(source, found))):
                yield from source.reject_mark(mark)
                continue
            called = True
            schema = self.schemas.get(found[0], {})
            yield from self._members(source, "", schema, schema, 0)
            if source.cut and source.ended:
                yield from source.until((), lambda _: None)  # an incomplete key or mark
            yield from source.skip(closing)

    def _name(self, source: AnswerReader, found: list[str]) -> Steps[bool]:
        """Read `call:`, a function's name and a brace, and begin the call."""
        if not (yield from source.skip("call:")):
            return False
        name = ""
        while (char := (yield from source.next())) not in ("{", END) and len(name) < LONGEST_NAME:
            name += char
        if char != "{" or not _NAME.fullmatch(name):
            return False
        found.append(name)
        source.begin_call(name)
        return True

    def _members(
        self, source: AnswerReader, start: str, part: Any, root: Schema, depth: int
    ) -> Steps[None]:
        """Read the members of an object after its brace, and the closing brace."""
        named = resolved(part, root).get("properties")
        properties = named if isinstance(named, dict) else {}
        source.add_arguments(f"{start}{{")
        separator = ""
        while key := (yield from self._key(source)):
            before = f"{separator}{json.dumps(key, ensure_ascii=False)}: "
            yield from self._value(source, before, properties.get(key), root, depth + 1)
            separator = ", "
        yield from self._end(source, "}")

    def _items(
        self, source: AnswerReader, start: str, part: Any, root: Schema, depth: int
    ) -> Steps[None]:
        """Read the items of a list after its bracket, and the closing bracket."""
        items = resolved(part, root).get("items")
        source.add_arguments(f"{start}[")
        separator = ""
        while (char := (yield from source.after_space())) not in ("]", "}", END):
            if char == ",":
                continue
            source.put_back(char)
            begun = source.position
            yield from self._value(source, separator, items, root, depth + 1)
            separator = ", "
            if source.position == begun:  # the mark after the call comes next
                char = ""
                break
        source.put_back(char)
        yield from self._end(source, "]")

    def _end(self, source: AnswerReader, bracket: str) -> Steps[None]:
        yield from source.skip(bracket)
        if not (source.cut and source.ended):
            source.add_arguments(bracket)

    def _key(self, source: AnswerReader) -> Steps[str]:
        """Read a key and the colon after it. Returns an empty text, and reads nothing, if none
        comes."""
        found: list[str] = []

        def steps() -> Steps[bool]:
            yield from source.skip(",")
            key = ""
            while not key.endswith(":"):
                char = yield from source.next()
                key += char
                if char in ("{", "}", END) or len(key) > LONGEST_NAME:
                    return False
            key = key[:-1].strip().removeprefix(self.quote).removesuffix(self.quote).strip('"')
            found.append(key)
            return bool(key) and "<" not in key

        return found[0] if (yield from source.attempt(steps())) else ""

    def _value(
        self, source: AnswerReader, start: str, part: Any, root: Schema, depth: int
    ) -> Steps[None]:
        """Read a value of the schema `part` of `root`. Add it after the text `start`."""
        types = types_of(part, root)
        if (yield from source.skip(self.quote)):
            yield from self._quoted(source, start, types)
            return
        char = yield from source.after_space()
        if char == "{" and depth < _DEEPEST:
            yield from self._members(source, start, part, root, depth)
        elif char == "[" and depth < _DEEPEST:
            yield from self._items(source, start, part, root, depth)
        else:
            source.put_back(char)
            text = yield from self._bare(source)
            if text and not (source.cut and source.ended):  # else the value may be incomplete
                source.add_arguments(start + _json_of_bare(text, types))

    def _quoted(self, source: AnswerReader, start: str, types: frozenset[str]) -> Steps[None]:
        """Read a string after its quote, and the closing quote. It streams if it stays a string."""
        if types & STRING:
            source.add_arguments(f'{start}"')
            yield from self._text(source, lambda text: source.add_arguments(escaped(text)))
            if not (source.cut and source.ended):
                source.add_arguments('"')
            return
        pieces: list[str] = []
        yield from self._text(source, pieces.append)
        if not (source.cut and source.ended):
            source.add_arguments(start + json_of("".join(pieces), types))

    def _text(self, source: AnswerReader, take: Take) -> Steps[None]:
        while mark := (yield from source.until((self.quote,), take)):
            if (yield from comes_next(source, (",", "}", "]"))):
                return
            take(mark)

    def _bare(self, source: AnswerReader) -> Steps[str]:
        """Read a value without quotes: a number or a word, or what is nested too deeply."""
        text, depth, closing = "", 0, self.marks[1]
        while (char := (yield from source.next())) != END:
            if char == '"' and not text.strip():
                source.put_back(char)
                pieces: list[str] = []
                yield from source.json_value(pieces.append)
                text += "".join(pieces)
                continue
            if not depth and char in ",}]":
                source.put_back(char)
                break
            depth += (char in "{[") - (char in "}]")
            text += char
            if text.endswith(closing):  # a brace is missing
                source.put_back(closing)
                text = text.removesuffix(closing)
                break
        return text.strip()

    # --- grammars --------------------------------------------------------------------------------

    def opening(self, mark: Mark) -> str:
        return mark(self.marks[0])

    def calls(self, mark: Mark, *, several: bool) -> str:
        opening, closing = mark(self.marks[0]), mark(self.marks[1])
        more = f"(SPACE? {opening} function {closing})*" if several else ""
        return f"function {closing} {more} {mark(_RESULT)}? SPACE?"

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        members = _Larks(schema, mark(self.quote)).members(schema, 0)
        return f'{json.dumps(f"call:{name}{{")} {members} "}}"'

    def rules(self, mark: Mark) -> Sequence[str]:
        quote = mark(self.quote)
        is_control = quote.startswith("<")  # no other text has a control token
        text = f"text: /(?s:.*)/ {quote}" if is_control else f"text[lazy]: {up_to(self.quote)}"
        number = r"/-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+\-]?[0-9]{1,3})?/"
        items = '"[" (value ("," value)*)? "]"'
        members = '"{" (pair ("," pair)*)? "}"'
        return [
            text,
            f"string: {quote} text",
            f'value: string | {number} | "true" | "false" | "null" | {items} | {members}',
            r'pair: /[^<>{}\[\]:,"\s]+/ ":" value',
        ]


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    if Gemma4.marks[0] + "call:" not in template:
        return None
    return Gemma4("tool_call_id" in template)


def _json_of_bare(text: str, types: frozenset[str]) -> str:
    """JSON for a value without Gemma's quotes. JSON's quotes are quotes, too."""
    try:
        inner = json.loads(text) if text.startswith('"') else None
    except ValueError:
        inner = None
    if isinstance(inner, str):
        return json.dumps(inner, ensure_ascii=False) if types & STRING else json_of(inner, types)
    return json_of(text, types)


def _with_results(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages, with each result of a call in the message with the call."""
    written: list[Mapping[str, Any]] = []
    for message in messages:
        last = written[-1] if written else {}
        names = {call.get("id"): call["function"]["name"] for call in last.get("tool_calls") or ()}
        if message["role"] != "tool" or not names:
            written.append(message)
            continue
        name = names.get(message.get("tool_call_id"), "unknown")
        result = {"name": name, "response": message["content"]}
        written[-1] = {**last, "tool_responses": [*last.get("tool_responses", ()), result]}
    return written


class _Larks(ValueLarks):
    """Lark for values as Gemma writes them. `quote` is Lark for the quote."""

    anything: ClassVar = "value"

    def __init__(self, root: Schema, quote: str) -> None:
        super().__init__(root)
        self._quote = quote

    def members(self, part: Any, depth: int) -> str:
        """Lark for the members of an object, in the order in which templates write them."""
        found = [
            (f"{json.dumps(f'{key}:')} {self.value(one, depth + 1)}", is_required)
            for key, one, is_required in sorted(self.properties(part), key=_by_letter)
        ]
        return row(found, "pair" if self.is_open(part) else "")

    def literal(self, value: Any) -> str:
        if not isinstance(value, str):
            return super().literal(value)
        return (
            f"{self._quote} {json.dumps(value)} {self._quote}" if value else f"{self._quote} " * 2
        )

    def typed(self, type: str, schema: Mapping[str, Any], depth: int) -> str:
        match type:
            case "string":
                return "string"
            case "array":
                item = self.value(schema.get("items"), depth + 1)
                return f'"[" ({item} ("," {item})*)? "]"'
            case "object":
                return f'"{{" {self.members(schema, depth)} "}}"'
        return super().typed(type, schema, depth)


def _by_letter(property: tuple[str, Any, bool]) -> str:
    return property[0].lower()
