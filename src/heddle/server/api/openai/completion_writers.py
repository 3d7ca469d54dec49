"""Writers of chat and text completions: one JSON document, or the chunks of a stream."""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from heddle.server.api.openai.logprobs import (
    CompletionLogprobs,
    chat_logprobs,
    prompt_logprobs,
)
from heddle.server.generate.token_parts import parts_with_tokens
from heddle.server.generate.writer import AnswerWriter
from heddle.server.http.encoding import encode, event
from heddle.server.http.error_shape import error_body
from heddle.text.parsing.parts import CallArguments, CallStart, Reasoning, Text, parsed_answer
from heddle.text.parsing.reading import PLAIN
from heddle.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.errors import HeddleError
    from heddle.server.api.openai.logprobs import Echo
    from heddle.server.generate.token_parts import TokenSpelling
    from heddle.text.parsing.parts import Part
    from heddle.text.parsing.reading import Reading
    from heddle.types import Delta, Output, TokenLogprob

Json = dict[str, Any]

DONE = b"data: [DONE]\n\n"


def likeliest(outputs: Sequence[Output], n: int, best: int) -> list[Output]:
    """Of every `n` outputs the `best`, by the mean log probability of their tokens; ties in order.

    Outputs have log probabilities.
    """

    def unlikely(output: Output) -> float:
        return -sum(token.logprob for token in output.tokens) / max(1, len(output.tokens))

    groups = [outputs[start : start + n] for start in range(0, len(outputs), n)]
    return [output for group in groups for output in sorted(group, key=unlikely)[:best]]


def share_prompt_logprobs(outputs: Sequence[Output], n: int) -> list[Output]:
    """Of every `n` outputs the first one asked for those of their common prompt; all have them."""
    return [
        replace(output, prompt_logprobs=outputs[index - index % n].prompt_logprobs)
        for index, output in enumerate(outputs)
    ]


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What an answer has in it beside its text, and how that is read.

    Attributes:
        usage: whether a stream ends with the token counts.
        logprobs: how many alternatives to show beside tokens with their log probabilities; None if
            these are not to be shown.
        prompt_logprobs: the same for the tokens of prompts.
        best: how many choices of each prompt to return, the likeliest; None for all.
        echo: what each prompt's choices begin with; empty for nothing.
        reading: how parts of the answers are told apart.
    """

    usage: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    best: int | None = None
    echo: Sequence[Echo] = ()
    reading: Reading = PLAIN


class _CompletionsWriter(AnswerWriter):
    """The frame that chat and text completions have in common."""

    json_object: str
    chunk_object: str

    def __init__(self, model: str, spelling: TokenSpelling, options: AnswerOptions) -> None:
        super().__init__(model, options.reading)
        self._created = int(time.time())
        self._spelling = spelling
        self._options = options

    def json(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        """Choices are encoded one by one: as objects they are six times as large."""
        frame = encode(self._frame(self.json_object, []))
        empty = b"[]}"
        assert frame.endswith(empty), "choices are the last field of a frame"
        parts = [frame.removesuffix(empty), b"["]
        for index, output in enumerate(outputs):
            parts += [encode(self.json_choice(index, output)), b","]
        return [*parts[:-1], b"],", encode(self._counted(totals)).removeprefix(b"{")]

    def opening(self, index: int) -> bytes:
        return b""

    def part(self, index: int, part: Part, tokens: Sequence[TokenLogprob]) -> bytes:
        return event(self._chunk([self._chunk_choice(index, part, tokens, None)]))

    def closing(self, index: int, tokens: Sequence[TokenLogprob], last: Delta) -> bytes:
        return event(self._chunk([self._chunk_choice(index, None, tokens, last.finish)]))

    def ending(self, totals: Json) -> bytes:
        last = event(self._chunk([]) | self._counted(totals)) if self._options.usage else b""
        return last + DONE

    def failure(self, error: HeddleError) -> bytes:
        return event(error_body(error)) + DONE

    def _counted(self, totals: Json) -> Json:
        """`totals`, with what this kind of answer counts itself."""
        return totals

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = self._frame(self.chunk_object, choices)
        if self._options.usage:
            chunk["usage"] = None
        return chunk

    def _frame(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _logprobs_of_prompt(self, output: Output) -> Json:
        """Those of the prompt that `output` went on from, where they were asked for."""
        top = self._options.prompt_logprobs
        if top is None:
            return {}
        told = output.prompt_logprobs or ()
        return {"prompt_logprobs": prompt_logprobs(self._spelling, told, top)}

    @abstractmethod
    def json_choice(self, index: int, output: Output) -> Json:
        """A choice of an answer in one piece."""

    @abstractmethod
    def _chunk_choice(
        self,
        index: int,
        part: Part | None,
        tokens: Sequence[TokenLogprob],
        finish: FinishReason | None,
    ) -> Json: ...


class ChatWriter(_CompletionsWriter):
    """`chat.completion` and `chat.completion.chunk`."""

    prefix = "chatcmpl-"
    json_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, model: str, spelling: TokenSpelling, options: AnswerOptions) -> None:
        super().__init__(model, spelling, options)
        self._called: set[int] = set()  # choices that have calls
        self._reasoning_tokens = 0

    def json(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        return super().json(outputs, totals | self._logprobs_of_prompt(outputs[0]))

    def opening(self, index: int) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return event(self._chunk([self._choice(index, delta, None, None)]))

    def json_choice(self, index: int, output: Output) -> Json:
        parts: list[Part] = []
        for part, tokens in parts_with_tokens(output, self.reading, self._spelling):
            self._count_reasoning(part, tokens)
            if part is not None:
                parts.append(part)
        found = parsed_answer(parts)
        message: Json = {"role": "assistant", "content": found.text, "refusal": None}
        if found.reasoning:
            message["reasoning_content"] = found.reasoning
        if found.calls:
            self._called.add(index)
            message["content"] = found.text or None
            message["tool_calls"] = [_call(call.name, call.arguments) for call in found.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs_of(output.tokens),
            "finish_reason": self._reason(index, output.finish),
        }

    def _chunk_choice(
        self,
        index: int,
        part: Part | None,
        tokens: Sequence[TokenLogprob],
        finish: FinishReason | None,
    ) -> Json:
        if isinstance(part, CallStart):
            self._called.add(index)
        self._count_reasoning(part, tokens)
        logprobs = self._logprobs_of(tokens) if tokens else None
        return self._choice(index, _delta(part), logprobs, finish)

    def _choice(
        self, index: int, delta: Json, logprobs: Json | None, finish: FinishReason | None
    ) -> Json:
        return {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish and self._reason(index, finish),
        }

    def _count_reasoning(self, part: Part | None, tokens: Sequence[TokenLogprob]) -> None:
        if isinstance(part, Reasoning):
            self._reasoning_tokens += len(tokens)

    def _counted(self, totals: Json) -> Json:
        """With the tokens of reasoning, of a model that can reason."""
        if self.reading.marks is None:
            return totals
        details = {"completion_tokens_details": {"reasoning_tokens": self._reasoning_tokens}}
        return totals | {"usage": totals["usage"] | details}

    def _reason(self, index: int, finish: FinishReason) -> str:
        """Why a choice ended, in OpenAI's words."""
        called = finish is FinishReason.STOP and index in self._called
        return "tool_calls" if called else finish.value

    def _logprobs_of(self, tokens: Sequence[TokenLogprob]) -> Json | None:
        shown = self._options.logprobs is not None
        return chat_logprobs(self._spelling, tokens) if shown else None


def _delta(part: Part | None) -> Json:
    """A part in the shape of a chunk."""
    match part:
        case Text(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallStart(place, name):
            return {"tool_calls": [{"index": place} | _call(name, "")]}
        case CallArguments(place, text):
            return {"tool_calls": [{"index": place, "function": {"arguments": text}}]}
    return {}


def _call(name: str, arguments: str) -> Json:
    """A call with an id of its own."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


class CompletionWriter(_CompletionsWriter):
    """`text_completion`, which has one name whole and in chunks."""

    prefix = "cmpl-"
    json_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, model: str, spelling: TokenSpelling, options: AnswerOptions, n: int) -> None:
        """Of each prompt there are `n` choices."""
        super().__init__(model, spelling, options)
        self._n = n
        self._writers: dict[int, CompletionLogprobs] = {}

    def json(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        outputs = share_prompt_logprobs(outputs, self._n)
        best = self._options.best
        if best is not None:
            outputs, self._n = likeliest(outputs, self._n, best), best
        return super().json(outputs, totals)

    def opening(self, index: int) -> bytes:
        if not self._options.echo:
            return b""
        return event(self._chunk([self._text_choice(index, self._echoed(index).text, (), None)]))

    def json_choice(self, index: int, output: Output) -> Json:
        choice = self._text_choice(index, output.text, output.tokens, output.finish)
        if self._options.echo:
            echo, top = self._echoed(index), self._options.logprobs
            choice["text"] = echo.text + output.text
            if top is not None:
                told, writer = output.prompt_logprobs or (), CompletionLogprobs(self._spelling)
                choice["logprobs"] = writer.of_all(echo, told, top, output.tokens)
        return choice | self._logprobs_of_prompt(output)

    def _echoed(self, index: int) -> Echo:
        return self._options.echo[index // self._n]

    def _chunk_choice(
        self,
        index: int,
        part: Part | None,
        tokens: Sequence[TokenLogprob],
        finish: FinishReason | None,
    ) -> Json:
        return self._text_choice(index, part.text if isinstance(part, Text) else "", tokens, finish)

    def _text_choice(
        self, index: int, text: str, tokens: Sequence[TokenLogprob], finish: FinishReason | None
    ) -> Json:
        logprobs = None
        if self._options.logprobs is not None and tokens:
            writer = self._writers.setdefault(index, CompletionLogprobs(self._spelling))
            logprobs = writer.of(tokens)
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish and finish.value,
        }
