"""The engine of forms that write calls as Python does.

    [name(key='value', other=3), name()]

A form of this kind is a class with its marks. A value arrives whole. Models and templates escape
nothing, so a quote ends a string only where something that may follow it comes next.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.histories import with_objects
from heddle.extensions.call_forms.tagged import comes_next, is_portable, values_of
from heddle.extensions.call_forms.types import STRING, json_of, resolved, types_of
from heddle.text.chat.call_forms import CallForm
from heddle.text.parsing.characters import END

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from heddle.text.chat.call_forms import Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

_NAME = re.compile(r"[\w.\-]{1,256}")
_OPENING, _CLOSING = "([{", ")]}"


@dataclass(frozen=True, slots=True)
class PythonCalls(CallForm):
    """Calls as Python writes them. Subclasses name the marks.

    Attributes:
        schemas: schemas of the functions' arguments, by function.
    """

    schemas: Mapping[str, Schema] = field(default_factory=dict, compare=False)

    brackets: ClassVar[tuple[str, str]] = ("[", "]")
    """What stands around all calls."""
    separator: ClassVar[str] = ","
    booleans: ClassVar[tuple[str, str]] = ("True", "False")

    def typed(self, schemas: Mapping[str, Schema]) -> CallForm:
        return replace(self, schemas=schemas)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return with_objects(messages)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        opening, closing = self.marks
        while mark := (yield from source.until((opening,), source.add_text)):
            source.expect_call(source.position)
            if (yield from self.read_calls(source, None)):
                yield from source.skip(closing)
            else:
                yield from source.reject_mark(mark)

    def read_calls(self, source: AnswerReader, names: Collection[str] | None) -> Steps[bool]:
        """Read calls with their brackets. Returns whether there are any.

        `names` lists the functions that they may name; None: any.
        """
        opening, closing = self.brackets
        found: list[str] = []
        if not (yield from source.attempt(self._name(source, opening, names, found))):
            return False
        yield from self._arguments(source, found[-1])
        while (yield from source.attempt(self._name(source, self.separator, names, found))):
            yield from self._arguments(source, found[-1])
        yield from source.skip(closing)
        return True

    def _name(
        self, source: AnswerReader, before: str, names: Collection[str] | None, found: list[str]
    ) -> Steps[bool]:
        """Read `before`, a function's name and a parenthesis, and begin the call."""
        start = source.position
        if not (yield from source.skip(before)):
            return False
        name = yield from self._until(source, "(")
        if not name or (names is not None and name not in names):
            return False
        found.append(name)
        source.expect_call(start)
        source.begin_call(name)
        return True

    def _until(self, source: AnswerReader, end: str) -> Steps[str]:
        """Read a name and the character after it. Returns an empty text if none comes."""
        char = yield from source.after_space()
        name = ""
        while char not in (end, END):
            name += char
            if not _NAME.fullmatch(name.rstrip()):
                return ""
            char = yield from source.next()
        return name.rstrip() if char == end else ""

    def _arguments(self, source: AnswerReader, name: str) -> Steps[None]:
        """Read arguments and the parenthesis after them."""
        schema = resolved(self.schemas.get(name), {})
        named = schema.get("properties")
        properties = named if isinstance(named, dict) else {}
        source.add_arguments("{")
        separator = ""
        while key := (yield from self._key(source)):
            value = yield from self._value(source)
            if source.cut and source.ended:
                break  # the value may be incomplete
            start = f"{separator}{json.dumps(key, ensure_ascii=False)}: "
            separator = ", "
            types = types_of(properties.get(key), schema)
            source.add_arguments(start + _json_of_value(value, types))
        yield from source.skip(")")
        if source.cut and source.ended:
            yield from source.until((), lambda _: None)
        else:
            source.add_arguments("}")

    def _key(self, source: AnswerReader) -> Steps[str]:
        found: list[str] = []

        def steps() -> Steps[bool]:
            yield from source.skip(",")
            found.append((yield from self._until(source, "=")))
            return bool(found[0])

        return found[0] if (yield from source.attempt(steps())) else ""

    def _value(self, source: AnswerReader) -> Steps[str]:
        """Read the text of a value, up to a comma or parenthesis that is not part of it."""
        text, depth, quote = "", 0, ""
        while (char := (yield from source.next())) != END:
            if quote:
                if char == "\\":
                    char += yield from source.next()
                elif char == quote and (yield from comes_next(source, (*",:", *_CLOSING))):
                    quote = ""
            elif char in "'\"":
                quote = char
            elif not depth and char in ",)":
                source.put_back(char)
                break
            else:
                depth += (char in _OPENING) - (char in _CLOSING)
            text += char
        return text.strip()

    # --- grammars --------------------------------------------------------------------------------

    def opening(self, mark: Mark) -> str:
        return mark(self.marks[0])

    def calls(self, mark: Mark, *, several: bool) -> str:
        return f"{self.list_lark(several)} {mark(self.marks[1])} SPACE?"

    def list_lark(self, several: bool) -> str:
        """Lark for the calls with their brackets."""
        opening, closing = map(json.dumps, self.brackets)
        between = f"{json.dumps(self.separator)} SPACE?" if self.separator else "SPACE"
        more = f"({between} function)*" if several else ""
        return f"SPACE? {opening} function {more} {closing} SPACE?"

    def rules(self, mark: Mark) -> Sequence[str]:
        string = r"""/'([^'\\\n]|\\.)*'/ | /"([^"\\\n]|\\.)*"/"""
        number = r"/-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+\-]?[0-9]{1,3})?/"
        words = " | ".join(map(json.dumps, ("True", "False", "None", "true", "false", "null")))
        items = '"[" (value ("," SPACE? value)*)? "]"'
        pair = 'string ":" SPACE? value'
        members = f'"{{" ({pair} ("," SPACE? {pair})*)? "}}"'
        return [
            f"string: {string}",
            f"value: string | {number} | {words} | {items} | {members}",
            'argument: /[A-Za-z_][A-Za-z0-9_]*/ "=" value',
        ]

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        root = resolved(schema, schema)
        named, required = root.get("properties"), root.get("required")
        required = required if isinstance(required, list) else []
        properties: dict[str, Any] = {key: {} for key in required}
        properties |= named if isinstance(named, dict) else {}
        written = {
            key: f"{json.dumps(f'{key}=')} {self._value_lark(part, schema)}"
            for key, part in properties.items()
        }
        first = [written[key] for key in properties if key in required]
        rest = [written[key] for key in properties if key not in required]
        more = ' ("," SPACE? argument)*' if root.get("additionalProperties") is not False else ""
        comma = ' "," SPACE? '
        if first:
            arguments = comma.join(first) + "".join(f" ({comma} {one})?" for one in rest) + more
        else:
            choices = [*_beginnings(rest, comma)]
            choices += ["argument"] if more else []
            arguments = f"(({' | '.join(choices)}){more})?" if choices else ""
        return f'{json.dumps(f"{name}(")} {arguments} ")"'

    def _value_lark(self, part: Any, root: Schema) -> str:
        types, values = types_of(part, root), values_of(part, root)
        if types == STRING:
            written = (form(one) for one in values for form in (repr, json.dumps))
            return f"({' | '.join(map(json.dumps, written))})" if values else "string"
        if types == {"boolean"}:
            return f"({' | '.join(map(json.dumps, self.booleans))})"
        if types & STRING or not is_portable(part):
            return "value"
        shared = {key: root[key] for key in ("$defs", "definitions", "x-guidance") if key in root}
        return f"%json {json.dumps({**part, **shared})}"


def _beginnings(optional: Sequence[str], comma: str) -> Iterator[str]:
    """Lark for a row of optional arguments, by the first one that is there."""
    for place, one in enumerate(optional):
        yield one + "".join(f" ({comma} {other})?" for other in optional[place + 1 :])


def _json_of_value(text: str, types: frozenset[str]) -> str:
    """JSON for a value in Python's form."""
    if text[:1] not in ("'", '"') or len(text) < 2 or text[-1] != text[0]:
        return json_of(text, types)
    try:
        inner = str(ast.literal_eval(text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        inner = text[1:-1]
    return json.dumps(inner, ensure_ascii=False) if types & STRING else json_of(inner, types)
