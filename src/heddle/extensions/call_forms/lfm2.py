"""The form of LFM2 and LFM2.5: calls as Python writes them.

    <|tool_call_start|>[name(key='value', other=3), name()]<|tool_call_end|>

Source: the chat templates of LFM2.5-8B-A1B, LFM2-8B-A1B and LFM2.5-Instruct that llama.cpp has. The
first writes strings between single quotes and escapes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.histories import with_contents, with_objects
from heddle.extensions.call_forms.python_calls import PythonCalls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm


@dataclass(frozen=True, slots=True)
class Lfm2(PythonCalls):
    """A list of Python's calls between two marks.

    Attributes:
        knows_calls: whether the template writes earlier calls. If not, `history` does.
    """

    knows_calls: bool = True

    marks: ClassVar = ("<|tool_call_start|>", "<|tool_call_end|>")

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        written = with_objects(messages)
        return written if self.knows_calls else with_contents(written, self._text_of)

    def _text_of(self, calls: Sequence[Mapping[str, Any]]) -> str:
        text = ", ".join(_python_of(call["name"], call["arguments"]) for call in calls)
        return f"{self.marks[0]}[{text}]{self.marks[1]}"


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it.

    Templates of LFM2 show only the marks of the tools, and one of LFM2.5 shows only their title.
    """
    if any(text in template for text in (Lfm2.marks[0], "<|tool_list_start|>", "List of tools: [")):
        return Lfm2(knows_calls="tool_calls" in template)
    return None


def _python_of(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as Python writes it."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
