"""The form of MiniMax M3, whose values are elements in elements.

    <tool_call>
    <invoke name="name"><key>text</key><list><item>1</item></list></invoke>
    </tool_call>

The namespace `]<]minimax[>[`, one token, comes before each tag. Templates leave out members that
are null, and write an item that is null, an empty list and an empty object as no text. Sources: the
chat template of MiniMax-M3, and llama.cpp's pull requests 24523 and 26210.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.tagged import Tagged, comes_next, escaped, up_to
from heddle.extensions.call_forms.types import ALL, STRING, json_of, resolved, types_of
from heddle.extensions.call_forms.value_larks import ValueLarks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm, Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps, Take

_NAMESPACE = "]<]minimax[>["
_INVOKE, _ITEM = "invoke", "item"
_DEEPEST = 64
"""Most levels of elements. What is deeper is text."""
_CHOICES = ("anyOf", "oneOf", "allOf")


@dataclass(frozen=True, slots=True)
class MiniMaxM3(Tagged):
    """`<invoke name="name">`, and an element for each argument. One pair of tags has all calls."""

    opening_tag: ClassVar = f"{_NAMESPACE}<tool_call>"
    closing_tag: ClassVar = f"{_NAMESPACE}</tool_call>"
    before_name: ClassVar = f'{_NAMESPACE}<{_INVOKE} name="'
    after_name: ClassVar = '">'
    after_call: ClassVar = f"{_NAMESPACE}</{_INVOKE}>"
    before_key: ClassVar = f"{_NAMESPACE}<"
    after_key: ClassVar = ">"
    after_value: ClassVar = f"{_NAMESPACE}</"
    shares_tags: ClassVar = True
    marks: ClassVar = (_NAMESPACE, opening_tag, closing_tag, after_call)

    # --- reading ---------------------------------------------------------------------------------

    def _arguments(self, source: AnswerReader, schema: Mapping[str, Any]) -> Steps[None]:
        source.add_arguments("{")
        key = yield from self._key(source)
        yield from self._elements(source, key, schema, schema, depth=0, is_list=False)
        yield from source.skip(self.after_call)
        if source.cut and source.ended:
            yield from source.until((), lambda _: None)  # an incomplete tag
        else:
            source.add_arguments("}")

    def _key(self, source: AnswerReader) -> Steps[str]:
        others = (self.after_value, self.before_name, self.opening_tag)
        if (yield from comes_next(source, others)):
            return ""
        return (yield from Tagged._key(self, source))

    def _elements(
        self, source: AnswerReader, key: str, part: Any, root: Schema, depth: int, is_list: bool
    ) -> Steps[None]:
        """Read the elements of a value of the schema `part`. The opening tag of the first, `key`,
        has been read; empty if there is none."""
        separator = ""
        while key:
            start = separator if is_list else f"{separator}{json.dumps(key, ensure_ascii=False)}: "
            inner = _part(part, root, None if is_list else key)
            yield from self._element(source, start, key, inner, root, depth + 1)
            separator = ", "
            key = yield from self._key(source)

    def _element(
        self, source: AnswerReader, start: str, key: str, part: Any, root: Schema, depth: int
    ) -> Steps[None]:
        """Read a value and the closing tag of its element. Add it after the text `start`."""
        types = types_of(part, root)
        if types == STRING:
            source.add_arguments(start)
            yield from self._string(source, key)
        elif depth < _DEEPEST and (child := (yield from self._key(source))):
            is_list = "array" in types and (child == _ITEM or "object" not in types)
            opening, closing = "[]" if is_list else "{}"
            source.add_arguments(start + opening)
            yield from self._elements(source, child, part, root, depth, is_list)
            yield from source.attempt(self._closing(source, key, types))
            if not (source.cut and source.ended):
                source.add_arguments(closing)
        else:
            pieces: list[str] = []
            yield from self._text(source, key, types, pieces.append)
            if not (source.cut and source.ended):  # else the value may be incomplete
                source.add_arguments(start + _json_of("".join(pieces), types))

    def _string(self, source: AnswerReader, key: str) -> Steps[None]:
        """Read a string with the closing tag of its element. It streams."""
        source.add_arguments('"')
        yield from self._text(source, key, STRING, lambda one: source.add_arguments(escaped(one)))
        if not (source.cut and source.ended):
            source.add_arguments('"')

    def _text(
        self, source: AnswerReader, key: str, types: frozenset[str], take: Take
    ) -> Steps[None]:
        """Read the text of an element with its closing tag."""
        while mark := (yield from source.until((self.after_value,), take)):
            if (yield from source.attempt(self._rest_of_closing(source, key, types))):
                return
            if source.cut and source.ended:
                yield from source.until((), lambda _: None)  # an incomplete tag
                return
            take(mark)

    def _closing(self, source: AnswerReader, key: str, types: frozenset[str]) -> Steps[bool]:
        if not (yield from source.skip(self.after_value)):
            return False
        return (yield from self._rest_of_closing(source, key, types))

    def _rest_of_closing(
        self, source: AnswerReader, key: str, types: frozenset[str]
    ) -> Steps[bool]:
        """Read a closing tag after its slash. Returns whether it ends the element `key`.

        The tag of a call ends an element without a closing tag. The grammar of a value of any type
        cannot hold the names of both tags equal.
        """
        name = yield from self._until(source, self.after_key)
        if name == _INVOKE != key:
            following = (self.closing_tag, self.before_name)
            ends = yield from comes_next(source, following)
            if ends:
                source.put_back(self.after_call)
            return ends
        if not name or (name != key and types != ALL):
            return False
        return (yield from comes_next(source, (self.before_key,)))

    # --- grammars --------------------------------------------------------------------------------

    def calls(self, mark: Mark, *, several: bool) -> str:
        return Tagged.calls(self, _apart(mark), several=several)

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        tag, members = _apart(mark), _Larks(schema, mark(_NAMESPACE)).members(schema, 0)
        head = tag(f"{self.before_name}{name}{self.after_name}")
        return f"{head} {members} SPACE? {tag(self.after_call)}"

    def rules(self, mark: Mark) -> Sequence[str]:
        namespace = mark(_NAMESPACE)
        is_control = namespace.startswith("<")  # no other text has a control token
        text = f"text: /(?s:.*)/ {namespace}" if is_control else f"text[lazy]: {up_to(_NAMESPACE)}"
        rest = f'KEY ">" value "</" KEY ">" SPACE? {namespace}'
        return [
            text,
            r'KEY: /[^<>"\/\s][^<>"\s]*/',
            f'value: text ("<" {rest})*',
            f'element: {namespace} "<" KEY ">" value "</" KEY ">"',
        ]


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    return MiniMaxM3() if _NAMESPACE in template and f"<{_INVOKE} name=" in template else None


def _apart(mark: Mark) -> Mark:
    """`mark` for tags, with the namespace as a lexeme of its own where it is text.

    The lexer could not tell a namespace from the beginning of a longer lexeme.
    """
    return lambda tag: f"{mark(_NAMESPACE)} {json.dumps(tag.removeprefix(_NAMESPACE))}"


def _part(part: Any, root: Schema, key: str | None) -> Any:
    """The schema of the member `key` of a value of the schema `part`; of its items if None."""
    schema = resolved(part, root)
    several = [one for choice in _CHOICES for one in _list(schema.get(choice))]
    for one in (schema, *(resolved(one, root) for one in several)):
        if key is None:
            found = one.get("items")
        else:
            named = one.get("properties")
            found = named.get(key) if isinstance(named, dict) else None
            found = one.get("additionalProperties") if found is None else found
        if isinstance(found, dict):
            return found
    return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _json_of(text: str, types: frozenset[str]) -> str:
    """JSON for the text of an element without elements."""
    empty = {"array": "[]", "object": "{}", "null": "null"}
    if not text.strip() and not types & STRING:
        return next((empty[one] for one in empty if one in types), '""')
    return json_of(text, types)


class _Larks(ValueLarks):
    """Lark for values of elements, each with the namespace of the closing tag."""

    anything: ClassVar = "value"

    def __init__(self, root: Schema, namespace: str) -> None:
        super().__init__(root)
        self._namespace = namespace

    def members(self, part: Any, depth: int) -> str:
        written = []
        for key, one, is_required in self.properties(part):
            element = f"SPACE? {self._element(key, one, depth)}"
            written.append(element if is_required else f"({element})?")
        return " ".join([*written, *(["(SPACE? element)*"] if self.is_open(part) else [])])

    def literal(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{json.dumps(value)} {self._namespace}" if value else self._namespace
        return f"SPACE? {super().literal(value)} SPACE? {self._namespace}"

    def typed(self, type: str, schema: Mapping[str, Any], depth: int) -> str:
        match type:
            case "string":
                return "text"
            case "array":
                item = self._element(_ITEM, schema.get("items"), depth)
                return f"(SPACE? {item})* SPACE? {self._namespace}"
            case "object":
                return f"{self.members(schema, depth)} SPACE? {self._namespace}"
        return f"SPACE? {super().typed(type, schema, depth)} SPACE? {self._namespace}"

    def _element(self, key: str, part: Any, depth: int) -> str:
        opening = f"{self._namespace} {json.dumps(f'<{key}>')}"
        return f"{opening} {self.value(part, depth + 1)} {json.dumps(f'</{key}>')}"
