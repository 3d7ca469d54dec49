"""The form of Hunyuan 3 (Hy3): that of GLM, with a mark after the name and a pair of outer tags.

    <tool_calls>
    <tool_call>name<tool_sep>
    <arg_key>key</arg_key>
    <arg_value>value</arg_value>
    </tool_call>
    </tool_calls>

The released model writes `:opensource` before the `>` of each tag. Sources: the chat template of
Hy3 that llama.cpp brings, and SGLang's hunyuan_detector.py. Hunyuan A13B is in json_list.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from heddle.extensions.call_forms.tagged import Tagged

if TYPE_CHECKING:
    from heddle.text.chat.call_forms import CallForm

_SUFFIX = ":opensource"


@dataclass(frozen=True, slots=True)
class Hunyuan(Tagged):
    """`name<tool_sep>`, and `<arg_key>` and `<arg_value>`. One pair of tags holds all calls."""

    opening_tag: ClassVar = "<tool_calls>"
    closing_tag: ClassVar = "</tool_calls>"
    before_name: ClassVar = "<tool_call>"
    after_name: ClassVar = "<tool_sep>"
    after_call: ClassVar = "</tool_call>"
    before_key: ClassVar = "<arg_key>"
    after_key: ClassVar = "</arg_key>"
    before_value: ClassVar = "<arg_value>"
    after_value: ClassVar = "</arg_value>"
    shares_tags: ClassVar = True
    marks: ClassVar = (
        *(opening_tag, closing_tag, before_name, after_name, after_call),
        *(before_key, after_key, before_value, after_value),
    )


class HunyuanOpen(Hunyuan):
    """The form with the suffix of the released model."""

    __slots__ = ()
    opening_tag: ClassVar = f"<tool_calls{_SUFFIX}>"
    closing_tag: ClassVar = f"</tool_calls{_SUFFIX}>"
    before_name: ClassVar = f"<tool_call{_SUFFIX}>"
    after_name: ClassVar = f"<tool_sep{_SUFFIX}>"
    after_call: ClassVar = f"</tool_call{_SUFFIX}>"
    before_key: ClassVar = f"<arg_key{_SUFFIX}>"
    after_key: ClassVar = f"</arg_key{_SUFFIX}>"
    before_value: ClassVar = f"<arg_value{_SUFFIX}>"
    after_value: ClassVar = f"</arg_value{_SUFFIX}>"
    marks: ClassVar = (
        *(opening_tag, closing_tag, before_name, after_name, after_call),
        *(before_key, after_key, before_value, after_value),
    )


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it. A template may write the suffix as a variable."""
    if "<tool_sep" not in template or "<arg_key" not in template:
        return None
    return HunyuanOpen() if _SUFFIX in template else Hunyuan()
