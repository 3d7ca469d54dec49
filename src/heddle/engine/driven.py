"""A driven sequence: its caller asks for each token. For autocomplete inside an application.

A :class:`DrivenSequence` holds only tokens. When its caller asks for a token, it submits a request
to the engine. The request lasts until the caller changes the tokens (a prompt, a trim, a restore)
or cancels. Then the request ends, and its computed tokens stay in the prefix cache. So a trim gives
pages back, and the next request starts with a prefix hit on the remaining tokens.
"""

from __future__ import annotations

import dataclasses
import math
import random
import threading
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

from heddle.engine.requests.request import Ticket, check_tokens, prepare
from heddle.errors import InvalidRequestError
from heddle.text.tokenizer.continuations import beyond, line_end
from heddle.text.tokenizer.detokenizer import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.engine.adapters import ModelAdapters
    from heddle.engine.engrams import ModelEngrams
    from heddle.engine.requests.request import Request
    from heddle.engine.thread import EngineThread
    from heddle.loading.loaded_model import LoadedModel
    from heddle.outputs import Delta
    from heddle.sampling_params import SamplingParams
    from heddle.text.tokenizer.continuations import Continuations

_CONTEXT_TOKENS = 8
"""The first bytes of a character may be in this many tokens before the token that completes the
character."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The result of one call of `decode_prompt` or `sample_next`.

    Attributes:
        token: id of the token; -1 if cancelled.
        text: text that the token adds, complete characters only; empty while a character is
            incomplete.
        logprob: natural logarithm of the token's probability under the model's raw distribution,
            before bias, penalties and temperature; NaN if cancelled.
        top: (token id, logprob) of the most likely tokens, best first. The parameter `logprobs`
            sets their number.
        is_eos: whether the token ends the text; with `single_line`, whether it ends the line.
        was_cancelled: whether the sequence was cancelled. Then there is no token.
    """

    token: int
    text: str
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    is_eos: bool = False
    was_cancelled: bool = False


_CANCELLED = SampledToken(-1, "", math.nan, was_cancelled=True)


@dataclass(frozen=True, slots=True)
class SequenceSnapshot:
    """A state of a driven sequence. It holds tokens and no pages, so it is small and always valid.

    Attributes:
        tokens: token ids of prompt and output, in order.
        prompt_tokens: how many of them are the prompt.
        bounds: mirostat's bound after each token of the output; None without mirostat.
    """

    tokens: tuple[int, ...]
    prompt_tokens: int
    bounds: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class _Active:
    """The active request of a sequence. `results` yields None after a cancel."""

    request: Request
    ticket: Ticket
    results: SimpleQueue[Delta | None]


_MEANINGLESS: dict[str, tuple[object, str]] = {
    "max_tokens": (None, "stop the calls when the text is long enough"),
    "stop": ((), "stop the calls when the text contains it"),
    "stop_token_ids": ((), "stop the calls after such a token"),
    "grammar": (None, "use Engine.complete or Engine.stream for complete outputs"),
    "shown_specials": ((), "read the ids of the tokens"),
    "prompt_logprobs": (None, "use Engine.complete to get them"),
}
"""Parameters without meaning for a driven sequence: default value and alternative."""


class DrivenSequence:
    """Tokens that grow by one with each call. `Engine.create_sequence` makes it.

    Any thread may call it. Calls on one sequence wait for one another, except `cancel` and
    `position`. If several threads drive one sequence each, the sequences share the engine's steps.

    Between calls the sequence keeps a slot and its pages, unless other requests need them. In that
    case the next call computes them again, with the same bits. With the same seed, the token at a
    position depends on the tokens before it and on how many of them are output. It does not depend
    on earlier trims, restores or evictions.
    """

    def __init__(
        self,
        owner: object,
        thread: EngineThread,
        model: LoadedModel,
        continuations: Continuations,
        next_id: Callable[[], int],
        params: SamplingParams,
        engrams: ModelEngrams,
        adapters: ModelAdapters,
        *,
        single_line: bool | Literal["mask"],
    ) -> None:
        """See `Engine.create_sequence`. `next_id` returns a new id for a request.

        The sequence keeps `owner`, the engine, alive: an engine ends its thread when it is dropped.

        Raises:
            InvalidRequestError: a parameter has no meaning for a driven sequence.
        """
        for name, (unset, way_out) in _MEANINGLESS.items():
            if getattr(params, name) != unset:
                raise InvalidRequestError(
                    f"{name} has no meaning for a driven sequence; leave it out and {way_out}",
                    param=name,
                )
        self._owner = owner
        self._thread = thread
        self._model = model
        self._engrams, self._adapters = engrams, adapters
        self._continuations = continuations
        self._next_id = next_id
        seed = random.getrandbits(63) if params.seed is None else params.seed
        self._params = dataclasses.replace(params, seed=seed, logprobs=params.logprobs or 0)
        self._cuts_lines = single_line is True
        self._masks_lines = single_line == "mask"
        asked = {*model.tokenizer.eos_ids, *params.logit_bias}
        self._never = tuple(one for one in continuations.without_text if one not in asked)
        self._lock = threading.Lock()
        # Guarded by the lock:
        self._tokens: list[int] = []
        self._prompt_tokens = 0
        self._bounds: list[float | None] = []
        self._detokenizer: Detokenizer | None = None  # up to date with the tokens; else None
        self._word_marks: str | None = None  # set if the next token has to continue a word
        # Written under the lock, read by `cancel` without:
        self._active: _Active | None = None
        # Written without the lock:
        self._cancelled = False

    @property
    def position(self) -> int:
        """Number of tokens, prompt and output; also the position of the next token."""
        return len(self._tokens)

    def decode_prompt(
        self, tokens: Sequence[int], start: int = 0, *, heal: bool = False
    ) -> SampledToken:
        """Replace the tokens from position `start` on with `tokens`, and sample the next token.

        All tokens are then prompt. The engine computes only tokens that are not in the prefix
        cache. So callers need not compare an edited text with the old one.

        Args:
            tokens: token ids, at least one.
            start: in [0, position].
            heal: the text may end inside a token. The sequence removes up to 4 tokens, and samples
                tokens that agree with the removed text, as output. The call returns the first token
                whose text goes beyond the prompt, and the text beyond the prompt.

        Raises:
            InvalidRequestError: `start` is out of range, or a token is not in the vocabulary.
            ContextLengthError: these tokens leave no room for one more.
            OverloadedError: the engine's queue is full; `sample_next` tries again.
            EngineClosedError, ModelPoisonedError: the engine is no longer running.
            NonFiniteLogitsError: the logits after these tokens are NaN or infinite.
        """
        with self._lock:
            self._check_position(start, "start")
            added = check_tokens(self._model, tokens, "tokens")
            if not added:
                raise InvalidRequestError("tokens must hold at least one id", param="tokens")
            whole = self._tokens[:start] + added
            self._thread.check_length(len(whole))
            healed = self._continuations.unfinished(whole) if heal else 0
            prompt = whole[: len(whole) - healed]
            self._change(prompt, len(prompt), [])
            return self._heal(whole[len(prompt) :]) if healed else self._sample_free()

    def sample_next(self) -> SampledToken:
        """Sample the next token and append it.

        A token that ends the text is appended too, and the caller may continue after it.

        Raises:
            InvalidRequestError: there are no tokens yet.
            ContextLengthError: the context, or the KV cache, is full.
            OverloadedError, EngineClosedError, EngineFailedError, NonFiniteLogitsError: as
                :meth:`decode_prompt`. The tokens are unchanged.
        """
        with self._lock:
            return self._sample_free()

    def force_word_continuation(self, *, marks: str = "") -> None:
        """Force the next sampled token to continue the word at the end of the text.

        The next token then begins with a letter, a digit or `_`, even if this is unlikely, or it
        completes an incomplete character. The call affects one token: the result of the next
        `sample_next` or `decode_prompt`.

        Args:
            marks: characters inside of words, such as "'-". The token may also begin with one of
                them, if the word goes on after it ("'t", "-like"). If a token is only a mark, the
                token after it has to begin with a letter, a digit or `_`.
        """
        with self._lock:
            self._word_marks = marks

    def trim(self, keep: int) -> None:
        """Keep the first `keep` tokens and drop the others.

        Raises:
            InvalidRequestError: `keep` is not in [0, position].
        """
        with self._lock:
            self._check_position(keep, "keep")
            prompt = min(keep, self._prompt_tokens)
            self._change(self._tokens[:keep], prompt, self._bounds[: keep - prompt])

    def snapshot(self) -> SequenceSnapshot:
        """The current state, for :meth:`restore`."""
        with self._lock:
            return SequenceSnapshot(tuple(self._tokens), self._prompt_tokens, tuple(self._bounds))

    def restore(self, snapshot: SequenceSnapshot) -> None:
        """Go back to a state of this sequence, or of another sequence of the same model.

        This sequence keeps its own parameters.
        """
        with self._lock:
            self._change(list(snapshot.tokens), snapshot.prompt_tokens, list(snapshot.bounds))

    def cancel(self) -> None:
        """Make the call that waits for a token, and all later calls, return `was_cancelled`.

        The next call of `decode_prompt`, `trim` or `restore` ends the cancelled state. Any thread
        may call this. It returns at once, and the tokens do not change.
        """
        self._cancelled = True
        if (active := self._active) is not None:
            active.results.put(None)
            active.ticket.cancel()

    def __del__(self) -> None:
        active = getattr(self, "_active", None)  # missing if `__init__` refused the parameters
        if active is not None:
            active.ticket.cancel()

    # --- under the lock --------------------------------------------------------------------------

    def _check_position(self, value: int, param: str) -> None:
        if not 0 <= value <= len(self._tokens):
            raise InvalidRequestError(
                f"{param} is {value}; it must be in [0, {len(self._tokens)}], as the sequence has"
                f" {len(self._tokens)} tokens",
                param=param,
            )

    def _change(self, tokens: list[int], prompt_tokens: int, bounds: list[float | None]) -> None:
        self._end_request()
        self._tokens, self._prompt_tokens, self._bounds = tokens, prompt_tokens, bounds
        self._detokenizer = None
        self._cancelled = False

    def _end_request(self) -> None:
        """End the active request, if there is one."""
        active, self._active = self._active, None
        if active is not None:
            active.ticket.cancel()

    def _heal(self, taken_back: list[int]) -> SampledToken:
        """Sample tokens that agree with the text of `taken_back`, until the text goes beyond it."""
        rest = b"".join(map(self._model.tokenizer.token_bytes, taken_back))
        while rest:
            result = self._sample(self._continuations.disagreeing(rest), rest)
            if result.was_cancelled:
                return result
            piece = self._model.tokenizer.token_bytes(result.token)
            if len(piece) > len(rest):
                return result
            rest = rest[len(piece) :]
        return self._sample_free()

    def _sample_free(self) -> SampledToken:
        """Sample a token; only one that continues the word if the caller has asked for it."""
        marks = self._word_marks
        if marks is None:
            return self._sample()
        result = self._sample(self._continuations.not_in_word(marks))
        if not result.was_cancelled:
            self._word_marks = "" if result.text and result.text in marks else None
        return result

    def _sample(self, forbidden: tuple[int, ...] = (), known: bytes = b"") -> SampledToken:
        """Sample a token that is not forbidden. The result's text leaves out the `known` bytes."""
        if self._cancelled:
            return _CANCELLED
        if not self._tokens:
            raise InvalidRequestError(
                "the sequence has no tokens; call decode_prompt first", param="tokens"
            )
        self._thread.check_length(len(self._tokens))
        try:
            active = self._active
            if active is None or forbidden:
                active = self._begin(forbidden, known)
            else:
                active = self._resume(active)
            delta = active.results.get()
        except BaseException:  # refused or interrupted: a later call must not get this token
            self._end_request()
            raise
        if delta is None:
            self._end_request()
            self._cancelled = True  # `cancel` may have set it before the tokens changed
            return _CANCELLED
        if delta.finish is not None:
            self._active = None
            assert delta.error is not None  # a cancel puts None into the results first
            raise delta.error
        if forbidden:  # a request keeps its forbidden tokens, so the next token needs a new request
            self._end_request()
        return self._append(delta, active.request.sequence.mu, known)

    def _resume(self, active: _Active) -> _Active:
        """Ask the engine for the next token of the active request."""
        self._thread.resume(active.request)
        return active

    def _begin(self, forbidden: tuple[int, ...], known: bytes) -> _Active:
        """Ask the engine for a token in a new request. Its text begins with `known`."""
        self._end_request()
        results: SimpleQueue[Delta | None] = SimpleQueue()
        request = prepare(
            self._model,
            self._next_id(),
            self._tokens,
            self._params,
            results.put,
            engrams=self._engrams,
            adapters=self._adapters,
        )
        sequence = request.sequence
        sequence.prompt_tokens, sequence.driven = self._prompt_tokens, True
        sequence.mu = self._bounds[-1] if self._bounds else None
        if self._masks_lines:
            masked = self._continuations
            forbidden += masked.breaking_after(known) if known else masked.breaking
        forbidden = (*sequence.rules.forbidden, *self._never, *forbidden)
        sequence.rules = dataclasses.replace(sequence.rules, forbidden=forbidden)
        ticket = Ticket(sequence.id, request)
        active = _Active(request, ticket, results)
        self._active = active  # before the engine accepts it, so that `cancel` finds it
        self._thread.accept([request])
        if self._cancelled:  # `cancel` may have run before `_active` was set
            results.put(None)
        return active

    def _append(self, delta: Delta, bound: float | None, known: bytes) -> SampledToken:
        (sampled,) = delta.tokens
        token = sampled.token
        tokenizer = self._model.tokenizer
        detokenizer = self._detokenizer
        if detokenizer is None:
            detokenizer = self._detokenizer = Detokenizer(tokenizer)
            for before in self._tokens[-_CONTEXT_TOKENS:]:
                detokenizer.push(before)
        text = detokenizer.push(token)
        if known:
            text = beyond(known, tokenizer.token_bytes(token))
        is_eos = token in tokenizer.eos_ids
        if self._cuts_lines and (cut := line_end(text)) is not None:
            text, is_eos = text[:cut], True
        self._tokens.append(token)
        self._bounds.append(bound)
        return SampledToken(token, text, sampled.logprob, sampled.top, is_eos)
