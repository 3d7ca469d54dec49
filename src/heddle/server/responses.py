"""Answers in the shapes of OpenAI's API: whole, and as the chunks of a stream."""

from __future__ import annotations

import logging
import secrets
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from heddle.server.encoding import encode
from heddle.server.logprobs import CompletionLogprobs, Spelling, chat_logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.types import FinishReason, Output, TokenLogprob, Usage

log = logging.getLogger(__name__)

Json = dict[str, Any]


def total_usage(usages: Sequence[Usage], choices_per_prompt: int) -> Json:
    """Usage of a request of several choices. As OpenAI counts, a prompt counts once.

    `usages` holds the choices in order, those of one prompt side by side. Of a prompt's tokens
    those were cached that none of its choices computed.
    """
    by_prompt = [
        usages[start : start + choices_per_prompt]
        for start in range(0, len(usages), choices_per_prompt)
    ]
    prompt = sum(group[0].prompt_tokens for group in by_prompt)
    cached = sum(min(usage.cached_tokens for usage in group) for group in by_prompt)
    completion = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings(usages: Sequence[Usage]) -> Json:
    """How long a request took, under llama.cpp's names; milliseconds, and tokens a second.

    `prompt_n` tokens were computed and `cache_n` found. Of several choices tokens are added up, and
    the times are the longest. The first token belongs to the prompt's time, so that rates of the
    output are over one token less than `predicted_n`.
    """
    cached = sum(usage.cached_tokens for usage in usages)
    prompt = sum(usage.prompt_tokens for usage in usages) - cached
    predicted = sum(usage.completion_tokens for usage in usages)
    later = sum(max(0, usage.completion_tokens - 1) for usage in usages)
    prompt_ms = 1e3 * max((usage.prompt_seconds for usage in usages), default=0.0)
    predicted_ms = 1e3 * max((usage.completion_seconds for usage in usages), default=0.0)
    return {
        "cache_n": cached,
        "prompt_n": prompt,
        "predicted_n": predicted,
        **_rates("prompt", prompt, prompt_ms),
        **_rates("predicted", later, predicted_ms),
    }


def _rates(of: str, tokens: int, ms: float) -> Json:
    return {
        f"{of}_ms": ms,
        f"{of}_per_token_ms": ms / tokens if tokens else 0.0,
        f"{of}_per_second": 1e3 * tokens / ms if ms else 0.0,
    }


def totals(usages: Sequence[Usage], choices_per_prompt: int) -> Json:
    """What an answer says last: `usage` and `timings`, of choices in order."""
    return {"usage": total_usage(usages, choices_per_prompt), "timings": timings(usages)}


class Answer(ABC):
    """One answer's constant part, and the writing of its choices.

    Attributes:
        id: the answer's id, also the name of the request in logs.
    """

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(
        self, model: str, spelling: Spelling, *, logprobs: bool, usage_in_chunks: bool = False
    ) -> None:
        self.id = self.prefix + secrets.token_hex(12)
        self._created = int(time.time())
        self._started = time.perf_counter()
        self._model = model
        self._spelling = spelling
        self._logprobs = logprobs
        self._usage_in_chunks = usage_in_chunks

    def whole(self, choices: Sequence[bytes], totals: Json) -> list[bytes]:
        """The answer in one piece, as the parts of its JSON, around choices that are encoded."""
        frame = encode(self._frame(self.whole_object, []))
        empty = b"[]}"
        assert frame.endswith(empty), "choices are the last field of a frame"
        parts = [frame.removesuffix(empty), b"["]
        for choice in choices:
            parts += [choice, b","]
        return [*parts[:-1], b"],", encode(totals).removeprefix(b"{")]

    def log_end(self, totals: Json) -> None:
        """Note in the log that the answer is complete."""
        usage = totals["usage"]
        log.info(
            "%s: %d prompt tokens (%d cached), %d completion tokens, %.2f s",
            self.id,
            usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            usage["completion_tokens"],
            time.perf_counter() - self._started,
        )

    def opening(self, index: int) -> Json | None:
        """The chunk before a choice's first text, if there is one."""
        return None

    def piece(self, index: int, text: str, tokens: Sequence[TokenLogprob]) -> Json:
        """A chunk with new text of a choice."""
        return self._chunk([self._chunk_choice(index, text, tokens, None)])

    def closing(self, index: int, tokens: Sequence[TokenLogprob], finish: FinishReason) -> Json:
        """A choice's last chunk, with the tokens that left no text."""
        return self._chunk([self._chunk_choice(index, "", tokens, finish)])

    def usage(self, totals: Json) -> Json:
        """The chunk after all choices, sent when asked for."""
        return self._chunk([]) | totals

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = self._frame(self.chunk_object, choices)
        if self._usage_in_chunks:
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

    @abstractmethod
    def whole_choice(self, index: int, output: Output) -> Json:
        """A choice of an answer in one piece."""

    @abstractmethod
    def _chunk_choice(
        self, index: int, text: str, tokens: Sequence[TokenLogprob], finish: FinishReason | None
    ) -> Json: ...


class ChatAnswer(Answer):
    """`chat.completion` and `chat.completion.chunk`."""

    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int) -> Json:
        return self._chunk([self._choice(index, {"role": "assistant", "content": ""}, None, None)])

    def whole_choice(self, index: int, output: Output) -> Json:
        return {
            "index": index,
            "message": {"role": "assistant", "content": output.text, "refusal": None},
            "logprobs": self._logprobs_of(output.tokens),
            "finish_reason": output.finish.value,
        }

    def _chunk_choice(
        self, index: int, text: str, tokens: Sequence[TokenLogprob], finish: FinishReason | None
    ) -> Json:
        delta = {"content": text} if text else {}
        return self._choice(index, delta, self._logprobs_of(tokens) if tokens else None, finish)

    @staticmethod
    def _choice(
        index: int, delta: Json, logprobs: Json | None, finish: FinishReason | None
    ) -> Json:
        return {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish and finish.value,
        }

    def _logprobs_of(self, tokens: Sequence[TokenLogprob]) -> Json | None:
        return chat_logprobs(self._spelling, tokens) if self._logprobs else None


class CompletionAnswer(Answer):
    """`text_completion`, which has one name whole and in chunks."""

    prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(
        self, model: str, spelling: Spelling, *, logprobs: bool, usage_in_chunks: bool = False
    ) -> None:
        super().__init__(model, spelling, logprobs=logprobs, usage_in_chunks=usage_in_chunks)
        self._writers: dict[int, CompletionLogprobs] = {}

    def whole_choice(self, index: int, output: Output) -> Json:
        return self._chunk_choice(index, output.text, output.tokens, output.finish)

    def _chunk_choice(
        self, index: int, text: str, tokens: Sequence[TokenLogprob], finish: FinishReason | None
    ) -> Json:
        logprobs = None
        if self._logprobs and tokens:
            writer = self._writers.setdefault(index, CompletionLogprobs(self._spelling))
            logprobs = writer.of(tokens)
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish and finish.value,
        }
