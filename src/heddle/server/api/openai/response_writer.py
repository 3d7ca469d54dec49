"""Writes answers of `/v1/responses`: a `response` object, or the events of a stream."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from heddle.errors import OverloadedError
from heddle.outputs import FinishReason
from heddle.server.api.openai.logprobs import response_logprobs
from heddle.server.api.openai.response_items import (
    COMPLETED,
    INCOMPLETE,
    EventWriter,
    OutputFunctionCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
)
from heddle.server.generate.token_parts import parts_with_tokens
from heddle.server.generate.writer import AnswerWriter
from heddle.server.http.encoding import array, joined
from heddle.server.http.error_shape import error_body
from heddle.text.parsing import parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.errors import HeddleError
    from heddle.outputs import Delta, Output, TokenLogprob
    from heddle.server.api.openai.completion_writers import AnswerOptions
    from heddle.server.generate.token_parts import TokenSpelling
    from heddle.server.generate.usage import Json
    from heddle.text.parsing.parts import Part


class ResponseWriter(AnswerWriter):
    """Writes a `response`. A stream has the object three times; only the last has the output.

    The last item is in progress. All items before it are complete.
    """

    prefix = "resp_"
    keeps_content = True

    def __init__(
        self, model: str, spelling: TokenSpelling, repeated: bytes, options: AnswerOptions
    ) -> None:
        """`repeated` is a JSON object of the request's fields that a response repeats."""
        super().__init__(model, options.reading)
        self._spelling = spelling
        self._repeated = repeated
        self._logprobs = options.logprobs is not None
        self._events = EventWriter()
        self._items: list[OutputItem] = []
        self._complete_bytes = 0  # bytes held by the complete items
        self._status = COMPLETED
        self._reasoning_tokens = 0

    def json(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        [output] = outputs
        for part, tokens in parts_with_tokens(output, self.reading, self._spelling):
            item, _ = self._end(output.finish) if part is None else self._item_of(part)
            text = "" if part is None or isinstance(part, parts.CallStart) else part.text
            item.add(text, self._take_tokens(item, tokens))
        return [self._final(totals)]

    def opening(self, index: int) -> bytes:
        response = self._response("in_progress", [])
        return self._events("response.created", response=response) + self._events(
            "response.in_progress", response=response
        )

    def part(self, index: int, part: Part, tokens: Sequence[TokenLogprob]) -> bytes:
        last = self._items[-1:]
        item, new = self._item_of(part)
        events = b""
        if new:
            events = b"".join(before.closing(self._events, COMPLETED) for before in last)
            events += item.opening(self._events)
        logprobs = self._take_tokens(item, tokens)
        if isinstance(part, parts.CallStart):
            return events
        return events + item.piece(self._events, part.text, logprobs)

    def closing(self, index: int, tokens: Sequence[TokenLogprob], last: Delta) -> bytes:
        assert last.finish is not None
        item, new = self._end(last.finish)
        events = item.opening(self._events) if new else b""
        item.add("", self._take_tokens(item, tokens))
        return events + item.closing(self._events, self._status)

    def ending(self, totals: Json) -> bytes:
        return self._events(f"response.{self._status}", response=self._final(totals))

    def failure(self, error: HeddleError) -> bytes:
        """The failed response, and an `error` event, which raises in OpenAI's clients."""
        code = "rate_limit_exceeded" if isinstance(error, OverloadedError) else "server_error"
        response = self._response("failed", [], error={"code": code, "message": error.message})
        fields = {"code": error.code, "message": error.message, "param": error.param}
        return self._events("response.failed", response=response) + self._events(
            "error", fields | error_body(error)
        )

    @property
    def held(self) -> int:
        return self._complete_bytes + (self._items[-1].held if self._items else 0)

    def discard_held(self) -> None:
        self._items.clear()
        self._complete_bytes = 0

    def _item_of(self, part: Part) -> tuple[OutputItem, bool]:
        """The item that a part belongs to, and whether the item is new."""
        last, index = self._items[-1] if self._items else None, len(self._items)
        match part:
            case parts.CallStart(_, name):
                item: OutputItem = OutputFunctionCall(index, name)
            case parts.CallArguments():
                assert isinstance(last, OutputFunctionCall), "a call starts with CallStart"
                return last, False
            case _:
                kind = OutputMessage if isinstance(part, parts.Text) else OutputReasoning
                if isinstance(last, kind):
                    return last, False
                item = kind(index)
        self._complete_bytes += last.held if last is not None else 0
        self._items.append(item)
        return item, True

    def _end(self, finish: FinishReason) -> tuple[OutputItem, bool]:
        """The last item, and whether it is new: an output without items gets an empty message."""
        if finish is FinishReason.LENGTH:
            self._status = INCOMPLETE
        new = not self._items
        if new:
            self._items.append(OutputMessage(0))
        return self._items[-1], new

    def _take_tokens(self, item: OutputItem, tokens: Sequence[TokenLogprob]) -> list[Json]:
        """The log probabilities of an item's tokens as JSON. Counts the tokens of reasoning."""
        if isinstance(item, OutputReasoning):
            self._reasoning_tokens += len(tokens)
        shown = self._logprobs and isinstance(item, OutputMessage)
        return response_logprobs(self._spelling, tokens) if shown else []

    def _final(self, totals: Json) -> bytes:
        *before, last = self._items
        output = [item.encoded(COMPLETED) for item in before] + [last.encoded(self._status)]
        cut = {"reason": "max_output_tokens"} if self._status == INCOMPLETE else None
        return self._response(
            self._status,
            output,
            incomplete_details=cut,
            completed_at=None if cut else int(time.time()),
            usage=_usage(totals["usage"], self._reasoning_tokens),
            timings=totals["timings"],
        )

    def _response(self, status: str, output: Sequence[bytes], **state: Json | int | None) -> bytes:
        fields = {
            "id": self.id,
            "object": "response",
            "created_at": self.began_at,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "usage": None,
            "model": self._model,
            **state,
        }
        return joined(fields, output=array(output))[:-1] + b"," + self._repeated[1:]


def _usage(usage: Json, reasoning_tokens: int) -> Json:
    """Token counts under the names of `/v1/responses`."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage["total_tokens"],
    }
