"""Answers of `/v1/responses`: a `response` in one piece, or the events of its making."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from heddle.errors import OverloadedError
from heddle.server.answers import Answer
from heddle.server.encoding import array, joined
from heddle.server.errors import error_body
from heddle.server.logprobs import response_logprobs
from heddle.server.response_items import COMPLETED, INCOMPLETE, Events, Message
from heddle.text.parts import Text
from heddle.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.errors import HeddleError
    from heddle.server.answers import Json
    from heddle.server.logprobs import Spelling
    from heddle.text.parts import Part
    from heddle.types import Delta, Output, TokenLogprob


class ResponseAnswer(Answer):
    """A `response`. As events it is told three times, of which the last has the output."""

    prefix = "resp_"

    def __init__(self, model: str, spelling: Spelling, asked: bytes, *, logprobs: bool) -> None:
        """`asked` are the fields of the request that a response repeats, as a JSON object."""
        super().__init__(model)
        self._created = int(time.time())
        self._spelling = spelling
        self._asked = asked
        self._logprobs = logprobs
        self._events = Events()
        self._message = Message(0)
        self._status = COMPLETED

    def whole(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        [output] = outputs
        self._message.add(output.text, self._logprobs_of(output.tokens))
        self._status = _status(output.finish)
        return [self._final(totals)]

    def opening(self, index: int) -> bytes:
        response = self._response("in_progress", [])
        return (
            self._events("response.created", response=response)
            + self._events("response.in_progress", response=response)
            + self._message.opening(self._events)
        )

    def piece(self, index: int, part: Part, tokens: Sequence[TokenLogprob]) -> bytes:
        assert isinstance(part, Text), "nothing else is looked for"
        return self._message.piece(self._events, part.text, self._logprobs_of(tokens))

    def closing(self, index: int, tokens: Sequence[TokenLogprob], last: Delta) -> bytes:
        assert last.finish is not None
        self._status = _status(last.finish)
        self._message.add("", self._logprobs_of(tokens))
        return self._message.closing(self._events, self._status)

    def ending(self, totals: Json) -> bytes:
        return self._events(f"response.{self._status}", response=self._final(totals))

    def failure(self, error: HeddleError) -> bytes:
        """The response as it failed, and an event at which OpenAI's clients raise."""
        code = "rate_limit_exceeded" if isinstance(error, OverloadedError) else "server_error"
        said = {"code": code, "message": error.message}
        response = self._response("failed", [], error=said)
        fields = {"code": error.code, "message": error.message, "param": error.param}
        return self._events("response.failed", response=response) + self._events(
            "error", fields | error_body(error)
        )

    @property
    def held(self) -> int:
        return self._message.held

    def forget(self) -> None:
        self._message = Message(0)

    def _final(self, totals: Json) -> bytes:
        cut = {"reason": "max_output_tokens"} if self._status == INCOMPLETE else None
        return self._response(
            self._status,
            [self._message.encoded(self._status)],
            incomplete_details=cut,
            completed_at=None if cut else int(time.time()),
            usage=_usage(totals["usage"]),
            timings=totals["timings"],
        )

    def _response(self, status: str, output: Sequence[bytes], **state: Json | int | None) -> bytes:
        fields = {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "usage": None,
            "model": self._model,
            **state,
        }
        return joined(fields, output=array(output))[:-1] + b"," + self._asked[1:]

    def _logprobs_of(self, tokens: Sequence[TokenLogprob]) -> list[Json]:
        return response_logprobs(self._spelling, tokens) if self._logprobs else []


def _status(finish: FinishReason) -> str:
    return INCOMPLETE if finish is FinishReason.LENGTH else COMPLETED


def _usage(usage: Json) -> Json:
    """Token counts under the names of this API."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
