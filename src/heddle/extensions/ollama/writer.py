"""Writes answers of `/api/chat` and `/api/generate`: one object, or a stream of objects in lines.

The last object of a stream has `done: true`, token counts and times. Times are in ns.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from heddle.extensions.ollama.errors import ollama_error_body
from heddle.outputs import FinishReason
from heddle.server.generate.tools import call_object
from heddle.server.generate.writer import AnswerWriter
from heddle.server.http.encoding import LINES, encode, line
from heddle.server.http.record import new_id, record_of
from heddle.text.parsing.parts import Call, CallArguments, CallStart, Reasoning, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.types import Scope

    from heddle.errors import HeddleError
    from heddle.outputs import Delta, Output, TokenLogprob
    from heddle.server.generate.token_parts import TokenSpelling
    from heddle.server.generate.usage import Json
    from heddle.text.parsing.parts import Part
    from heddle.text.parsing.reading import Reading

_LOWEST = -9999.0
"""In place of minus infinity, which JSON does not have. OpenAI's API has the same value."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The times at which a request began and its model was there, by `time.perf_counter`."""

    started: float
    loaded: float

    @classmethod
    def of(cls, scope: Scope) -> Clock:
        """The clock of a request whose model is there now."""
        return cls(record_of(scope).started, time.perf_counter())

    def durations(self) -> Json:
        """`total_duration` until now, and `load_duration`."""
        return {
            "total_duration": _nanoseconds(time.perf_counter() - self.started),
            "load_duration": _nanoseconds(self.loaded - self.started),
        }


def _nanoseconds(seconds: float) -> int:
    """Nanoseconds, at least 1: clients divide by durations."""
    return max(1, round(seconds * 1e9))


def now() -> str:
    """The time for `created_at`."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class OllamaWriter(AnswerWriter):
    """The common part of both writers. A stream has each call as one object."""

    prefix = "ollama-"
    media_type = LINES
    keeps_content = True

    def __init__(
        self, model: str, spelling: TokenSpelling, clock: Clock, reading: Reading, *, logprobs: bool
    ) -> None:
        super().__init__(model, reading)
        self._spelling = spelling
        self._clock = clock
        self._shows_logprobs = logprobs
        self._call: tuple[str, list[str]] | None = None  # name and arguments of the open call
        self._calls = 0  # calls that have been written
        self._tokens: list[TokenLogprob] = []  # tokens without an object so far
        self._last: Json = {}

    def json(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        [output] = outputs
        parts = self.reading.read(output.text, cut=output.finish is FinishReason.LENGTH)
        self._note(output.tokens)
        calls = [written for call in parts.calls for written in self._written(call)]
        content = self._content(parts.text, parts.reasoning, calls)
        ending = self._ending(output.finish, totals)
        return [encode(self._frame() | content | self._logprobs(output.tokens) | ending)]

    def opening(self, index: int) -> bytes:
        return b""

    def part(self, index: int, part: Part, tokens: Sequence[TokenLogprob]) -> bytes:
        self._note(tokens)
        self._tokens += tokens if self._shows_logprobs else ()
        match part:
            case Text(text):
                return self._end_call() + self._line(self._content(text, "", []))
            case Reasoning(text):
                return self._end_call() + self._line(self._content("", text, []))
            case CallStart(_, name):
                ended = self._end_call()
                self._call = (name, [])
                return ended
            case CallArguments(_, text):
                assert self._call is not None, "a call starts with its name"
                self._call[1].append(text)
        return b""

    def closing(self, index: int, tokens: Sequence[TokenLogprob], last: Delta) -> bytes:
        assert last.finish is not None
        ended = self._end_call()
        self._note(tokens)
        self._tokens += tokens if self._shows_logprobs else ()
        self._finish = last.finish
        return ended

    def ending(self, totals: Json) -> bytes:
        last = self._content("", "", []) | self._logprobs(self._tokens)
        return line(self._frame() | last | self._ending(self._finish, totals))

    def failure(self, error: HeddleError) -> bytes:
        return line(ollama_error_body(error))

    @property
    def held(self) -> int:
        """See :class:`AnswerWriter`."""
        arguments = self._call[1] if self._call else ()
        return sum(map(len, arguments)) + 120 * len(self._tokens)

    def discard_held(self) -> None:
        """See :class:`AnswerWriter`."""
        self._call = None
        self._tokens = []

    @abstractmethod
    def _content(self, text: str, thinking: str, calls: list[Json]) -> Json:
        """The fields with new content."""

    def _note(self, tokens: Sequence[TokenLogprob]) -> None:
        """Notice tokens of the answer, in order."""

    def _frame(self) -> Json:
        return {"model": self._model, "created_at": now(), "done": False}

    def _line(self, content: Json) -> bytes:
        """An object of a stream, with all tokens that wait for one."""
        tokens, self._tokens = self._tokens, []
        return line(self._frame() | content | self._logprobs(tokens))

    def _end_call(self) -> bytes:
        """Write the open call, if there is one and its arguments are complete."""
        if self._call is None:
            return b""
        (name, arguments), self._call = self._call, None
        calls = self._written(Call(name, "".join(arguments)))
        return self._line(self._content("", "", calls)) if calls else b""

    def _written(self, call: Call) -> list[Json]:
        """A call with a new id; empty if its arguments are no object, because the end cut them."""
        arguments = call_object(call.arguments)
        if arguments is None:
            return []
        function = {"index": self._calls, "name": call.name, "arguments": arguments}
        self._calls += 1
        return [{"id": f"call_{new_id()}", "function": function}]

    def _ending(self, finish: FinishReason, totals: Json) -> Json:
        usage, times = totals["usage"], totals["timings"]
        return {
            "done": True,
            "done_reason": finish.value,
            **self._clock.durations(),
            "prompt_eval_count": usage["prompt_tokens"],
            "prompt_eval_duration": _nanoseconds(times["prompt_ms"] / 1e3),
            "eval_count": usage["completion_tokens"],
            "eval_duration": _nanoseconds(times["predicted_ms"] / 1e3),
        }

    def _logprobs(self, tokens: Iterable[TokenLogprob]) -> Json:
        if not self._shows_logprobs:
            return {}
        found = [
            self._entry(one.token, one.logprob)
            | ({"top_logprobs": [self._entry(*pair) for pair in one.top]} if one.top else {})
            for one in tokens
        ]
        return {"logprobs": found} if found else {}

    def _entry(self, token: int, logprob: float) -> Json:
        raw = self._spelling.token_bytes(token)
        name = raw.decode(errors="replace") or self._spelling.token_text(token)
        return {"token": name, "logprob": max(logprob, _LOWEST), "bytes": list(raw)}


class ChatWriter(OllamaWriter):
    """Writes the objects of `/api/chat`."""

    def _content(self, text: str, thinking: str, calls: list[Json]) -> Json:
        message: Json = {"role": "assistant", "content": text}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = calls
        return {"message": message}


class GenerateWriter(OllamaWriter):
    """Writes the objects of `/api/generate`. The last one has the `context` for the next request.

    The context holds the tokens of prompt and answer.
    """

    def __init__(
        self,
        model: str,
        spelling: TokenSpelling,
        clock: Clock,
        reading: Reading,
        *,
        logprobs: bool,
        context: Sequence[int] | None,
    ) -> None:
        """`context` holds the tokens of the prompt; None: the answer has no context."""
        super().__init__(model, spelling, clock, reading, logprobs=logprobs)
        self._context = None if context is None else list(context)

    @property
    def held(self) -> int:
        """See :class:`AnswerWriter`."""
        return super().held + 8 * len(self._context or ())

    def discard_held(self) -> None:
        """See :class:`AnswerWriter`."""
        super().discard_held()
        self._context = None

    def _note(self, tokens: Sequence[TokenLogprob]) -> None:
        if self._context is not None:
            self._context += [one.token for one in tokens]

    def _content(self, text: str, thinking: str, calls: list[Json]) -> Json:
        return {"response": text} | ({"thinking": thinking} if thinking else {})

    def _ending(self, finish: FinishReason, totals: Json) -> Json:
        context = {} if self._context is None else {"context": self._context}
        return super()._ending(finish, totals) | context
