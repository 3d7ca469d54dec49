"""The engine of forms that write each argument between tags, as text without quotes.

    <tool_call><function=name><parameter=key>value</parameter></function></tool_call>

A form of this kind is a class with its tags. A string streams as it arrives; every other value
waits for its end, because only then its type is sure (`types.py`).

A tag inside a value is text unless something that may follow a value comes after it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.histories import with_objects
from heddle.extensions.call_forms.types import STRING, json_of, resolved, types_of
from heddle.text.chat.call_forms import CallForm
from heddle.text.constrained.lark_regex import lark_regex
from heddle.text.parsing.characters import END

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps, Take

LONGEST_NAME = 256
"""Most characters of a function's name, and of a key."""


@dataclass(frozen=True, slots=True)
class Tagged(CallForm):
    """Calls between tags. Subclasses name the tags.

    Attributes:
        schemas: schemas of the functions' arguments, by function.
    """

    schemas: Mapping[str, Schema] = field(default_factory=dict, compare=False)

    opening_tag: ClassVar[str]
    closing_tag: ClassVar[str]
    before_name: ClassVar[str]
    after_name: ClassVar[str]
    after_call: ClassVar[str]
    before_key: ClassVar[str]
    after_key: ClassVar[str]
    before_value: ClassVar[str] = ""
    after_value: ClassVar[str]
    pads_values: ClassVar[bool] = False
    """Whether a newline before a value and one after it are not part of the value."""
    shares_tags: ClassVar[bool] = False
    """Whether several calls may stand between one pair of the outer tags."""

    def typed(self, schemas: Mapping[str, Schema]) -> CallForm:
        return type(self)(schemas)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return with_objects(messages)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        # Models leave out the outer tag at times. Then only a known function is a call.
        inner = (self.before_name,) if self.before_name else ()
        while mark := (yield from source.until((self.opening_tag, *inner), source.add_text)):
            outer = mark == self.opening_tag
            if outer:
                source.expect_call(source.position)
            known, begun = (None, "") if outer else (names, mark)
            if (yield from self._call(source, known, begun)):
                while self.before_name and (yield from self._call(source, known, "")):
                    pass
                yield from source.skip(self.closing_tag)
            elif outer:
                yield from source.reject_mark(mark)
            else:
                source.add_text(mark)

    def _call(self, source: AnswerReader, names: Collection[str] | None, begun: str) -> Steps[bool]:
        """Read a call whose tag `begun` has been read already. Returns whether there is one."""
        found: list[str] = []
        if not (yield from source.attempt(self._name(source, names, begun, found))):
            return False
        yield from self._arguments(source, resolved(self.schemas.get(found[0]), {}))
        return True

    def _arguments(self, source: AnswerReader, schema: Mapping[str, Any]) -> Steps[None]:
        """Read the arguments of a call, which `schema` describes, and the tag after the call."""
        source.add_arguments("{")
        written = 0
        while header := (yield from self._key(source)):
            key, types = self._parameter(header, schema)
            separator = ", " if written else ""
            written += 1
            start = f"{separator}{json.dumps(key, ensure_ascii=False)}: "
            yield from self._value(source, start, types)
        if self.after_call:
            yield from source.skip(self.after_call)
        if source.cut and source.ended:
            yield from source.until((), lambda _: None)  # an incomplete tag
        else:
            source.add_arguments("}")

    def _parameter(self, header: str, schema: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
        """The key between `before_key` and `after_key`, and the types of its values."""
        named = schema.get("properties")
        return header, types_of(named.get(header) if isinstance(named, dict) else None, schema)

    def _name(
        self,
        source: AnswerReader,
        names: Collection[str] | None,
        begun: str,
        found: list[str],
    ) -> Steps[bool]:
        """Read a function's name with its tags, and begin the call."""
        start = source.position - len(begun)
        if self.before_name and not begun and not (yield from source.skip(self.before_name)):
            return False
        name = yield from self._function_name(source)
        if len(name.split()) != 1 or (names is not None and name not in names):
            return False
        found.append(name)
        source.expect_call(start)
        source.begin_call(name)
        return True

    def _function_name(self, source: AnswerReader) -> Steps[str]:
        """Read a function's name and the tag after it; an empty text if that is not what comes."""
        return (yield from self._until(source, self.after_name))

    def _until(self, source: AnswerReader, tag: str) -> Steps[str]:
        """Read a name and the tag after it. Returns an empty text if that is not what comes."""
        text = ""
        while not text.endswith(tag):
            char = yield from source.next()
            text += char
            if char == END or len(text) > LONGEST_NAME:
                return ""
        name = text.removesuffix(tag).strip()
        return "" if any(char in "<>\n" for char in name) else name

    def _key(self, source: AnswerReader) -> Steps[str]:
        """Read a key with its tags. Returns an empty text, and reads nothing, if none comes."""
        found: list[str] = []

        def steps() -> Steps[bool]:
            if not (yield from source.skip(self.before_key)):
                return False
            found.append((yield from self._until(source, self.after_key)))
            if self.before_value and not (yield from source.skip(self.before_value)):
                return False
            return bool(found[0])

        return found[0] if (yield from source.attempt(steps())) else ""

    def _value(self, source: AnswerReader, start: str, types: frozenset[str]) -> Steps[None]:
        """Read a value with the tag after it. Add it to the arguments, after the text `start`."""
        if types == STRING:
            source.add_arguments(f'{start}"')
            yield from self._value_text(source, lambda text: source.add_arguments(escaped(text)))
            if not (source.cut and source.ended):
                source.add_arguments('"')
            return
        pieces: list[str] = []
        yield from self._value_text(source, pieces.append)
        if not (source.cut and source.ended):  # else the value may be incomplete
            source.add_arguments(start + json_of("".join(pieces), types))

    def _value_text(self, source: AnswerReader, take: Take) -> Steps[None]:
        """Read a value with the tag after it."""
        value = Padded(take) if self.pads_values else take
        if self.pads_values:
            char = yield from source.next()
            if char != "\n":
                source.put_back(char)
        ends = (self.after_value, self.after_call) if self.after_call else (self.after_value,)
        after_call = (self.closing_tag, *self._next_call)
        after_value = (self.before_key, self.after_call or self.closing_tag)
        while mark := (yield from source.until(ends, value)):
            # A call's tag ends a value whose own tag is missing.
            following = after_value if mark == self.after_value else after_call
            if (yield from comes_next(source, following)):
                if mark == self.after_call:
                    source.put_back(mark)
                return
            value(mark)

    @property
    def _next_call(self) -> tuple[str, ...]:
        return (self.before_name,) if self.shares_tags else ()

    # --- grammars --------------------------------------------------------------------------------

    def opening(self, mark: Mark) -> str:
        return mark(self.opening_tag)

    def calls(self, mark: Mark, *, several: bool) -> str:
        opening, closing = mark(self.opening_tag), mark(self.closing_tag)
        between = f"{closing} SPACE? {opening} SPACE?"
        more = (
            f"({f'({between})?' if self.shares_tags else between} function SPACE?)*"
            if several
            else ""
        )
        return f"SPACE? function SPACE? {more} {closing} SPACE?"

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        head = mark(f"{self.before_name}{name}{self.after_name}")
        end = mark(self.after_call) if self.after_call else ""
        return f"{head} SPACE? {self._parameters(schema, mark)} {end}"

    def rules(self, mark: Mark) -> Sequence[str]:
        before, after = mark(self.before_key), self._after_key(mark)
        key = r'/[^<>"\n]+/'
        return [self._text_rule(mark), f"parameter: {before} {key} {after} text SPACE?"]

    def _text_rule(self, mark: Mark) -> str:
        """Lark's rule for a text and the tag after it."""
        end = mark(self.after_value)
        is_control = end.startswith("<")  # no other text has a control token
        return f"text: /(?s:.*)/ {end}" if is_control else f"text[lazy]: {up_to(self.after_value)}"

    def _after_key(self, mark: Mark) -> str:
        value = f" SPACE? {mark(self.before_value)}" if self.before_value else ""
        return f"{mark(self.after_key)}{value}"

    def _parameters(self, schema: Schema, mark: Mark) -> str:
        """Lark for the parameters of a function, in the order of its schema."""
        root = resolved(schema, schema)
        named = root.get("properties")
        required = root.get("required")
        required = required if isinstance(required, list) else []
        properties: dict[str, Any] = {key: {} for key in required}
        properties |= named if isinstance(named, dict) else {}
        written = []
        for key, part in properties.items():
            head = self._parameter_head(key, mark)
            one = f"{head} {self._rest_lark(part, schema, mark)} SPACE?"
            written.append(one if key in required else f"({one})?")
        if root.get("additionalProperties") is not False:
            written.append("parameter*")
        return " ".join(written)

    def _parameter_head(self, key: str, mark: Mark) -> str:
        """Lark for a key and the tag before it."""
        return mark(f"{self.before_key}{key}")

    def _rest_lark(self, part: Any, root: Schema, mark: Mark) -> str:
        """Lark for what comes after a key that the schema `part` of `root` describes."""
        return f"{self._after_key(mark)} {self._value_lark(part, root, mark)}"

    def _value_lark(self, part: Any, root: Schema, mark: Mark) -> str:
        """Lark for a value that the schema `part` of `root` allows, with the tag after it.

        Of strings only `enum` and `const` are enforced.
        """
        types, values = types_of(part, root), values_of(part, root)
        if types == STRING and values:
            written = " | ".join(json.dumps(one) for one in values)
            return f"SPACE? ({written}) SPACE? {mark(self.after_value)}"
        if types & STRING or not is_portable(part):
            return "text"
        shared = {key: root[key] for key in ("$defs", "definitions", "x-guidance") if key in root}
        allowed = [f"%json {json.dumps({**part, **shared})}"]
        allowed += map(json.dumps, _words(types, values))
        return f"SPACE? ({' | '.join(allowed)}) SPACE? {mark(self.after_value)}"


_WORDS = {"True": True, "False": False, "None": None}
"""How Python writes values. The templates of Qwen, Nemotron and Step write them so in histories."""


def _words(types: frozenset[str], values: Sequence[Any]) -> list[str]:
    """Python's words for values that a schema with these types and only values allows."""
    if values:
        return [word for word, value in _WORDS.items() if any(value is one for one in values)]
    kinds = {"boolean": ("True", "False"), "null": ("None",)}
    return [word for kind, words in kinds.items() if kind in types for word in words]


def up_to(tag: str) -> str:
    """Lark for a text up to a tag, and the tag."""
    return lark_regex(f"(?s:.*){re.escape(tag)}")


class Padded:
    """Passes text on, except a newline at its end."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._held = ""

    def __call__(self, text: str) -> None:
        text = self._held + text
        shown = text.removesuffix("\n")
        self._held = text[len(shown) :]
        if shown:
            self._take(shown)


def escaped(text: str) -> str:
    """A part of a string as JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def values_of(part: Any, root: Schema) -> Sequence[Any]:
    """The only values that the schema `part` of `root` allows. Empty if it names none."""
    known = resolved(part, root)
    values = known.get("enum", [known["const"]] if "const" in known else ())
    return values if isinstance(values, list) else ()


def is_portable(part: Any) -> bool:
    """Whether a schema's references are valid in another schema with the same definitions."""
    if isinstance(part, dict):
        reference = part.get("$ref", "#/$defs/")
        return str(reference).startswith(("#/$defs/", "#/definitions/")) and all(
            map(is_portable, part.values())
        )
    return all(map(is_portable, part)) if isinstance(part, list) else True


def comes_next(source: AnswerReader, texts: Collection[str]) -> Steps[bool]:
    """Whether one of `texts` comes next, perhaps after space, or the end. Reads nothing."""
    read = begun = ""
    while True:
        char = yield from source.next()
        read += char
        begun += char if begun else char.strip()
        if char == END or begun in texts:
            source.put_back(read)
            return True
        if begun and not any(text.startswith(begun) for text in texts):
            source.put_back(read)
            return False
