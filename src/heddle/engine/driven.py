"""A sequence that its caller drives, token by token: for autocomplete inside an application.

What a :class:`DrivenSequence` holds is tokens. To the engine it is a request from the first token
asked for until the tokens are changed (a prompt, a trim, a restore) or it is cancelled; then that
request ends, and what it has computed stays in the prefix cache. So a trim gives pages back, and
the next token begins with what the cache has of the tokens that are left.
"""

from __future__ import annotations

import codecs
import dataclasses
import math
import random
import threading
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

from heddle.engine.request import Ticket, check_tokens, prepare
from heddle.errors import InvalidRequestError
from heddle.text.tokenizer.detokenizer import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.engine.loading import LoadedModel
    from heddle.engine.request import Request
    from heddle.engine.thread import EngineThread
    from heddle.text.tokenizer.continuations import Continuations
    from heddle.types import Delta, SamplingParams

_CONTEXT_TOKENS = 8
"""Tokens before a new one in which a character may have begun that the new one ends."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """What one call of `decode_prompt` or `sample_next` gives.

    Attributes:
        token: its id; -1 when cancelled.
        text: what it adds to the text, whole characters only: empty while one is unfinished.
        logprob: natural logarithm of its probability under the model's raw distribution, before
            bias, penalties and temperature; NaN when cancelled.
        top: (token id, logprob) of the likeliest tokens, best first, as many as the parameter
            `logprobs` says.
        is_eos: it ends the text, or with `single_line` the line.
        was_cancelled: there is no token, because the sequence was cancelled.
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
    """A state to go back to. Holds tokens and no pages: cheap to keep, and never invalid.

    Attributes:
        tokens: token ids of prompt and output, in order.
        prompt_tokens: how many of them are the prompt.
        bounds: mirostat's bound after each token of the output; None without mirostat.
    """

    tokens: tuple[int, ...]
    prompt_tokens: int
    bounds: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """The request of a sequence; None comes out of `results` when it was cancelled."""

    request: Request
    ticket: Ticket
    results: SimpleQueue[Delta | None]


_MEANINGLESS: dict[str, tuple[object, str]] = {
    "max_tokens": (None, "stop asking when the text is long enough"),
    "stop": ((), "stop asking when the text has come to it"),
    "stop_token_ids": ((), "stop asking when one has come"),
    "grammar": (None, "take whole outputs, from Engine.complete or Engine.stream"),
    "shown_specials": ((), "look at the ids of the tokens"),
    "prompt_logprobs": (None, "ask Engine.complete for them"),
}
"""Parameters that have no meaning here: their values if left out, and what to do instead."""


class DrivenSequence:
    """Tokens that grow by one when asked. Made by `Engine.create_sequence`.

    Calls on one sequence follow one another, from whichever threads; only `cancel` and `position`
    do not wait. Threads that drive a sequence each share the engine's steps.

    While nobody asks it keeps a slot and its pages, unless others need them; it is computed again
    then, with the same bits. Given the same seed, the token at a position depends on the tokens
    before it and on how many of those are output; not on what was trimmed, restored or evicted.
    """

    def __init__(
        self,
        owner: object,
        thread: EngineThread,
        model: LoadedModel,
        continuations: Continuations,
        next_id: Callable[[], int],
        params: SamplingParams,
        *,
        single_line: bool,
    ) -> None:
        """See `Engine.create_sequence`. `next_id` gives an id that no request has had.

        `owner` lives as long as this: the engine, which ends its thread when it is dropped.

        Raises:
            InvalidRequestError: a parameter has no meaning here.
        """
        for name, (unset, way_out) in _MEANINGLESS.items():
            if getattr(params, name) != unset:
                raise InvalidRequestError(
                    f"{name} has no meaning for a sequence that its caller drives; leave it out and"
                    f" {way_out}",
                    param=name,
                )
        self._owner = owner
        self._thread = thread
        self._model = model
        self._continuations = continuations
        self._next_id = next_id
        seed = random.getrandbits(63) if params.seed is None else params.seed
        self._params = dataclasses.replace(params, seed=seed, logprobs=params.logprobs or 0)
        self._single_line = single_line
        self._lock = threading.Lock()
        # Guarded by the lock:
        self._tokens: list[int] = []
        self._prompt_tokens = 0
        self._bounds: list[float | None] = []
        self._detokenizer: Detokenizer | None = None  # has seen all tokens; None if it has not
        self._word_goes_on = False
        # Written under the lock, read by `cancel` without:
        self._run: _Run | None = None
        # Written without the lock:
        self._cancelled = False

    @property
    def position(self) -> int:
        """How many tokens it has, prompt and output: where the next one goes."""
        return len(self._tokens)

    def decode_prompt(
        self, tokens: Sequence[int], start: int = 0, *, heal: bool = False
    ) -> SampledToken:
        """Put `tokens` at position `start`, drop what was there, and sample what follows.

        All tokens are prompt from then on. What is computed is what the prefix cache does not
        have, so nothing is gained by finding out how much of an edited text is the same.

        Args:
            tokens: token ids, at least one.
            start: in [0, position].
            heal: the text may end inside a token. Then up to 4 tokens are taken back and sampled
                again, as output, among tokens that agree with their text; what is returned is the
                first token with text beyond the prompt's, and the text beyond.

        Raises:
            InvalidRequestError: `start` is out of range, or a token is not in the vocabulary.
            ContextLengthError: with these tokens there is no room for one more.
            OverloadedError: the engine's queue is full; `sample_next` tries again.
            EngineClosedError, EngineFailedError: the engine is no longer running.
            NonFiniteLogitsError: the model computed no number after these tokens.
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
        """Sample one token more and append it.

        The token that ends a text is appended too, and may be gone on from.

        Raises:
            InvalidRequestError: there are no tokens to go on from.
            ContextLengthError: the context, or the KV cache, is full.
            OverloadedError, EngineClosedError, EngineFailedError, NonFiniteLogitsError: as
                :meth:`decode_prompt`. The tokens are what they were.
        """
        with self._lock:
            return self._sample_free()

    def force_word_continuation(self) -> None:
        """Have the next token that is sampled go on with the word that the text ends in.

        It begins with a letter, a digit or `_`, likely or not, or ends an unfinished character.
        Holds for one token; the first of `decode_prompt` is one.
        """
        with self._lock:
            self._word_goes_on = True

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
        """The state as it is now, for :meth:`restore`."""
        with self._lock:
            return SequenceSnapshot(tuple(self._tokens), self._prompt_tokens, tuple(self._bounds))

    def restore(self, snapshot: SequenceSnapshot) -> None:
        """Go back to a state, of this sequence or of another one of the same model.

        The parameters stay this sequence's own.
        """
        with self._lock:
            self._change(list(snapshot.tokens), snapshot.prompt_tokens, list(snapshot.bounds))

    def cancel(self) -> None:
        """Have the call that waits for a token return, and all later ones, with `was_cancelled`.

        That holds until `decode_prompt`, `trim` or `restore` is called. From any thread; waits for
        nothing and computes nothing. The tokens stay as they are.
        """
        self._cancelled = True
        if (run := self._run) is not None:
            run.results.put(None)
            run.ticket.cancel()

    def __del__(self) -> None:
        run = getattr(self, "_run", None)  # there is none if the parameters were refused
        if run is not None:
            run.ticket.cancel()

    # --- under the lock --------------------------------------------------------------------------

    def _check_position(self, value: int, param: str) -> None:
        if not 0 <= value <= len(self._tokens):
            raise InvalidRequestError(
                f"{param} must be in [0, {len(self._tokens)}], the tokens there are; got {value}",
                param=param,
            )

    def _change(self, tokens: list[int], prompt_tokens: int, bounds: list[float | None]) -> None:
        self._leave()
        self._tokens, self._prompt_tokens, self._bounds = tokens, prompt_tokens, bounds
        self._detokenizer = None
        self._cancelled = False

    def _leave(self) -> None:
        """End the request, if there is one."""
        run, self._run = self._run, None
        if run is not None:
            run.ticket.cancel()

    def _heal(self, taken_back: list[int]) -> SampledToken:
        """Sample what agrees with the text of these tokens until there is text beyond it."""
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
        """Sample any token, or one that goes on with a word if that was asked for."""
        if not self._word_goes_on:
            return self._sample()
        result = self._sample(self._continuations.not_in_word)
        self._word_goes_on = result.was_cancelled
        return result

    def _sample(self, forbidden: tuple[int, ...] = (), known: bytes = b"") -> SampledToken:
        """Sample a token that is not forbidden. The text that the caller knows is not told."""
        if self._cancelled:
            return _CANCELLED
        if not self._tokens:
            raise InvalidRequestError("there are no tokens; decode a prompt first", param="tokens")
        self._thread.check_length(len(self._tokens))
        try:
            run = self._run
            run = self._begin(forbidden) if run is None or forbidden else self._go_on(run)
            delta = run.results.get()
        except BaseException:  # refused; or an interrupt, and its token must not come later
            self._leave()
            raise
        if delta is None:
            self._leave()
            self._cancelled = True  # `cancel` may have set it before the tokens were changed
            return _CANCELLED
        if delta.finish is not None:
            self._run = None
            assert delta.error is not None  # who cancels says so first
            raise delta.error
        if forbidden:  # what it may not sample is its own for as long as it runs
            self._leave()
        return self._append(delta, run.request.sequence.mu, known)

    def _go_on(self, run: _Run) -> _Run:
        """Have the engine compute the next token."""
        self._thread.resume(run.request)
        return run

    def _begin(self, forbidden: tuple[int, ...]) -> _Run:
        """Have the engine compute a token in a new request."""
        self._leave()
        results: SimpleQueue[Delta | None] = SimpleQueue()
        request = prepare(self._model, self._next_id(), self._tokens, self._params, results.put)
        sequence = request.sequence
        sequence.prompt_tokens, sequence.driven = self._prompt_tokens, True
        sequence.mu = self._bounds[-1] if self._bounds else None
        sequence.rules = dataclasses.replace(sequence.rules, forbidden=forbidden)
        run = _Run(request, Ticket(request.sequence.id, self._thread.cancels), results)
        self._run = run  # before it is accepted: `cancel` must find it
        self._thread.accept([request])
        if self._cancelled:  # it may have looked for the run before there was one
            results.put(None)
        return run

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
            text = _beyond(known, tokenizer.token_bytes(token))
        is_eos = token in tokenizer.eos_ids
        if self._single_line and (cut := _line_end(text)) is not None:
            text, is_eos = text[:cut], True
        self._tokens.append(token)
        self._bounds.append(bound)
        return SampledToken(token, text, sampled.logprob, sampled.top, is_eos)


def _beyond(known: bytes, piece: bytes) -> str:
    """Whole characters that `piece` has more than `known`, which it begins with; else none."""
    decode = codecs.getincrementaldecoder("utf-8")
    shown = decode("replace").decode(known)
    return decode("replace").decode(piece)[len(shown) :]


def _line_end(text: str) -> int | None:
    """Where the first line of `text` ends; None if it does not."""
    return min((at for at in map(text.find, "\r\n") if at >= 0), default=None)
