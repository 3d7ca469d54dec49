"""The form of LFM2 and LFM2.5: calls as Python writes them.

    <|tool_call_start|>[name(key='value', other=3), name()]<|tool_call_end|>

Source: the chat template of LFM2.5-8B-A1B; that of LFM2 was not read. It writes strings between
single quotes and escapes nothing, so a quote ends a string only where something
that may follow it comes next.
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
class Lfm2(CallForm):
    """A list of Python's calls between two marks.

    Attributes:
        knows_calls: whether the template writes earlier calls. If not, `history` does.
        schemas: schemas of the functions' arguments, by function.
    """

    knows_calls: bool = True
    schemas: Mapping[str, Schema] = field(default_factory=dict, compare=False)

    marks: ClassVar = ("<|tool_call_start|>", "<|tool_call_end|>")

    def typed(self, schemas: Mapping[str, Schema]) -> CallForm:
        return replace(self, schemas=schemas)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        written = with_objects(messages)
        return written if self.knows_calls else [self._with_text(one) for one in written]

    def _with_text(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if not message.get("tool_calls"):
            return message
        functions = [call["function"] for call in message["tool_calls"]]
        calls = ", ".join(_python_of(one["name"], one["arguments"]) for one in functions)
        text = f"{self.marks[0]}[{calls}]{self.marks[1]}"
        rest = {name: value for name, value in message.items() if name != "tool_calls"}
        return rest | {"content": f"{message['content']}{text}"}

    # --- reading ---------------------------------------------------------------------------------

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        opening, closing = self.marks
        while mark := (yield from source.until((opening,), source.add_text)):
            source.expect_call(source.position)
            found: list[str] = []
            if not (yield from source.attempt(self._name(source, "[", found))):
                yield from source.reject_mark(mark)
                continue
            yield from self._arguments(source, found[-1])
            while (yield from source.attempt(self._name(source, ",", found))):
                yield from self._arguments(source, found[-1])
            yield from source.skip("]")
            yield from source.skip(closing)

    def _name(self, source: AnswerReader, before: str, found: list[str]) -> Steps[bool]:
        """Read `before`, a function's name and a parenthesis, and begin the call."""
        if not (yield from source.skip(before)):
            return False
        name = yield from self._until(source, "(")
        if name:
            found.append(name)
            source.begin_call(name)
        return bool(name)

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
        more = '("," SPACE? function)*' if several else ""
        return f'SPACE? "[" function {more} "]" SPACE? {mark(self.marks[1])} SPACE?'

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
            key: f"{json.dumps(f'{key}=')} {_value_lark(part, schema)}"
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


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it. Templates of LFM2 show only the marks of the tools."""
    if Lfm2.marks[0] in template or "<|tool_list_start|>" in template:
        return Lfm2("tool_calls" in template)
    return None


def _python_of(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as Python writes it."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _beginnings(optional: Sequence[str], comma: str) -> Iterator[str]:
    """Lark for a row of optional arguments, by the first one that is there."""
    for place, one in enumerate(optional):
        yield one + "".join(f" ({comma} {other})?" for other in optional[place + 1 :])


def _value_lark(part: Any, root: Schema) -> str:
    types, values = types_of(part, root), values_of(part, root)
    if types == STRING:
        return f"({' | '.join(json.dumps(repr(one)) for one in values)})" if values else "string"
    if types == {"boolean"}:
        return '("True" | "False")'
    if types & STRING or not is_portable(part):
        return "value"
    shared = {key: root[key] for key in ("$defs", "definitions", "x-guidance") if key in root}
    return f"%json {json.dumps({**part, **shared})}"


def _json_of_value(text: str, types: frozenset[str]) -> str:
    """JSON for a value in Python's form."""
    if text[:1] not in ("'", '"') or len(text) < 2 or text[-1] != text[0]:
        return json_of(text, types)
    try:
        inner = str(ast.literal_eval(text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        inner = text[1:-1]
    return json.dumps(inner, ensure_ascii=False) if types & STRING else json_of(inner, types)
