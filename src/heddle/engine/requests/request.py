"""A request inside the engine: makes a sequence from its prompt, and text from its tokens."""

from __future__ import annotations

import math
import operator
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from heddle.embedding import MAX_TOKEN_NUMBERS, EmbeddingParams, Pooling
from heddle.engine.adapters import contents_in
from heddle.engine.requests.processors import processors_of
from heddle.errors import InvalidRequestError
from heddle.outputs import Delta, FinishReason, Progress, Usage
from heddle.pictures import Illustrated, Laid
from heddle.sampling_params import Stage
from heddle.scheduler.sequence import Sequence
from heddle.text.tokenizer.detokenizer import Detokenizer
from heddle.token_rules import NO_RULES, TokenRules

if TYPE_CHECKING:
    from collections import abc

    from heddle.engine.adapters import ModelAdapters
    from heddle.engine.engrams import ModelEngrams
    from heddle.engine.wakeup import Cancels
    from heddle.loading.loaded_model import LoadedModel
    from heddle.outputs import PromptLogprob
    from heddle.sampling_params import SamplingParams
    from heddle.step import Scored
    from heddle.text.tokenizer.tokenizer import Tokenizer

Prompt: TypeAlias = "str | abc.Sequence[int] | Illustrated | Laid"
"""Text, token ids, to which Heddle adds nothing, or either with pictures."""

Params: TypeAlias = "SamplingParams | EmbeddingParams"
"""Parameters of a request: for generated text, or for an embedding."""

Sink: TypeAlias = Callable[[Delta], None]
"""A function that the engine thread calls with each delta of a request. It must not block. If it
raises, the request is cancelled. Only the last delta has `finish` set."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Identifies a submitted request, and cancels it.

    Attributes:
        id: id of the request, unique within the engine that accepted it.
    """

    id: int
    _request: Request = field(repr=False, compare=False)

    @property
    def usage(self) -> Usage:
        """Token counts and times so far. Any thread may read them."""
        end = self._request.end
        return self._request.usage if end is None else end[1]

    @property
    def progress(self) -> Progress:
        """How far the prompt is computed. Any thread may read it."""
        return self._request.progress

    @property
    def finish(self) -> FinishReason | None:
        """Finish reason of the request; None while it runs or waits."""
        end = self._request.end
        return None if end is None else end[0]

    @property
    def adapted(self) -> str:
        """Identifies contents and factors of the request's adapters; empty: it has none."""
        return contents_in(self._request.sequence.scope)

    def cancel(self) -> None:
        """End the request. Its last delta says CANCELLED. No effect if it has ended.

        Any thread may call this. It takes no lock, so finalizers may call it wherever garbage
        collection runs them.
        """
        self._request.cancel()


@dataclass(slots=True, eq=False)
class Request:
    """A request that has not ended. Only the engine thread uses it.

    Attributes:
        sequence: the scheduler's side; `sequence.id` is the request's id.
        detokenizer: turns its tokens into text and looks for stop strings.
        sink: gets its deltas.
        submitted_at: time of its submission.
        log_id: the caller's name for the request, for lines of the log; may be empty.
        last_token_at: time of its newest token; before its first token, time of its submission. A
            driven sequence counts from the call that asks for the next token.
        first_step_at: start of its first step; 0 before.
        first_token_at: time of its first token, its embedding or the last scores of its prompt; 0
            before.
        end: its finish reason and usage after its end; None before.
        cancels: of the engine that runs it; None before an engine has accepted it.
        cancelled: whether its caller wants it to end.
        failed_steps: failed steps that computed it, in engines that it was taken from.
        delivered: number of its tokens that its sink has.
        mu: mirostat's bound after the newest of them.
        scored: number of leading prompt tokens whose logprobs its sink has.
    """

    sequence: Sequence
    detokenizer: Detokenizer
    sink: Sink
    submitted_at: float = field(default_factory=time.perf_counter)
    log_id: str = ""
    last_token_at: float = field(init=False)
    first_step_at: float = 0.0
    first_token_at: float = 0.0
    end: tuple[FinishReason, Usage] | None = None
    cancels: Cancels | None = None
    cancelled: bool = False
    failed_steps: int = 0
    delivered: int = 0
    mu: float | None = None
    scored: int = 0
    _guessed: tuple[int, int] = 0, 0  # drafted and accepted tokens in those engines

    def __post_init__(self) -> None:
        self.last_token_at = self.submitted_at

    def cancel(self) -> None:
        """Ask the engine that runs it to end it. Any thread may call this; it takes no lock."""
        self.cancelled = True  # first: `move` reads it after it has set `cancels`
        if self.cancels is not None:
            self.cancels.add(self.sequence.id)

    def move(self, sequence_id: int, cancels: Cancels) -> None:
        """Let another engine go on with it, under an id of that engine.

        That engine goes on after what the sink has. Later tokens were lost with the failed engine.
        """
        usage = self.usage
        self._guessed = usage.drafted_tokens, usage.accepted_tokens
        self.sequence = self.sequence.afresh(sequence_id, self.delivered, self.scored, self.mu)
        self.cancels = cancels
        if self.cancelled:
            cancels.add(sequence_id)

    @property
    def label(self) -> str:
        """The request's id and its caller's name for it, for lines of the log."""
        number = self.sequence.id
        return f"{number} ({self.log_id})" if self.log_id else f"{number}"

    @property
    def progress(self) -> Progress:
        """How far the prompt is computed. After the first token, it is computed."""
        prompt, began, now = self.sequence.prompt_tokens, self.first_step_at, time.perf_counter()
        done = self.first_token_at or self.end is not None
        return Progress(
            prompt,
            self.sequence.cached_tokens or 0,
            prompt if done else min(self.sequence.computed, prompt),
            (began or now) - self.submitted_at,
            (self.first_token_at or now) - began if began else 0.0,
        )

    @property
    def usage(self) -> Usage:
        """Token counts and times so far."""
        prompt, cached = self.sequence.prompt_tokens, self.sequence.cached_tokens
        waited = (self.first_step_at or time.perf_counter()) - self.submitted_at
        drafted, accepted = self._guessed
        if (guessing := self.sequence.guessing) is not None:
            drafted += guessing.counts.drafted
            accepted += guessing.counts.accepted
        usage = Usage(
            prompt,
            self.delivered,
            cached or 0,
            queue_seconds=waited,
            drafted_tokens=drafted,
            accepted_tokens=accepted,
        )
        if not self.first_token_at:
            return usage
        return replace(
            usage,
            prompt_seconds=self.first_token_at - self.first_step_at,
            completion_seconds=self.last_token_at - self.first_token_at,
        )

    def prompt_logprobs(self, scored: Scored) -> tuple[PromptLogprob | None, ...]:
        """Logprobs of the prompt's next tokens; None for the prompt's first token."""
        first = () if self.scored else (None,)
        self.scored += len(first) + len(scored.scores)
        return (*first, *scored.scores)


def prepare(
    model: LoadedModel,
    request_id: int,
    prompt: Prompt,
    params: Params,
    sink: Sink,
    *,
    engrams: ModelEngrams,
    adapters: ModelAdapters,
    rules: TokenRules | None = None,
    log_id: str = "",
) -> Request:
    """Check and tokenize a prompt, draw the seed, and make the request.

    `engrams` and `adapters` are what `params` may name. `rules` are the token rules of `params`, if
    they are already computed. `log_id` names the request in lines of the log.

    Raises:
        BlindModelError: the prompt has pictures, and the model has no eyes.
        InvalidRequestError: a token id is not in the vocabulary, an adapter is unknown, one of
            `shown_specials` is not a control token, the prompt is empty and the model has no BOS
            token, or the vectors of its tokens would be too large.
        GrammarError: the grammar is wrong, or too large.
    """
    started = time.perf_counter()
    tokenizer = model.tokenizer
    if isinstance(params, EmbeddingParams):
        prompt = _embedding_prompt(model, prompt, params)
    if isinstance(prompt, Illustrated):
        prompt = model.lay(prompt)
    pictures = None
    if isinstance(prompt, Laid):
        model.sight()  # a blind model would wait for rows for ever
        pictures, prompt = prompt.pictures, prompt.tokens
    tokens = check_tokens(
        model, tokenizer.encode(prompt) if isinstance(prompt, str) else prompt, "prompt"
    )
    if not tokens and tokenizer.bos_id is not None:
        tokens = [tokenizer.bos_id]
    if not tokens:
        raise InvalidRequestError(
            "the prompt is empty, and this model has no BOS token. Send some text",
            param="prompt",
        )
    if not isinstance(params, EmbeddingParams) and not model.shape.causal:
        raise InvalidRequestError(
            f"{model.info.id} is an encoder: it makes embeddings and generates no text. Ask for"
            " embeddings (/v1/embeddings, LLM.embed) or load another model",
            param="model",
        )
    if isinstance(params, EmbeddingParams):
        pooling = params.pooling or model.pooling
        if pooling is None:
            raise InvalidRequestError(
                f"{model.info.id} was trained to rank documents, and its file names no pooling for"
                " embeddings. Ask for ranks (/v1/rerank, LLM.rerank), or send pooling: mean or"
                " last",
                param="pooling",
            )
        if (model.labels or model.bends_vectors) and pooling is not model.pooling:
            raise InvalidRequestError(
                f"{model.info.id} reads a text as a whole in its own way, so pooling"
                f" {pooling.value} is not supported. Leave pooling out",
                param="pooling",
            )
        numbers = len(tokens) * model.shape.width
        if pooling is Pooling.NONE and numbers > MAX_TOKEN_NUMBERS:
            most = MAX_TOKEN_NUMBERS // model.shape.width
            raise InvalidRequestError(
                f"the prompt has {len(tokens)} tokens; with pooling none it may have {most}, of"
                f" {model.shape.width} numbers each. Shorten it, or use pooling mean or last",
                param="prompt",
            )
        params = replace(params, pooling=pooling)
        sequence = Sequence(
            request_id, params, tokens, len(tokens), frozenset(), NO_RULES, pictures=pictures
        )
        if params.extensions:
            adapt(sequence, params, adapters)
        return Request(sequence, Detokenizer(tokenizer), sink, started, log_id)
    if params.logit_bias:
        check_tokens(model, list(params.logit_bias), "logit_bias")
    if params.seed is None:
        params = params.with_seed(random.getrandbits(63))
    endless = params.ignore_eos and params.grammar is None
    stops = set() if endless else set(tokenizer.eos_ids)
    if params.stop_token_ids:
        stops |= set(check_tokens(model, params.stop_token_ids, "stop_token_ids"))
    rules = rules_of(model, params, engrams) if rules is None else rules
    sequence = Sequence(
        request_id, params, tokens, len(tokens), frozenset(stops), rules, pictures=pictures
    )
    if params.extensions:
        adapt(sequence, params, adapters)
    shown = [_control_token(tokenizer, text) for text in params.shown_specials]
    detokenizer = Detokenizer(tokenizer, params.stop, params.min_tokens, shown)
    return Request(sequence, detokenizer, sink, started, log_id)


def adapt(sequence: Sequence, params: Params, adapters: ModelAdapters) -> None:
    """Give a sequence the adapters that its parameters name. Raises as `ModelAdapters.take`."""
    adapted = adapters.take(params)
    if adapted is not None:
        sequence.adapters, sequence.scope = adapted.uses, adapted.scope(params.cache_salt)


def _embedding_prompt(model: LoadedModel, prompt: Prompt, params: EmbeddingParams) -> Prompt:
    """The prompt with the text before it that its parameters name. Token ids have no such text."""
    if isinstance(prompt, str):
        return model.embedding_text(prompt, params.prompt_name)
    if params.prompt_name is not None:
        raise InvalidRequestError(
            f"prompt_name {params.prompt_name!r} goes with a text, not with token ids; leave it"
            " out, or send a text",
            param="prompt_name",
        )
    return prompt


def rules_of(model: LoadedModel, params: SamplingParams, engrams: ModelEngrams) -> TokenRules:
    """The token rules of sampling parameters, with the grammar compiled.

    Raises:
        InvalidRequestError: an engram table is unknown, or was built for another vocabulary; a
            logits processor is unknown, or has a wrong option.
        GrammarError: the grammar is wrong, or too large.
    """
    rules = token_rules(params, model.tokenizer)
    if params.extensions:
        rules = replace(rules, extensions=engrams.rules(params))
    if params.logits_processors:
        rules = replace(rules, processors=processors_of(params, model.tokenizer))
    if params.grammar is None:
        return rules
    return replace(rules, grammar=model.tokenizer.grammar(params.grammar))


def token_rules(params: SamplingParams, tokenizer: Tokenizer) -> TokenRules:
    """Sampling parameters translated to tokens, without what takes long or may be unknown."""
    unused = (id for id in tokenizer.unused if id not in params.logit_bias)
    excluded = (id for id, bias in params.logit_bias.items() if bias == -math.inf)
    ends = {*tokenizer.eos_ids, *params.stop_token_ids}
    return TokenRules(
        tuple(sorted(ends)) if params.min_tokens else (),
        tokenizer.spellings(params.bad_words) if params.bad_words else (),
        tokenizer.breakers(params.dry_sequence_breakers) if params.dry_multiplier else None,
        forbidden=(*unused, *excluded),
        pieces=tokenizer.pieces if Stage.INFILL in params.samplers else None,
    )


def _control_token(tokenizer: Tokenizer, text: str) -> int:
    token = tokenizer.control_id(text)
    if token is None:
        raise InvalidRequestError(
            f"shown_specials holds {text!r}, which is not a control token of this model; leave it"
            " out",
            param="shown_specials",
        )
    return token


def check_tokens(model: LoadedModel, given: abc.Sequence[int], param: str) -> list[int]:
    """The token ids, as a new list of Python integers.

    Raises:
        InvalidRequestError: `given` holds no token ids, or one is not in the vocabulary.
    """
    if isinstance(given, (bytes, bytearray)):  # sequences of integers, but not token ids
        raise InvalidRequestError(f"the {param} must be text or token ids, got bytes", param=param)
    try:
        tokens = list(map(operator.index, given))
    except TypeError as error:
        raise InvalidRequestError(
            f"the {param} must be text or token ids: {error}", param=param
        ) from error
    vocabulary = min(model.shape.vocabulary, model.tokenizer.vocabulary_size)
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocabulary):
        wrong = next(token for token in tokens if not 0 <= token < vocabulary)
        raise InvalidRequestError(
            f"{param} holds token id {wrong}, which is not in [0, {vocabulary})", param=param
        )
    return tokens
