"""One request inside the engine: from what a caller says to a sequence, from its tokens to text."""

from __future__ import annotations

import operator
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from heddle.embedding import EmbeddingParams
from heddle.errors import InvalidRequestError
from heddle.scheduler.sequence import Sequence
from heddle.step import NO_RULES
from heddle.text.tokenizer.detokenizer import Detokenizer
from heddle.text.tokenizer.token_rules import token_rules
from heddle.types import Delta, FinishReason, Usage

if TYPE_CHECKING:
    from collections import abc

    from heddle.engine.bell import Cancels
    from heddle.engine.loading import LoadedModel
    from heddle.step import Scored, TokenRules
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.types import PromptLogprob, SamplingParams

Prompt: TypeAlias = "str | abc.Sequence[int]"
"""Text, or token ids taken as they are."""

Params: TypeAlias = "SamplingParams | EmbeddingParams"
"""What is asked for: text after a prompt, or its embedding."""

Sink: TypeAlias = Callable[[Delta], None]
"""Takes a request's deltas, from the engine thread. Must not block; what it raises cancels the
request. The last delta has `finish` set; none follows it."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A claim on a submitted request.

    Attributes:
        id: the request's, unique within its engine.
    """

    id: int
    _cancels: Cancels

    def cancel(self) -> None:
        """End the request, from any thread; its last delta says CANCELLED. No effect once over.

        Takes no lock, so that finalizers may call it wherever garbage collection runs them.
        """
        self._cancels.add(self.id)


@dataclass(slots=True, eq=False)
class Request:
    """What the engine keeps of a request that has not ended. Touched by the engine thread alone.

    Attributes:
        sequence: the scheduler's side; `sequence.id` is the request's id.
        detokenizer: turns its tokens into text and looks for stop strings.
        sink: where its deltas go.
        last_token_at: when it got its newest token; when it was submitted, before the first.
        first_step_at: when the first step that carried it began; 0 before.
        first_token_at: when it got its first token, or what else its prompt was computed for; 0
            before.
    """

    sequence: Sequence
    detokenizer: Detokenizer
    sink: Sink
    last_token_at: float = field(default_factory=time.perf_counter)
    first_step_at: float = 0.0
    first_token_at: float = 0.0
    _told_first: bool = False  # that nothing is known of the prompt's first token

    @property
    def usage(self) -> Usage:
        """Token counts and times so far."""
        prompt, cached = self.sequence.prompt_tokens, self.sequence.cached_tokens
        usage = Usage(prompt, self.sequence.output_tokens, cached or 0)
        if not self.first_token_at:
            return usage
        return replace(
            usage,
            prompt_seconds=self.first_token_at - self.first_step_at,
            completion_seconds=self.last_token_at - self.first_token_at,
        )

    def text_of(self, token: int, finish: FinishReason | None) -> str:
        """Text that `token` makes safe to send. A token that ends the sequence is no text."""
        if finish is None:
            return self.detokenizer.push(token)
        text = "" if finish is FinishReason.STOP else self.detokenizer.push(token)
        return text + self.detokenizer.finish()

    def prompt_logprobs(self, scored: Scored) -> tuple[PromptLogprob | None, ...]:
        """What is known of further tokens of the prompt. The first of all follows nothing."""
        first = () if self._told_first else (None,)
        self._told_first = True
        return (*first, *scored.scores)


def prepare(
    model: LoadedModel,
    request_id: int,
    prompt: Prompt,
    params: Params,
    sink: Sink,
    *,
    rules: TokenRules | None = None,
) -> Request:
    """Check and tokenize a prompt, draw the seed. `rules` are those of `params`, if known already.

    Raises:
        InvalidRequestError: a token id is not in the vocabulary, one of `shown_specials` is no
            control token, or the prompt is empty and the model has no token that begins a text.
        GrammarError: the grammar is wrong, or too large.
    """
    started = time.perf_counter()
    tokenizer = model.tokenizer
    tokens = check_tokens(
        model, tokenizer.encode(prompt) if isinstance(prompt, str) else prompt, "prompt"
    )
    if not tokens and tokenizer.bos_id is not None:
        tokens = [tokenizer.bos_id]
    if not tokens:
        raise InvalidRequestError(
            "the prompt is empty and this model has no token to begin with; send some text",
            param="prompt",
        )
    if isinstance(params, EmbeddingParams):
        params = replace(params, pooling=params.pooling or model.pooling)
        sequence = Sequence(request_id, params, tokens, len(tokens), frozenset(), NO_RULES)
        return Request(sequence, Detokenizer(tokenizer), sink, started)
    check_tokens(model, list(params.logit_bias), "logit_bias")
    if params.seed is None:
        params = params.with_seed(random.getrandbits(63))
    endless = params.ignore_eos and params.grammar is None
    stops = set(check_tokens(model, params.stop_token_ids, "stop_token_ids"))
    if not endless:
        stops |= tokenizer.eos_ids
    rules = rules_of(model, params) if rules is None else rules
    sequence = Sequence(request_id, params, tokens, len(tokens), frozenset(stops), rules)
    shown = [_control_token(tokenizer, text) for text in params.shown_specials]
    detokenizer = Detokenizer(tokenizer, params.stop, params.min_tokens, shown)
    return Request(sequence, detokenizer, sink, started)


def rules_of(model: LoadedModel, params: SamplingParams) -> TokenRules:
    """The rules of sampling parameters, with their grammar compiled.

    Raises:
        GrammarError: the grammar is wrong, or too large.
    """
    rules = token_rules(params, model.tokenizer)
    if params.grammar is None:
        return rules
    return replace(rules, grammar=model.tokenizer.grammar(params.grammar))


def _control_token(tokenizer: Tokenizer, text: str) -> int:
    token = tokenizer.control_id(text)
    if token is None:
        raise InvalidRequestError(
            f"shown_specials holds {text!r}, which is no control token of this model",
            param="shown_specials",
        )
    return token


def check_tokens(model: LoadedModel, given: abc.Sequence[int], param: str) -> list[int]:
    """The token ids, as a new list of Python's own integers.

    Raises:
        InvalidRequestError: they are none, or one is not in the vocabulary.
    """
    tokens = _token_ids(given, param)
    vocabulary = min(model.shape.vocabulary, model.tokenizer.vocabulary_size)
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocabulary):
        wrong = next(token for token in tokens if not 0 <= token < vocabulary)
        raise InvalidRequestError(
            f"{param} holds token id {wrong}, which is not in [0, {vocabulary})", param=param
        )
    return tokens


def _token_ids(given: abc.Sequence[int], param: str) -> list[int]:
    if isinstance(given, (bytes, bytearray)):  # a sequence of integers, but never meant as ids
        raise InvalidRequestError(f"the {param} must be text or token ids, got bytes", param=param)
    try:
        return list(map(operator.index, given))
    except TypeError as error:
        raise InvalidRequestError(
            f"the {param} must be text or token ids: {error}", param=param
        ) from error
