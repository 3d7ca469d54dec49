"""The form of Solar Open 2.

    <|tool_call:start|>name
    <|tool_arg:start|>key<|tool_arg:value|>value<|tool_arg:end|>
    <|tool_call:end|>

Source: vLLM's parser (`solar_open2_tool_parser.py`); no chat template was read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from heddle.extensions.call_forms.tagged import Tagged

if TYPE_CHECKING:
    from heddle.text.chat.call_forms import CallForm


@dataclass(frozen=True, slots=True)
class SolarOpen2(Tagged):
    """A name and its arguments, between marks."""

    opening_tag: ClassVar = "<|tool_call:start|>"
    closing_tag: ClassVar = "<|tool_call:end|>"
    before_name: ClassVar = ""
    after_name: ClassVar = "\n"
    after_call: ClassVar = ""
    before_key: ClassVar = "<|tool_arg:start|>"
    after_key: ClassVar = "<|tool_arg:value|>"
    after_value: ClassVar = "<|tool_arg:end|>"
    marks: ClassVar = (opening_tag, closing_tag, before_key, after_key, after_value)


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    shown = (SolarOpen2.opening_tag, SolarOpen2.before_key)
    return SolarOpen2() if all(mark in template for mark in shown) else None
