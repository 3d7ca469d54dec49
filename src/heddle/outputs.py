"""The outputs of a request: deltas, whole outputs, finish reasons, counts and times."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from heddle.errors import HeddleError


class FinishReason(Enum):
    """Why a request ended. STOP and LENGTH have the values of OpenAI's `finish_reason`."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class PromptLogprob:
    """Log probability of one prompt token, after the tokens before it.

    Attributes:
        token: token id.
        logprob: natural logarithm of the token's probability.
        rank: 1 for the likeliest token of the vocabulary. Among equal logits the lowest id ranks
            first.
        top: (token id, logprob) of the likeliest tokens, best first.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token. `top` holds (token id, logprob) of the likeliest tokens, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts and times of one request.

    A comparison of outputs ignores `cached_tokens` and the times: they describe how the engine
    computed the output.

    Attributes:
        prompt_tokens: tokens of the prompt.
        completion_tokens: generated tokens.
        cached_tokens: prompt tokens that the prefix cache held, so that no step computed them.
        prompt_seconds: time from the request's first step to its first token.
        completion_seconds: time from its first to its last token.
        queue_seconds: time from its submission to its first step. If it ended before, to its end.
        drafted_tokens: guesses of its tokens that steps computed.
        accepted_tokens: how many of these guesses were right.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = field(default=0, compare=False)
    prompt_seconds: float = field(default=0.0, compare=False)
    completion_seconds: float = field(default=0.0, compare=False)
    queue_seconds: float = field(default=0.0, compare=False)
    drafted_tokens: int = field(default=0, compare=False)
    accepted_tokens: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the prompt of one request is computed.

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: prompt tokens that the prefix cache held when the request began; before: 0.
        computed_tokens: prompt tokens that are cached, computed, or in the step in flight.
        queue_seconds: time in the queue so far.
        prompt_seconds: time since the request's first step so far; 0 before.
    """

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    queue_seconds: float = field(default=0.0, compare=False)
    prompt_seconds: float = field(default=0.0, compare=False)

    @property
    def usage(self) -> Usage:
        """The usage of a request that is the part of the prompt that is computed."""
        return Usage(
            self.computed_tokens,
            0,
            self.cached_tokens,
            self.prompt_seconds,
            queue_seconds=self.queue_seconds,
        )


@dataclass(frozen=True, slots=True)
class Delta:
    """New text and tokens of one request from one step.

    Attributes:
        text: new text in complete characters. Empty while the engine holds back an incomplete
            character or a possible stop string.
        tokens: new tokens, with log probabilities only if the request asks for them. Their text may
            come in a later delta.
        finish: finish reason on the last delta; else None.
        error: the error if `finish` is ERROR.
        usage: token counts and times on the last delta; else None.
        stop: the stop string that ended the output, on the last delta; else None.
        prompt_logprobs: log probabilities of further prompt tokens, if the request asks for them.
            The entry of the first prompt token is None, because no token precedes it. All entries
            come before the first token of the output.
        embedding: the embedding on the last delta, if the request asks for an embedding: float32,
            with the model's width, of length 1.
    """

    text: str = ""
    tokens: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    error: HeddleError | None = None
    usage: Usage | None = None
    stop: str | None = None
    prompt_logprobs: tuple[PromptLogprob | None, ...] = ()
    embedding: array[float] | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """The complete output of a finished request.

    Attributes:
        stop: the stop string that ended the output; else None.
        prompt_logprobs: log probabilities of the prompt tokens, if the request asks for them; None
            for the first token.
    """

    text: str
    tokens: tuple[TokenLogprob, ...]
    finish: FinishReason
    usage: Usage
    stop: str | None = None
    prompt_logprobs: tuple[PromptLogprob | None, ...] | None = None

    @classmethod
    def of(cls, deltas: Sequence[Delta]) -> Output:
        """Join all deltas of a request. The last delta must not be an error."""
        last = deltas[-1]
        assert last.finish is not None
        assert last.usage is not None
        prompt = tuple(one for delta in deltas for one in delta.prompt_logprobs)
        return cls(
            text="".join(delta.text for delta in deltas),
            tokens=tuple(token for delta in deltas for token in delta.tokens),
            finish=last.finish,
            usage=last.usage,
            stop=last.stop,
            prompt_logprobs=prompt or None,
        )
