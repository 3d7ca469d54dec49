"""The form of ERNIE 4.5's thinking models: that of Hermes, with marks around the text.

    <think>reasoning</think>

    <response>
    text
    </response>
    <tool_call>
    {"name": "name", "arguments": {...}}
    </tool_call>

The prompt opens the reasoning. Source: vLLM's parsers (`ernie45_tool_parser.py` and its parser of
reasoning) and answers in the tests of transformers; the chat template was not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from heddle.extensions.call_forms.responses import RESPONSE, THINK, Responding
from heddle.text.chat.call_forms import HERMES

if TYPE_CHECKING:
    from heddle.text.chat.call_forms import CallForm


@dataclass(frozen=True, slots=True)
class Ernie(Responding):
    """Reasoning, text in `<response>`, and Hermes' calls."""

    form: ClassVar = HERMES
    marks: ClassVar = (*THINK, *RESPONSE, *HERMES.marks)


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    shown = (THINK.closing, RESPONSE.opening, HERMES.marks[0])
    return Ernie() if all(mark in template for mark in shown) else None
