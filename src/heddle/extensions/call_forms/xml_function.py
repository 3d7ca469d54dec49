"""The form of Qwen3-Coder, Qwen3.5, Nemotron 3 and Step 3.5.

    <tool_call>
    <function=name>
    <parameter=key>
    value
    </parameter>
    </function>
    </tool_call>

Source: the chat templates of Qwen3-Coder and Step 3.7; those of Qwen3.5 and
Nemotron 3 were not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from heddle.extensions.call_forms.tagged import Tagged

if TYPE_CHECKING:
    from heddle.text.chat.call_forms import CallForm


@dataclass(frozen=True, slots=True)
class XmlFunction(Tagged):
    """`<function=name>` and `<parameter=key>` between `<tool_call>` and `</tool_call>`."""

    opening_tag: ClassVar = "<tool_call>"
    closing_tag: ClassVar = "</tool_call>"
    before_name: ClassVar = "<function="
    after_name: ClassVar = ">"
    after_call: ClassVar = "</function>"
    before_key: ClassVar = "<parameter="
    after_key: ClassVar = ">"
    after_value: ClassVar = "</parameter>"
    pads_values: ClassVar = True
    marks: ClassVar = (opening_tag, closing_tag, after_call, after_value)


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    shown = ("<tool_call>", XmlFunction.before_name, XmlFunction.before_key)
    return XmlFunction() if all(tag in template for tag in shown) else None
