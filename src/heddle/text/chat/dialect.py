"""How a model writes calls and reasoning, as its chat template shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heddle.doors import extensions, refer
from heddle.text.chat.call_forms import HERMES
from heddle.text.chat.thinking import ReasoningVariables
from heddle.text.chat.tool_prompt import written_out
from heddle.text.parsing.answer_reader import Marks
from heddle.text.parsing.reading import PLAIN, Reading

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm

    Json = Mapping[str, Any]

_FOREIGN = ("<function=", "<arg_key>", "<invoke name=")
"""A template with these strings writes calls between `<tool_call>` and `</tool_call>` in a
form that is not JSON. Qwen3-Coder and GLM are examples."""

_REASONING = {
    "</think>": Marks("<think>", "</think>"),
    "[/THINK]": Marks("[THINK]", "[/THINK]"),
    "</seed:think>": Marks("<seed:think>", "</seed:think>"),
    "</mm:think>": Marks("<mm:think>", "</mm:think>"),
    "</think{}>": Marks("<think:opensource>", "</think:opensource>"),
    "<channel|>": Marks("<|channel>thought", "<channel|>"),
    "<|END_THINKING|>": Marks("<|START_THINKING|>", "<|END_THINKING|>"),
    "<|inner_suffix|>": Marks("<|inner_prefix|>", "<|inner_suffix|>"),
    "<|end_of_thought|>": Marks("<|begin_of_thought|>", "<|end_of_thought|>"),
    "[BEGIN FINAL RESPONSE]": Marks("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
}
"""Marks of reasoning, by a text in the templates of a family: Qwen3, DeepSeek and many more;
Mistral; Seed-OSS; MiniMax M3; Hunyuan 3, whose template formats its marks; Gemma 4; Cohere;
Apertus; Sky-T1 and OpenThinker; Apriel."""

_THOUGHTS = ("reasoning", "thinking")
"""Further names under which templates look for the reasoning of earlier messages."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How to write messages for one chat template, and how to read the model's answers.

    Attributes:
        form: how the model writes calls.
        knows_tools: whether the template or `form` describes functions to the model. If not,
            Heddle adds a system message that does.
        marks: marks of reasoning; None if the template shows no marks.
        developer: the role to use for messages with the role `developer`. Many templates do not
            know this role.
        reasoning: the template's variables that say whether, how hard and how long to reason.
    """

    form: CallForm
    knows_tools: bool
    marks: Marks | None
    developer: str
    reasoning: ReasoningVariables

    @classmethod
    def of(cls, template: str, variables: Collection[str], taken: Json | None = None) -> Dialect:
        """The dialect of a template. `variables` are the names that its source uses, and `taken`
        the values that it takes for some of them."""
        form = _form_of(template)
        takes_tools = any(name.endswith("tools") for name in variables) or "'tools'" in template
        if form is not None and not (form.frames or form.describes_tools or takes_tools):
            form = None
        marks = next((marks for text, marks in _REASONING.items() if text in template), None)
        if form is not None and form.frames:
            marks = form.reasoning
        developer = "developer" if "developer" in template else "system"
        form, knows_tools = form or HERMES, form is not None
        reasoning = ReasoningVariables.of(variables, taken or {}, form.efforts)
        return cls(form, knows_tools, marks, developer, reasoning)

    def conversation(
        self, messages: Sequence[Json], tools: Sequence[Json]
    ) -> tuple[Sequence[Json], Sequence[Json] | None]:
        """Messages and tools in the form that the template accepts.

        Args:
            messages: in the form of OpenAI's API, but with arguments of calls as objects.
            tools: in the form of OpenAI's API; may be empty.
        """
        messages = [
            {**message, "role": self.developer} if message["role"] == "developer" else message
            for message in messages
        ]
        messages = [
            {**dict.fromkeys(_THOUGHTS, one["reasoning_content"]), **one}
            if "reasoning_content" in one
            else one
            for one in messages
        ]
        if not self.knows_tools:
            calls = any("tool_calls" in one or one["role"] == "tool" for one in messages)
            return written_out(messages, tools) if tools or calls else messages, None
        return self.form.offered(self.form.history(messages), tools)

    def reading(
        self, prompt: str, functions: Mapping[str, Json] | None = None, begun: str = ""
    ) -> Reading:
        """How to read the answer to a prompt.

        Args:
            prompt: the rendered prompt.
            functions: schemas of the arguments of the functions that the answer may call, by name.
                Without functions, the reader does not look for calls.
            begun: text at the end of the prompt that already belongs to the answer: the content,
                or the reasoning of an answer that has no content yet.
        """
        names, before = frozenset(functions or ()), prompt.removesuffix(begun)
        if self.form.frames:
            opened = self.form.opened(before)
            reasons = self.marks is not None and opened == self.marks.opening
            marks = None if opened and not reasons else self.marks
            resumes = reasons and bool(begun)
            return Reading(self.form.typed(functions or {}), names, marks, reasons, opened, resumes)
        reasons = resumes = False
        if self.marks is not None:
            opening, closing = self.marks
            in_prompt = before.rstrip().endswith(opening)
            reasons = in_prompt or begun.rfind(opening) > begun.rfind(closing)
            resumes = reasons and bool(begun.rpartition(opening)[2].strip())
        closed = self.marks is not None and prompt.rstrip().endswith(self.marks.closing)
        marks = None if closed else self.marks
        if marks is None and not names:
            return PLAIN
        form = self.form.typed(functions) if functions else None
        return Reading(form, names, marks, reasons, resumes=resumes)

    def described(self) -> Mapping[str, str]:
        """The call form and the marks of reasoning, in words, by what they mark."""
        form = f"{type(self.form).__name__}: {' '.join(self.form.marks)}"
        generic = "generic: a system message describes tools. "
        reasoning = " ".join(self.marks) if self.marks else "no marks"
        return {"calls": form if self.knows_tools else generic + form, "reasoning": reasoning}


def _form_of(template: str) -> CallForm | None:
    """The call form of a template that knows tools; None if Heddle does not know the form."""
    for extension in extensions().values():
        for reference in extension.call_forms:
            found: CallForm | None = refer(reference)(template)
            if found is not None:
                return found
    if "<tool_call>" in template and not any(mark in template for mark in _FOREIGN):
        return HERMES
    return None
