"""The form of Solar Open, which marks reasoning, text and calls.

    <|think|>reasoning<|end|><|begin|>assistant<|content|>text<|end|>
    <|tool_calls|><|tool_call:begin|>id<|tool_call:name|>name<|tool_call:args|>{...}<|tool_call:end|>
    <|calls|>

The prompt ends with `<|begin|>assistant`. An id has ten letters and digits. Source: the chat
template of Solar-Open-100B.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.extensions.call_forms.sectioned import Sectioned
from heddle.extensions.call_forms.tagged import comes_next
from heddle.text.parsing.answer_reader import Marks
from heddle.text.parsing.characters import END

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import CallForm, Mark
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps, Take

    Json = Mapping[str, Any]

_ASSISTANT = "<|begin|>assistant"
_THINK, _CONTENT, _NAME = "<|think|>", "<|content|>", "<|tool_call:name|>"
_ENDS = ("<|end|>", "<|flush|>", "<|calls|>")
_ID = re.compile("[a-z0-9]{10}")


@dataclass(frozen=True, slots=True)
class SolarOpen(Sectioned):
    """Messages of reasoning, text or calls, each with its mark."""

    section: ClassVar = "<|tool_calls|>"
    section_end: ClassVar = "<|calls|>"
    call: ClassVar = "<|tool_call:begin|>"
    arguments: ClassVar = "<|tool_call:args|>"
    call_end: ClassVar = "<|tool_call:end|>"
    marks: ClassVar = (
        *("<|begin|>", "<|end|>", "<|flush|>", _THINK, _CONTENT),
        *(section, section_end, call, _NAME, arguments, call_end),
    )
    frames: ClassVar = True
    reasoning: ClassVar = Marks(_THINK, f"<|end|>{_ASSISTANT}")

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        follows = True
        while follows:
            yield from source.skip(_ASSISTANT)
            if (yield from source.skip(_THINK)):
                follows = yield from self._content(source, source.add_reasoning)
            elif (yield from source.skip(_CONTENT)):
                follows = yield from self._content(source, source.add_text)
            elif (yield from source.skip(self.section)):
                follows = yield from self._calls(source, names)
            else:
                follows = yield from self._content(source, source.add_text)

    def _calls(self, source: AnswerReader, names: Collection[str]) -> Steps[bool]:
        """Read calls after their mark. Returns whether another message follows."""
        source.expect_call(source.position)
        if not names or not (yield from self._call(source, begun=False)):
            yield from source.reject_mark(self.section)
        while names and (yield from self._call(source, begun=False)):
            pass
        return (yield from self._content(source, source.add_text))

    def _content(self, source: AnswerReader, take: Take) -> Steps[bool]:
        """Read the content of a message. Returns whether another message follows.

        A mark ends the content only if another message or the end of the answer follows.
        """
        while mark := (yield from source.until(_ENDS, take)):
            if (yield from comes_next(source, (_ASSISTANT,))):
                char = yield from source.next()
                source.put_back(char)
                return char != END
            take(mark)
        return False

    def _name(self, _source: AnswerReader, header: str) -> Steps[str]:
        yield from ()
        return header.partition(_NAME)[2].strip()

    def _header(self, name: str, mark: Mark) -> str:
        id = f"/{_ID.pattern}/ {mark(_NAME)}"
        return f"{id} {json.dumps(name)} {mark(self.arguments)}"

    def opened(self, prompt: str) -> str:
        last = prompt.rpartition(_ASSISTANT)[2]
        begun = next((mark for mark in (_THINK, _CONTENT) if last.startswith(mark)), "")
        return "" if any(end in last for end in _ENDS) else begun

    def text_opened(self, prompt: str) -> str:
        return prompt if self.opened(prompt) else prompt + _CONTENT

    def text_opening(self, mark: Mark) -> str:
        return mark(_CONTENT)

    def history(self, messages: Sequence[Json]) -> Sequence[Json]:
        """The messages as the template takes them.

        It writes the text or the calls of a message, reasoning from the field `reasoning`, and ids
        as they are.
        """
        written: list[Json] = []
        for message in messages:
            changed = dict(message)
            if "reasoning_content" in changed:
                changed["reasoning"] = changed.pop("reasoning_content")
            if "tool_call_id" in changed:
                changed["tool_call_id"] = _short(changed["tool_call_id"])
            if calls := changed.get("tool_calls"):
                if changed["content"]:
                    written.append({k: v for k, v in changed.items() if k != "tool_calls"})
                    changed.pop("reasoning", None)
                changed |= {"content": "", "tool_calls": [_with_short(call) for call in calls]}
            written.append(changed)
        return written


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    shown = (_ASSISTANT, SolarOpen.call, SolarOpen.arguments)
    return SolarOpen() if all(mark in template for mark in shown) else None


def _short(id: str) -> str:
    return id if _ID.fullmatch(id) else hashlib.sha256(id.encode()).hexdigest()[:10]


def _with_short(call: Json) -> Json:
    return {**call, "id": _short(call["id"])}
