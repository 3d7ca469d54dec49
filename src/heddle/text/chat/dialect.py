"""How a model writes what is more than text, found in its chat template: calls and reasoning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heddle.text.chat.call_forms import HERMES, LLAMA, MISTRAL, MISTRAL_NAMED
from heddle.text.chat.tool_prompt import written_out
from heddle.text.parsing.answer_reader import Marks
from heddle.text.parsing.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm

    Json = Mapping[str, Any]

_FOREIGN = ("<function=", "<arg_key>")
"""What shows that calls between `<tool_call>` and `</tool_call>` are no JSON, as Qwen3-Coder's."""

EFFORT = "reasoning_effort"
"""The variable of a template that says how long the model is to reason."""

_REASONING = (Marks("<think>", "</think>"), Marks("[THINK]", "[/THINK]"))


@dataclass(frozen=True, slots=True)
class Dialect:
    """What of one chat template decides how it is written for, and how answers are read.

    Attributes:
        form: of calls.
        knows_tools: whether the template itself tells the model of functions in that form. If not,
            a system message does.
        marks: of reasoning; None if the template shows none.
        developer: the role of messages of the role developer, which many templates leave out.
        asks_effort: whether the template has a variable `reasoning_effort`, as that of gpt-oss.
    """

    form: CallForm
    knows_tools: bool
    marks: Marks | None
    developer: str
    asks_effort: bool

    @classmethod
    def of(cls, template: str, variables: Collection[str]) -> Dialect:
        """The dialect of a template's source, which uses these variables."""
        form = _form_of(template) if "tools" in variables else None
        marks = next((marks for marks in _REASONING if marks.closing in template), None)
        developer = "developer" if "developer" in template else "system"
        asks_effort = EFFORT in variables
        return cls(form or HERMES, form is not None, marks, developer, asks_effort)

    def conversation(
        self, messages: Sequence[Json], tools: Sequence[Json]
    ) -> tuple[Sequence[Json], Sequence[Json] | None]:
        """Messages and tools as the template can take them.

        Args:
            messages: as OpenAI's API has them, but with arguments of calls as objects.
            tools: as OpenAI's API has them; empty if there are none.
        """
        messages = [
            {**message, "role": self.developer} if message["role"] == "developer" else message
            for message in messages
        ]
        if not self.knows_tools:
            return written_out(messages, tools), None
        return self.form.history(messages), tools or None

    def reading(self, prompt: str, names: Collection[str] = (), begun: str = "") -> Reading:
        """How the answer to a prompt is read.

        Args:
            prompt: as the template wrote it.
            names: of functions that the answer may call; without any no calls are looked for.
            begun: what the answer has already been begun with, at the end of the prompt.
        """
        reasons = False
        if self.marks is not None:
            opening, closing = self.marks
            in_prompt = prompt.rstrip().endswith(opening)
            reasons = in_prompt or begun.rfind(opening) > begun.rfind(closing)
        over = self.marks is not None and prompt.rstrip().endswith(self.marks.closing)
        marks = None if over else self.marks
        return Reading(self.form if names else None, frozenset(names), marks, reasons)


def _form_of(template: str) -> CallForm | None:
    """The form that a template which knows tools has for calls; None for one of its own."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL_NAMED if "[ARGS]" in template else MISTRAL
    if "<tool_call>" in template and not any(mark in template for mark in _FOREIGN):
        return HERMES
    if "<|start_header_id|>" in template and '"parameters"' in template:
        return LLAMA
    return None
