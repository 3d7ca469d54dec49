"""Writers of chat and text completions, as one JSON document or as the chunks of a stream."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from heddle.outputs import FinishReason
from heddle.server.api.openai.logprobs import (
    CompletionLogprobs,
    chat_logprobs,
    prompt_logprobs,
)
from heddle.server.generate.service import fingerprint_of
from heddle.server.generate.token_parts import parts_with_tokens
from heddle.server.generate.usage import prompt_progress
from heddle.server.generate.writer import AnswerWriter
from heddle.server.http.encoding import encode, event
from heddle.server.http.error_shape import error_body
from heddle.server.http.record import new_id
from heddle.text.parsing.parts import CallArguments, CallStart, Reasoning, Text, parsed_answer
from heddle.text.parsing.reading import PLAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.errors import HeddleError
    from heddle.outputs import Delta, Output, Progress, TokenLogprob
    from heddle.server.api.openai.logprobs import Echo
    from heddle.server.generate.token_parts import TokenSpelling
    from heddle.text.parsing.parts import Part
    from heddle.text.parsing.reading import Reading

Json = dict[str, Any]

DONE = b"data: [DONE]\n\n"


def likeliest(outputs: Sequence[Output], n: int, best: int) -> list[Output]:
    """Select the `best` likeliest of the `n` outputs of each prompt.

    Outputs are ranked by the mean log probability of their tokens. Among equal means the first
    output wins. The outputs must have log probabilities.
    """

    def negative_mean_logprob(output: Output) -> float:
        return -sum(token.logprob for token in output.tokens) / max(1, len(output.tokens))

    groups = [outputs[start : start + n] for start in range(0, len(outputs), n)]
    return [
        output for group in groups for output in sorted(group, key=negative_mean_logprob)[:best]
    ]


def share_prompt_logprobs(outputs: Sequence[Output], n: int) -> list[Output]:
    """Copy the prompt's log probabilities from the first of each prompt's `n` outputs to all."""
    return [
        replace(output, prompt_logprobs=outputs[index - index % n].prompt_logprobs)
        for index, output in enumerate(outputs)
    ]


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Optional content of an answer, and the reading of its outputs.

    Attributes:
        usage: whether a stream ends with the token counts.
        prompt_tokens: tokens of the prompt of each choice, if each chunk of the choice has the
            token counts so far; empty: only the last chunk has token counts.
        progress: whether a stream shows the progress of prompts.
        logprobs: number of likeliest tokens to show beside each token with its log probability;
            None: show no log probabilities.
        prompt_logprobs: the same for prompt tokens.
        best: number of likeliest choices to return for each prompt; None: all choices.
        echo: for each prompt, the text that begins its choices; empty: no such text.
        reading: how to find the parts of an output.
        fingerprint: the answer's `system_fingerprint`.
        verbose: the answer's `__verbose`; None: the answer has no such field.
    """

    usage: bool = False
    prompt_tokens: Sequence[int] = ()
    progress: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    best: int | None = None
    echo: Sequence[Echo] = ()
    reading: Reading = PLAIN
    fingerprint: str | None = None
    verbose: Json | None = None


class _CompletionsWriter(AnswerWriter):
    """The common part of the writers of chat and text completions."""

    json_object: str
    chunk_object: str

    def __init__(self, model: str, spelling: TokenSpelling, options: AnswerOptions) -> None:
        super().__init__(model, options.reading)
        self._spelling = spelling
        self._options = options
        self._frame: Json = {  # the fields before the choices
            "id": self.id,
            "object": self.json_object,
            "created": self.began_at,
            "model": model,
            "system_fingerprint": options.fingerprint,
        }
        self._chunk_frame = {**self._frame, "object": self.chunk_object}
        self.shows_progress = options.progress
        self._sent: Counter[int] = Counter()  # tokens of each choice of a stream
        self._called: set[int] = set()  # choices that have calls
        self._reasoning_tokens = 0

    def adapted(self, contents: str) -> None:
        """Name the adapters in `system_fingerprint`, which promises equal bits."""
        name = self._options.fingerprint
        if name is not None and contents:
            name = fingerprint_of(name, contents)
            self._frame["system_fingerprint"] = self._chunk_frame["system_fingerprint"] = name

    def json(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        """Encode choices one by one, because their objects take six times the memory."""
        parts = [encode(self._frame)[:-1], b',"choices":[']
        for index, output in enumerate(outputs):
            parts += [encode(self.json_choice(index, output)), b","]
        return [*parts[:-1], b"],", encode(self._counted(totals)).removeprefix(b"{")]

    def opening(self, index: int) -> bytes:
        return b""

    def part(self, index: int, part: Part, tokens: Sequence[TokenLogprob]) -> bytes:
        self._sent[index] += len(tokens)
        return event(self._chunk([self._chunk_choice(index, part, tokens, None)]))

    def progress(self, index: int, progress: Progress) -> bytes:
        """A chunk with an empty choice and llama.cpp's field `prompt_progress`."""
        chunk = self._chunk([self._chunk_choice(index, None, (), None)])
        return event(chunk | {"prompt_progress": prompt_progress(progress)})

    def closing(self, index: int, tokens: Sequence[TokenLogprob], last: Delta) -> bytes:
        self._sent[index] += len(tokens)
        return event(self._chunk([self._chunk_choice(index, None, tokens, last.finish)]))

    def ending(self, totals: Json) -> bytes:
        last = event(self._chunk([]) | self._counted(totals)) if self._options.usage else b""
        return last + DONE

    def failure(self, error: HeddleError) -> bytes:
        return event(error_body(error)) + DONE

    def _counted(self, totals: Json) -> Json:
        """Add the counts of this kind of answer to `totals`."""
        return totals

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = {**self._chunk_frame, "choices": choices}
        if choices and self._options.prompt_tokens:
            chunk["usage"] = self._usage_so_far(choices[0]["index"])
        elif self._options.usage:
            chunk["usage"] = None
        return chunk

    def _usage_so_far(self, index: int) -> Json:
        """Token counts of one choice, as vLLM's `continuous_usage_stats` has them."""
        prompt, sent = self._options.prompt_tokens[index], self._sent[index]
        return {"prompt_tokens": prompt, "completion_tokens": sent, "total_tokens": prompt + sent}

    def _prompt_logprobs_field(self, output: Output) -> Json:
        """The field `prompt_logprobs` of an output; empty if the request does not ask for it."""
        top = self._options.prompt_logprobs
        if top is None:
            return {}
        entries = output.prompt_logprobs or ()
        return {"prompt_logprobs": prompt_logprobs(self._spelling, entries, top)}

    @abstractmethod
    def json_choice(self, index: int, output: Output) -> Json:
        """A choice of a JSON answer."""

    @abstractmethod
    def _chunk_choice(
        self,
        index: int,
        part: Part | None,
        tokens: Sequence[TokenLogprob],
        finish: FinishReason | None,
    ) -> Json: ...


class ChatWriter(_CompletionsWriter):
    """Writes `chat.completion` and `chat.completion.chunk` objects."""

    prefix = "chatcmpl-"
    json_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def json(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        return super().json(outputs, totals | self._prompt_logprobs_field(outputs[0]))

    def opening(self, index: int) -> bytes:
        choice = self._chunk_choice(index, None, (), None)
        choice["delta"] = {"role": "assistant", "content": None}  # as llama.cpp; OpenAI sends ""
        return event(self._chunk([choice]))

    def json_choice(self, index: int, output: Output) -> Json:
        parts: list[Part] = []
        for part, tokens in parts_with_tokens(output, self.reading, self._spelling):
            if isinstance(part, Reasoning):
                self._reasoning_tokens += len(tokens)
            if part is not None:
                parts.append(part)
        found = parsed_answer(parts)
        message: Json = {"role": "assistant", "content": found.text, "refusal": None}
        if found.reasoning:
            message |= _reasoning(found.reasoning)
        if found.calls:
            self._called.add(index)
            message["content"] = found.text or None
            message["tool_calls"] = [_call(call.name, call.arguments) for call in found.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": None
            if self._options.logprobs is None
            else chat_logprobs(self._spelling, output.tokens),
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
        elif isinstance(part, Reasoning):
            self._reasoning_tokens += len(tokens)
        shown = tokens and self._options.logprobs is not None
        return {
            "index": index,
            "delta": _delta(part),
            "logprobs": chat_logprobs(self._spelling, tokens) if shown else None,
            "finish_reason": finish and self._reason(index, finish),
        }

    def _counted(self, totals: Json) -> Json:
        """Add `__verbose`, and the number of reasoning tokens if the model reasons."""
        if self._options.verbose is not None:
            totals = totals | {"__verbose": self._options.verbose}
        if self.reading.marks is None:
            return totals
        details = {"completion_tokens_details": {"reasoning_tokens": self._reasoning_tokens}}
        return totals | {"usage": totals["usage"] | details}

    def _reason(self, index: int, finish: FinishReason) -> str:
        """The finish reason of a choice, in OpenAI's terms."""
        called = finish is FinishReason.STOP and index in self._called
        return "tool_calls" if called else finish.value


def _delta(part: Part | None) -> Json:
    """The `delta` of a chunk for a part."""
    match part:
        case Text(text):
            return {"content": text}
        case Reasoning(text):
            return _reasoning(text)
        case CallStart(place, name):
            return {"tool_calls": [{"index": place} | _call(name, "")]}
        case CallArguments(place, text):
            return {"tool_calls": [{"index": place, "function": {"arguments": text}}]}
    return {}


def _reasoning(text: str) -> Json:
    """Reasoning under both of its names. vLLM writes the newer one, most servers the other."""
    return {"reasoning": text, "reasoning_content": text}


def _call(name: str, arguments: str) -> Json:
    """A call with a new id."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{new_id()}", "type": "function", "function": function}


class CompletionWriter(_CompletionsWriter):
    """Writes `text_completion` objects. Documents and chunks have the same name."""

    prefix = "cmpl-"
    json_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, model: str, spelling: TokenSpelling, options: AnswerOptions, n: int) -> None:
        """Each prompt has `n` choices."""
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
                entries, writer = output.prompt_logprobs or (), CompletionLogprobs(self._spelling)
                choice["logprobs"] = writer.with_prompt(echo, entries, top, output.tokens)
        return choice | self._prompt_logprobs_field(output)

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
