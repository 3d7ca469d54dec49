"""The form of OLMo 3: calls as Python writes them, one on each line.

    <function_calls>name(key="value", other=3)
    name()</function_calls>

Source: the chat template of Olmo-3-7B-Instruct, and the one that vLLM has for OLMo 3. They write
values as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from heddle.extensions.call_forms.python_calls import PythonCalls

if TYPE_CHECKING:
    from heddle.text.chat.call_forms import CallForm


@dataclass(frozen=True, slots=True)
class Olmo3(PythonCalls):
    """Python's calls between `<function_calls>` and `</function_calls>`."""

    marks: ClassVar = ("<function_calls>", "</function_calls>")
    brackets: ClassVar = ("", "")
    separator: ClassVar = ""
    booleans: ClassVar = ("true", "false")


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it: as Python's calls, not between further tags."""
    shown = Olmo3.marks[0] in template and "<invoke" not in template
    return Olmo3() if shown else None
