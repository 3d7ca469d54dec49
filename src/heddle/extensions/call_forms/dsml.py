# ruff: noqa: RUF001  the marks have wide bars
"""The forms of DeepSeek V3.2 and V4, which DeepSeek calls DSML.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="name">
    <｜DSML｜parameter name="key" string="true">value</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

V4 writes `tool_calls` for `function_calls`. `string` says whether a value is a string or JSON. A
model may write all arguments as one JSON object instead. Sources: the chat templates of V3.2 and V4
that llama.cpp brings; for arguments as one object, SGLang's deepseekv4_detector.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.tagged import Tagged
from heddle.extensions.call_forms.types import STRING, types_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.text.chat.call_forms import CallForm, Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

_TOKEN = "｜DSML｜"
"""The part of each tag that is one token of the vocabulary."""
_IS_STRING, _IS_JSON = '" string="true', '" string="false'


@dataclass(frozen=True, slots=True)
class Dsml(Tagged):
    """`invoke name="name"` and `parameter name="key" string="true"`, as V3.2 writes them."""

    opening_tag: ClassVar = f"<{_TOKEN}function_calls>"
    closing_tag: ClassVar = f"</{_TOKEN}function_calls>"
    before_name: ClassVar = f'<{_TOKEN}invoke name="'
    after_name: ClassVar = '">'
    after_call: ClassVar = f"</{_TOKEN}invoke>"
    before_key: ClassVar = f'<{_TOKEN}parameter name="'
    after_key: ClassVar = '">'
    after_value: ClassVar = f"</{_TOKEN}parameter>"
    shares_tags: ClassVar = True
    marks: ClassVar = (_TOKEN, opening_tag, closing_tag, after_call, after_value)

    # --- reading ---------------------------------------------------------------------------------

    def _arguments(self, source: AnswerReader, schema: Mapping[str, Any]) -> Steps[None]:
        char = yield from source.after_space()
        source.put_back(char)
        if char != "{":
            yield from Tagged._arguments(self, source, schema)
            return
        yield from source.json_value(source.add_arguments)
        yield from source.skip(self.after_call)

    def _parameter(self, header: str, schema: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
        key = header.removesuffix(_IS_STRING).removesuffix(_IS_JSON)
        key, types = Tagged._parameter(self, key, schema)
        if header.endswith(_IS_STRING):
            types = types & STRING or types
        elif header.endswith(_IS_JSON):
            types = types - STRING or types
        return key, types

    # --- grammars --------------------------------------------------------------------------------

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        head = mark(f"{self.before_name}{name}{self.after_name}")
        # Without parameters, the trained form has two newlines here.
        return f"{head} SPACE? SPACE? {self._parameters(schema, mark)} {mark(self.after_call)}"

    def _text_rule(self, mark: Mark) -> str:
        if mark(_TOKEN).startswith("<"):  # values have no control token, but they may have "</"
            return rf"text: /(?s:.*)<\// {mark(self.after_value.removeprefix('</'))}"
        return Tagged._text_rule(self, mark)

    def _after_key(self, mark: Mark) -> str:
        return r'"\" string=\"" ("true" | "false") "\">"'

    def _rest_lark(self, part: Any, root: Schema, mark: Mark) -> str:
        types, value = types_of(part, root), self._value_lark(part, root, mark)
        if types == STRING:
            return rf'"\" string=\"true\">" {value}'
        if not types & STRING:
            return rf'"\" string=\"false\">" {value}'
        return f"{self._after_key(mark)} {value}"


class DsmlV4(Dsml):
    """The form with V4's outer tags."""

    __slots__ = ()
    opening_tag: ClassVar = f"<{_TOKEN}tool_calls>"
    closing_tag: ClassVar = f"</{_TOKEN}tool_calls>"
    marks: ClassVar = (_TOKEN, opening_tag, closing_tag, Dsml.after_call, Dsml.after_value)


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it. A template may write the token as a variable."""
    if _TOKEN not in template or 'invoke name="' not in template:
        return None
    return Dsml() if "function_calls>" in template else DsmlV4()
