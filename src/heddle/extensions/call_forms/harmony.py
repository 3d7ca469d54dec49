"""Harmony: the form in which gpt-oss writes whole answers, with reasoning, text and calls.

An answer is a row of messages, each with a header and a content:

    <|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant<|channel|>final<|message|>text<|return|>

The prompt ends with `<|start|>assistant`. The header of a call names the function:
`<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`. The recipient
may also come before the channel, which is how chat templates write earlier calls. Source:
https://github.com/openai/harmony, docs/format.md.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.text.chat.call_forms import CallForm, json_lark
from heddle.text.parsing.answer_reader import Marks
from heddle.text.parsing.characters import END

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heddle.text.chat.call_forms import Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps, Take

    Json = Mapping[str, Any]

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CONSTRAIN = "<|constrain|>"
_CLOSINGS = ("<|end|>", "<|call|>", "<|return|>")
_ASSISTANT = START + "assistant"

FINAL = f"{CHANNEL}final{MESSAGE}"
"""Header of the message with the text of an answer."""
REASONING = Marks(f"{CHANNEL}analysis{MESSAGE}", f"{_CLOSINGS[0]}{_ASSISTANT}")
"""The header of reasoning, and the text between the end of reasoning and the next header."""

_CALLEE = "to=functions."
_BEGINNINGS = (_ASSISTANT, CHANNEL, "to=")
"""Texts with which a header begins, perhaps after space."""
_LONGEST_HEADER = 256
_HEADER = re.compile(
    r"\s*(?:<\|start\|>assistant)?(?:\s*to=[^\s<]+)?"
    r"\s*(?:<\|channel\|>[a-z]+)?(?:\s*to=[^\s<]+)?\s*(?:<\|channel\|>[a-z]+)?"
    r"\s*(?:<\|constrain\|>)?\w*"
    r"(<\|message\|>|<\|end\|>|<\|call\|>|<\|return\|>)"
)


@dataclass(frozen=True, slots=True)
class Harmony(CallForm):
    """The form of gpt-oss. It marks reasoning and text, too."""

    marks: ClassVar = (START, CHANNEL, _CONSTRAIN, MESSAGE, *_CLOSINGS)
    frames: ClassVar = True
    reasoning: ClassVar = REASONING
    efforts: ClassVar = ("low", "medium", "high")

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        texts = thoughts = 0
        header = yield from self._header(source, "")
        while header is not None:
            name, channel = _recipient(header), _channel(header)
            if names and name:
                header = yield from self._call(source, name)
            elif channel == "analysis":
                if thoughts:
                    source.add_reasoning("\n")
                thoughts += 1
                header = yield from self._content(source, source.add_reasoning)
            else:
                if texts:
                    source.add_text("\n")
                texts += 1
                header = yield from self._content(source, source.add_text)

    def opening(self, mark: Mark) -> str:
        in_channel = f"{mark(CHANNEL)} {json.dumps(f'commentary {_CALLEE}')}"
        return f"({in_channel} | {json.dumps(_CALLEE)})"

    def calls(self, mark: Mark, *, several: bool) -> str:
        return "function"  # one call: its end mark ends the answer

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        channel = f'({mark(CHANNEL)} "commentary")?'
        kind = f'SPACE? ({mark(_CONSTRAIN)}? "json")?'
        return f"{json.dumps(name)} {channel} {kind} {mark(MESSAGE)} {json_lark(schema)}"

    def opened(self, prompt: str) -> str:
        header, opened, content = prompt.rpartition(_ASSISTANT)[2].partition(MESSAGE)
        return header + opened if opened and not any(end in content for end in _CLOSINGS) else ""

    def text_opened(self, prompt: str) -> str:
        return prompt if self.opened(prompt) else prompt + FINAL

    def text_opening(self, mark: Mark) -> str:
        kind = f'SPACE? ({mark(_CONSTRAIN)}? "json")?'
        return f'{mark(CHANNEL)} "final" {kind} {mark(MESSAGE)}'

    def history(self, messages: Sequence[Json]) -> Sequence[Json]:
        """The messages as gpt-oss's template takes them.

        The template knows one system message, the first; reasoning in the field `thinking`; one
        call in each message, and its result after it. It takes reasoning or content beside a call,
        and writes either as reasoning.
        """
        told = [one for one in messages if one["role"] in ("system", "developer")]
        written: list[Json] = []
        if told:
            content = "\n\n".join(one["content"] for one in told)
            written.append({**told[0], "content": content})
        rest = [one for one in messages if one["role"] not in ("system", "developer")]
        place = 0
        while place < len(rest):
            message = _with_thinking(rest[place])
            place += 1
            if calls := message.get("tool_calls"):
                first = place
                while place < len(rest) and rest[place]["role"] == "tool":
                    place += 1
                written += _one_by_one(message, calls, rest[first:place])
            else:
                written.append(message)
        return written

    # --- reading ---------------------------------------------------------------------------------

    def _call(self, source: AnswerReader, name: str) -> Steps[str | None]:
        """Read the content of a call. Returns the next header; None at the end."""
        given = False

        def take(text: str) -> None:
            nonlocal given
            text = text if given else text.lstrip()
            if text:
                given = True
                source.add_arguments(text)

        source.begin_call(name)
        header = yield from self._content(source, take)
        if not given and not source.cut:
            source.add_arguments("{}")
        return header

    def _content(self, source: AnswerReader, take: Take) -> Steps[str | None]:
        """Read the content of a message. Returns the next header; None at the end.

        A mark ends the content only if a header or the end of the answer follows. Other marks are
        content.
        """
        while mark := (yield from source.until((START, CHANNEL, *_CLOSINGS), take)):
            begun = "" if mark in _CLOSINGS else mark
            header = yield from self._header(source, begun)
            if header is not None:
                return header
            char = yield from source.next()
            source.put_back(char)
            if char == END and (source.cut or not begun):
                return None
            take(mark)
        return None

    def _header(self, source: AnswerReader, begun: str) -> Steps[str | None]:
        """Read a header that begins with `begun`. If no header comes next, read nothing.

        A closing mark may end a header, too: the message has no content then. The mark is not read.
        If the text was cut off inside the header, drop the incomplete header.
        """
        found = [begun]
        if (yield from source.attempt(self._rest_of_header(source, found))):
            return found[0]
        if source.cut and source.ended:
            yield from source.until((), lambda _: None)
        return None

    def _rest_of_header(self, source: AnswerReader, found: list[str]) -> Steps[bool]:
        header = found[0]
        while not header.endswith((MESSAGE, *_CLOSINGS)):
            char = yield from source.next()
            header += char
            if char == END or not _may_be_header(header):
                return False
            if header.endswith(_CALLEE):
                source.expect_call(source.position)
        matched = _HEADER.fullmatch(header)
        if matched is None:
            return False
        if matched[1] != MESSAGE:
            source.put_back(matched[1])
        found[0] = header
        return True


def form_of(template: str) -> CallForm | None:
    """The form, if `template` writes it."""
    return Harmony() if all(mark in template for mark in (START, CHANNEL, MESSAGE)) else None


def _may_be_header(text: str) -> bool:
    """Whether `text` can begin a header."""
    begun = text.lstrip()
    return len(text) < _LONGEST_HEADER and any(
        begun.startswith(known) or known.startswith(begun) for known in _BEGINNINGS
    )


def _recipient(header: str) -> str:
    """The function that a header names; empty if the message is no call of a function."""
    found = re.search(r"to=functions\.([^\s<]+)", header)
    return found[1] if found else ""


def _channel(header: str) -> str:
    found = re.search(r"<\|channel\|>\s*(\w*)", header)
    return found[1] if found else ""


def _with_thinking(message: Json) -> Json:
    """The message with its reasoning in the field that the template reads."""
    if "reasoning_content" not in message:
        return message
    changed = dict(message)
    thinking, content = changed.pop("reasoning_content"), changed["content"]
    if changed.get("tool_calls") and thinking and content:
        return changed | {"thinking": f"{thinking}\n\n{content}", "content": ""}
    return changed | {"thinking": thinking}


def _one_by_one(message: Json, calls: Sequence[Json], results: Sequence[Json]) -> list[Json]:
    """A message with one call, and the call's results, for each of the message's calls.

    The template names no id of a result: a result belongs to the call before it.
    """
    written: list[Json] = []
    left = list(results)
    for place, call in enumerate(calls):
        spoken = message if not place else {"role": message["role"], "content": ""}
        written.append({**spoken, "tool_calls": [call]})
        written += (one for one in left if one.get("tool_call_id") == call["id"])
        left = [one for one in left if one.get("tool_call_id") != call["id"]]
    return written + left
