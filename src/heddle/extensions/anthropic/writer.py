"""Writes answers of `/v1/messages`: a `message` object, or the events of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.extensions.anthropic.errors import anthropic_error_body
from heddle.outputs import FinishReason
from heddle.server.generate.tools import call_object
from heddle.server.generate.writer import AnswerWriter
from heddle.server.http.encoding import encode, event
from heddle.server.http.record import new_id
from heddle.text.parsing.parts import CallArguments, CallStart, Reasoning, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.errors import HeddleError
    from heddle.outputs import Delta, Output, TokenLogprob
    from heddle.server.generate.usage import Json
    from heddle.text.parsing.parts import ParsedAnswer, Part
    from heddle.text.parsing.reading import Reading


class MessageWriter(AnswerWriter):
    """Writes a `message` as one object or as named events."""

    prefix = "msg_"

    def __init__(self, model: str, prompt_tokens: int, reading: Reading) -> None:
        """A stream begins before the server knows how many prompt tokens are cached. So its first
        event counts all `prompt_tokens` as input. The last event has the true counts."""
        super().__init__(model, reading)
        self._prompt_tokens = prompt_tokens
        self._last: Json = {}
        self._blocks = 0  # blocks that have begun
        self._open_block: object = None  # the kind of the open block; a call's place for a call
        self._called = False

    def json(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        [output] = outputs
        found = self.reading.read(output.text, cut=output.finish is FinishReason.LENGTH)
        self._called = bool(found.calls)
        stop = self._stop(output.finish, output.stop)
        return [encode(self._message(_content(found), _usage(totals["usage"])) | stop)]

    def opening(self, index: int) -> bytes:
        usage = {"prompt_tokens": self._prompt_tokens, "completion_tokens": 0}
        message = self._message([], _usage(usage | {"prompt_tokens_details": {"cached_tokens": 0}}))
        return _event("message_start", message=message) + _event("ping")

    def part(self, index: int, part: Part, tokens: Sequence[TokenLogprob]) -> bytes:
        match part:
            case Text(text):
                begun = self._begin(Text, {"type": "text", "text": ""})
                delta = {"type": "text_delta", "text": text}
            case Reasoning(text):
                begun = self._begin(
                    Reasoning, {"type": "thinking", "thinking": "", "signature": ""}
                )
                delta = {"type": "thinking_delta", "thinking": text}
            case CallStart(place, name):
                self._called = True
                return self._begin(place, _tool_use(name, {}))
            case CallArguments(_, text):
                begun = b""
                delta = {"type": "input_json_delta", "partial_json": text}
        return begun + _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def closing(self, index: int, tokens: Sequence[TokenLogprob], last: Delta) -> bytes:
        assert last.finish is not None
        self._last = self._stop(last.finish, last.stop)
        return self._end()

    def ending(self, totals: Json) -> bytes:
        usage = _usage(totals["usage"])
        return _event("message_delta", delta=self._last, usage=usage) + _event("message_stop")

    def failure(self, error: HeddleError) -> bytes:
        return event(anthropic_error_body(error), "error")

    def _begin(self, kind: object, block: Json) -> bytes:
        """Begin a block, unless a block of this kind is open."""
        if kind == self._open_block:
            return b""
        ended = self._end()
        self._open_block = kind
        self._blocks += 1
        return ended + _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _end(self) -> bytes:
        """End the open block, if there is one."""
        if self._open_block is None:
            return b""
        self._open_block = None
        return _event("content_block_stop", index=self._blocks - 1)

    def _message(self, content: list[Json], usage: Json) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _stop(self, finish: FinishReason, stop: str | None) -> Json:
        """The reason of the end, in Anthropic's terms."""
        if finish is FinishReason.LENGTH:
            reason = "max_tokens"
        elif self._called:
            reason = "tool_use"
        else:
            reason = "end_turn" if stop is None else "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": stop}


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def _content(found: ParsedAnswer) -> list[Json]:
    """The blocks of a complete message. An incomplete call is left out: it has no valid input."""
    content: list[Json] = []
    if found.reasoning:
        content.append(_thinking(found.reasoning))
    if found.text:
        content.append({"type": "text", "text": found.text})
    return content + [
        _tool_use(call.name, value)
        for call in found.calls
        if (value := call_object(call.arguments)) is not None
    ]


def _thinking(text: str) -> Json:
    """A block of reasoning. The signature is empty, but clients expect the field."""
    return {"type": "thinking", "thinking": text, "signature": ""}


def _tool_use(name: str, input: Json) -> Json:
    """A call with a new id."""
    id = f"toolu_{new_id()}"
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def _usage(usage: Json) -> Json:
    """Token counts under Anthropic's names. `input_tokens` excludes cached tokens."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }
