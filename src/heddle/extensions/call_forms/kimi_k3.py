"""The form of Kimi K3, which marks reasoning, text and calls.

    <|open|>think<|sep|>reasoning<|close|>think<|sep|>
    <|open|>response<|sep|>text<|close|>response<|sep|>
    <|open|>tools<|sep|><|open|>call tool="name" index="1"<|sep|>
    <|open|>argument key="key" type="string"<|sep|>value<|close|>argument<|sep|>
    <|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>

There are no newlines between these tags. The prompt opens the reasoning, or the text if the model
is not to reason. Arguments may also be one JSON object in a tag `json`. A model may open the text
or the calls without closing what came before. Sources: the chat template of Kimi-K3, vLLM's issue
54273, xgrammar's pull request 806 and llama.cpp's parser in pwilkin's pull request 20.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.tagged import Tagged, comes_next
from heddle.extensions.call_forms.types import STRING, types_of
from heddle.text.parsing.answer_reader import Marks
from heddle.text.parsing.characters import END

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm, Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps, Take

_OPEN, _CLOSE, _SEPARATOR, _END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
_ASSISTANT = f'{_OPEN}message role="assistant"'


def _channel(name: str) -> Marks:
    return Marks(f"{_OPEN}{name}{_SEPARATOR}", f"{_CLOSE}{name}{_SEPARATOR}")


_THINK, _RESPONSE, _TOOLS, _JSON = map(_channel, ("think", "response", "tools", "json"))
_MESSAGE_END = f"{_CLOSE}message{_SEPARATOR}"
_BOUNDS = (_THINK.closing, _RESPONSE.closing, _TOOLS.closing, _MESSAGE_END, _END)
"""Marks that end the content of a channel, if another mark or the end of the answer follows."""
_JSON_OPENING = f'{_OPEN}json type="object"{_SEPARATOR}'
_KINDS = ("string", "number", "boolean", "null", "object", "array")
_KIND = '" type="'


@dataclass(frozen=True, slots=True)
class KimiK3(Tagged):
    """Channels of reasoning, text and calls, between tags of control tokens."""

    opening_tag: ClassVar = _TOOLS.opening
    closing_tag: ClassVar = _TOOLS.closing
    before_name: ClassVar = f'{_OPEN}call tool="'
    after_name: ClassVar = _SEPARATOR
    after_call: ClassVar = f"{_CLOSE}call{_SEPARATOR}"
    before_key: ClassVar = f'{_OPEN}argument key="'
    after_key: ClassVar = _SEPARATOR
    after_value: ClassVar = f"{_CLOSE}argument{_SEPARATOR}"
    shares_tags: ClassVar = True
    marks: ClassVar = (
        *(_OPEN, _CLOSE, _SEPARATOR, *_BOUNDS),
        *(_THINK.opening, _RESPONSE.opening, _TOOLS.opening, _JSON_OPENING, _JSON.closing),
        *(after_call, after_value),
    )
    frames: ClassVar = True
    reasoning: ClassVar = Marks(_THINK.opening, f"{_THINK.closing}{_RESPONSE.opening}")

    # --- reading ---------------------------------------------------------------------------------

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        follows = True
        while follows:
            if (yield from source.skip(_THINK.opening)):
                openings = (_RESPONSE.opening, self.opening_tag)
                follows = yield from self._content(source, source.add_reasoning, openings)
            elif (yield from source.skip(self.opening_tag)):
                yield from self._calls(source, names)
                follows = yield from self._content(source, source.add_text, ())
            else:
                yield from source.skip(_RESPONSE.opening)
                follows = yield from self._content(source, source.add_text, (self.opening_tag,))

    def _content(self, source: AnswerReader, take: Take, openings: Collection[str]) -> Steps[bool]:
        """Read the content of a channel, which its closing tag ends or one of `openings`.

        Returns whether another channel follows.
        """
        while mark := (yield from source.until((*_BOUNDS, *openings), take)):
            if mark in openings:
                calls = mark == self.opening_tag
                if not calls or (yield from comes_next(source, (self.before_name,))):
                    source.put_back(mark)
                    return True
            elif (yield from comes_next(source, (_OPEN, _MESSAGE_END, _END))):
                yield from source.skip(_MESSAGE_END)
                yield from source.skip(_END)
                char = yield from source.next()
                source.put_back(char)
                return char != END
            take(mark)
        return False

    def _calls(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        """Read calls after the tag that opens them."""
        source.expect_call(source.position)
        if not names or not (yield from self._call(source, None, "")):
            yield from source.reject_mark(self.opening_tag)
        while names and (yield from self._call(source, None, "")):
            pass

    def _function_name(self, source: AnswerReader) -> Steps[str]:
        header = yield from self._until(source, self.after_name)
        return _unescaped(header.partition('"')[0])

    def _arguments(self, source: AnswerReader, schema: Mapping[str, Any]) -> Steps[None]:
        if not (yield from source.skip(_JSON_OPENING)):
            yield from Tagged._arguments(self, source, schema)
            return
        yield from source.json_value(source.add_arguments)
        yield from source.skip(_JSON.closing)
        yield from source.skip(self.after_call)

    def _parameter(self, header: str, schema: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
        written, _, kind = header.partition(_KIND)
        key, types = Tagged._parameter(self, _unescaped(written.removesuffix('"')), schema)
        if kind == 'string"':
            return key, types & STRING or types
        return key, (types - STRING if kind else types) or types

    # --- prompts ---------------------------------------------------------------------------------

    def opened(self, prompt: str) -> str:
        _, begun, last = prompt.rpartition(_ASSISTANT)
        if not begun or _END in last:
            return ""
        for opening, closing in (_RESPONSE, _THINK):
            _, opened, content = last.rpartition(opening)
            if opened:
                return "" if closing in content else opening
        return ""

    def text_opened(self, prompt: str) -> str:
        match self.opened(prompt):
            case _RESPONSE.opening:
                return prompt
            case _THINK.opening:
                return prompt + self.reasoning.closing
        return prompt + _RESPONSE.opening

    # --- grammars --------------------------------------------------------------------------------

    def text_opening(self, mark: Mark) -> str:
        return f"({mark(_RESPONSE.opening)})?"  # the end of reasoning may have opened it

    def opening(self, mark: Mark) -> str:
        # The prompt or the end of reasoning opens the text.
        return f"({mark(_RESPONSE.closing)})? {mark(self.opening_tag)}"

    def calls(self, mark: Mark, *, several: bool) -> str:
        end = f"({mark(_MESSAGE_END)} ({mark(_END)})?)?"
        return f"{Tagged.calls(self, mark, several=several)} {end}"

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        head = mark(f'{self.before_name}{_escaped(name)}" index="')
        end = f'/[0-9]{{1,4}}/ "\\"" {mark(self.after_name)}'
        return f"{head} {end} {self._parameters(schema, mark)} {mark(self.after_call)}"

    def _parameter_head(self, key: str, mark: Mark) -> str:
        return mark(f"{self.before_key}{_escaped(key)}")

    def _after_key(self, mark: Mark) -> str:
        return self._kinds(_KINDS, mark)

    def _rest_lark(self, part: Any, root: Schema, mark: Mark) -> str:
        types, value = types_of(part, root), self._value_lark(part, root, mark)
        kinds = [one for one in _KINDS if one in types]
        if "integer" in types and "number" not in types:
            kinds.append("number")
        return f"{self._kinds(kinds, mark)} {value}"

    def _kinds(self, kinds: Sequence[str], mark: Mark) -> str:
        named = " | ".join(map(json.dumps, kinds))
        return f'{json.dumps(_KIND)} ({named}) "\\"" {mark(self.after_key)}'


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    shown = (_OPEN, _CLOSE, _SEPARATOR, _END)
    return KimiK3() if all(mark in template for mark in shown) else None


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


def _unescaped(text: str) -> str:
    return text.replace("&quot;", '"').replace("&amp;", "&")
