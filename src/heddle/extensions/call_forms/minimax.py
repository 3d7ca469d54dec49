"""The form of MiniMax M2.

    <minimax:tool_call>
    <invoke name="name">
    <parameter name="key">value</parameter>
    </invoke>
    </minimax:tool_call>

Source: the chat template of MiniMax-M2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from heddle.extensions.call_forms.tagged import Tagged

if TYPE_CHECKING:
    from heddle.text.chat.call_forms import CallForm


@dataclass(frozen=True, slots=True)
class MiniMax(Tagged):
    """`<invoke name="name">` and `<parameter name="key">`. One pair of tags holds all calls."""

    opening_tag: ClassVar = "<minimax:tool_call>"
    closing_tag: ClassVar = "</minimax:tool_call>"
    before_name: ClassVar = '<invoke name="'
    after_name: ClassVar = '">'
    after_call: ClassVar = "</invoke>"
    before_key: ClassVar = '<parameter name="'
    after_key: ClassVar = '">'
    after_value: ClassVar = "</parameter>"
    shares_tags: ClassVar = True
    marks: ClassVar = (opening_tag, closing_tag, after_call, after_value)


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    shown = (MiniMax.opening_tag, MiniMax.before_name, MiniMax.before_key)
    return MiniMax() if all(tag in template for tag in shown) else None
