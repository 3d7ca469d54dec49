# ruff: noqa: RUF001  the marks have wide bars
"""The forms of DeepSeek V3 and R1, and of V3.1.

V3 and R1 write the arguments in a code fence, V3.1 writes them as they are:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name
    ```json
    {...}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

Every model's answer is read in both forms. Source: the chat template and the card of
DeepSeek-V3.1, and llama.cpp's template for R1; DeepSeek's own of V3 and R1 were not read. Templates
that DeepSeek publishes do not describe tools; those of vLLM's examples do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.histories import encodes_arguments, with_texts
from heddle.extensions.call_forms.sectioned import Sectioned
from heddle.text.parsing.characters import END

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm, Mark
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

_FENCE, _FENCE_END = "```json", "```"
_LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class DeepSeek(Sectioned):
    """A name and arguments, between marks of calls in a section.

    Attributes:
        fences: whether the model was trained on arguments in a code fence.
        encodes: whether the template itself encodes arguments as JSON.
    """

    fences: bool = False
    encodes: bool = False

    section: ClassVar = "<｜tool▁calls▁begin｜>"
    section_end: ClassVar = "<｜tool▁calls▁end｜>"
    call: ClassVar = "<｜tool▁call▁begin｜>"
    arguments: ClassVar = "<｜tool▁sep｜>"
    call_end: ClassVar = "<｜tool▁call▁end｜>"
    fence_end: ClassVar = _FENCE_END
    marks: ClassVar = (section, section_end, call, arguments, call_end)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages, with arguments as the template takes them.

        A template with fences writes the text of a message or its calls, so both get a message.
        """
        written: list[Mapping[str, Any]] = []
        for message in messages if self.encodes else with_texts(messages):
            if self.fences and message.get("tool_calls") and message["content"]:
                written.append({key: message[key] for key in message if key != "tool_calls"})
                written.append({**message, "content": ""})
            else:
                written.append(message)
        return written

    def _name(self, source: AnswerReader, header: str) -> Steps[str]:
        char = yield from source.after_space()
        source.put_back(char)
        if char == "{" or header != "function":
            return "" if not header or any(map(str.isspace, header)) else header
        name = ""
        while (char := (yield from source.next())) not in (END, "\n"):
            name += char
            if len(name) > _LONGEST_NAME:
                return ""
        if char != END:
            yield from source.skip(_FENCE)
        return "" if any(map(str.isspace, name.strip())) or char == END else name.strip()

    def _header(self, name: str, mark: Mark) -> str:
        if self.fences:
            named = json.dumps(name + "\n" + _FENCE)
            return f'"function" {mark(self.arguments)} {named}'
        return f"{json.dumps(name)} {mark(self.arguments)}"

    def _end(self, mark: Mark) -> str:
        fence = f'"{_FENCE_END}" ' if self.fences else ""
        return f"{fence}{mark(self.call_end)}"


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    shown = DeepSeek.section in template and DeepSeek.arguments in template
    return DeepSeek(_FENCE in template, encodes_arguments(template)) if shown else None
