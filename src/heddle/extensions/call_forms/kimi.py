"""The form of Kimi K2 and K2.5.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}
    <|tool_call_end|><|tool_calls_section_end|>

The number counts the calls of a conversation from 0. Source: the chat template of Kimi-K2-Thinking,
and docs/tool_call_guidance.md of https://huggingface.co/moonshotai/Kimi-K2-Instruct.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.sectioned import Sectioned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm, Mark
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

_HEADER = re.compile(r"(?:functions\.)?([^\s<>]+?)(?::\d+)?")


@dataclass(frozen=True, slots=True)
class Kimi(Sectioned):
    """`functions.name:0` and arguments, between marks of calls in a section."""

    section: ClassVar = "<|tool_calls_section_begin|>"
    section_end: ClassVar = "<|tool_calls_section_end|>"
    call: ClassVar = "<|tool_call_begin|>"
    arguments: ClassVar = "<|tool_call_argument_begin|>"
    call_end: ClassVar = "<|tool_call_end|>"
    marks: ClassVar = (section, section_end, call, arguments, call_end)

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages with the ids that the model was trained on, of calls and of results."""
        ids: dict[str, str] = {}
        written, count = [], 0
        for message in messages:
            calls = message.get("tool_calls") or ()
            for call in calls:
                ids[call["id"]] = f"functions.{call['function']['name']}:{count}"
                count += 1
            changed = dict(message)
            if calls:
                changed["tool_calls"] = [{**call, "id": ids[call["id"]]} for call in calls]
            if (id := message.get("tool_call_id")) in ids:
                changed["tool_call_id"] = ids[id]
            written.append(changed)
        return written

    def _name(self, _source: AnswerReader, header: str) -> Steps[str]:
        yield from ()
        found = _HEADER.fullmatch(header)
        return found[1] if found else ""

    def _header(self, name: str, mark: Mark) -> str:
        return f"{json.dumps(f'functions.{name}:')} /[0-9]{{1,4}}/ {mark(self.arguments)}"


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    return Kimi() if Kimi.section in template and Kimi.arguments in template else None
