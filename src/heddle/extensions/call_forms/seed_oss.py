"""The form of Seed-OSS: that of Qwen3-Coder, with other outer tags and no newlines around values.

    <seed:tool_call>
    <function=name>
    <parameter=key>value</parameter>
    </function>
    </seed:tool_call>

Source: the chat template of Seed-OSS-36B-Instruct.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from heddle.extensions.call_forms.xml_function import XmlFunction

if TYPE_CHECKING:
    from heddle.text.chat.call_forms import CallForm


@dataclass(frozen=True, slots=True)
class SeedOss(XmlFunction):
    """`<function=name>` and `<parameter=key>` between `<seed:tool_call>` and its end."""

    opening_tag: ClassVar = "<seed:tool_call>"
    closing_tag: ClassVar = "</seed:tool_call>"
    pads_values: ClassVar = False
    marks: ClassVar = (opening_tag, closing_tag, XmlFunction.after_call, XmlFunction.after_value)


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    shown = (SeedOss.opening_tag, SeedOss.before_name, SeedOss.before_key)
    return SeedOss() if all(tag in template for tag in shown) else None
