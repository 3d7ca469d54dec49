"""The contract between scheduler and executor: integers in, sampled tokens out.

A step is three verbs::

    plan = scheduler.schedule()
    result = executor.execute(plan)
    scheduler.update(result)

There is no prefill and no decode here: a chunk is a run of tokens of one sequence at known
positions, one token or hundreds. All state an executor keeps per slot (sampler counts, random
counters, sums of hidden states) is set up by a :class:`Binding` and can be rebuilt from it at any
time, which is what preemption does. What cannot be read from the tokens (`mu`) comes back with each
of them and goes out with the next binding.

Three things can be read from a chunk, beside the keys and values that it leaves: the next token
(`sample`), log probabilities of prompt tokens (:class:`Scoring`), and the hidden states that an
embedding is made of (:class:`Pool`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from heddle.embedding import EmbeddingParams
    from heddle.errors import HeddleError
    from heddle.roofline import Limits, ModelWork
    from heddle.types import PromptLogprob, SamplingParams

PAGE_TOKENS = 32
"""Tokens per KV page, everywhere."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class TokenSequences:
    """Token sequences, none of them empty. Made once for many requests: its identity is its key."""

    sequences: tuple[tuple[int, ...], ...] = ()


class GrammarState(Protocol):
    """Where one sequence's output stands in its grammar. For one thread at a time."""

    def next_mask(self, tokens: Sequence[int]) -> bytes:
        """What may come after `tokens`, which go on from the last call's.

        Returns:
            A bit per token id: t is allowed if bit t % 8 of byte t // 8 is set. Ids past the end
            are not. Empty where anything may come. Where the output may end, the tokens that end it
            are allowed. What is returned depends on all tokens so far, and not on how they were cut
            into calls.

        Raises:
            GrammarError: following the grammar takes too much work.
        """
        ...


class TokenGrammar(Protocol):
    """What an output may be. Shared by requests and threads."""

    def begin(self) -> GrammarState:
        """The state of an empty output."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TokenPieces:
    """What the tokens of a vocabulary mean to a filling. One for all requests of a model.

    Attributes:
        texts: the bytes of each token, empty for control tokens.
        ends: tokens that end a generation, ascending.
    """

    texts: tuple[bytes, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a request's strings, and the ends it must not come to yet, are in tokens.

    Attributes:
        end_tokens: not to be sampled before `min_tokens`.
        bad_sequences: not to be generated.
        breakers: what DRY's repetitions do not reach across; None without DRY.
        forbidden: not to be sampled at all; at least one token is not forbidden.
        grammar: what the output may be; None for anything.
        pieces: of the vocabulary, where the sampler `infill` runs.
    """

    end_tokens: tuple[int, ...] = ()
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    breakers: TokenSequences | None = None
    forbidden: tuple[int, ...] = ()
    grammar: TokenGrammar | None = None
    pieces: TokenPieces | None = None


NO_RULES = TokenRules()


@dataclass(frozen=True, slots=True)
class Binding:
    """From this step on, `slot` holds this sequence.

    Attributes:
        slot: slot index in [0, slots).
        params: what its request asks for, with `seed` already drawn.
        prompt: prompt token ids.
        output: tokens generated so far; not empty when a preempted sequence comes back.
        rules: of its sampling.
        mu: mirostat's bound after `output`; None before the first token, and without mirostat.
    """

    slot: int
    params: SamplingParams | EmbeddingParams
    prompt: Sequence[int]
    output: Sequence[int]
    rules: TokenRules = NO_RULES
    mu: float | None = None


@dataclass(frozen=True, slots=True)
class Scoring:
    """Log probabilities of prompt tokens are wanted, each given all tokens before it.

    Attributes:
        first: index in the chunk of the token that `targets[0]` follows.
        targets: consecutive token ids of the prompt; none where only the first token, which follows
            nothing, is to be told.
        top: how many of the likeliest tokens to report beside each.
    """

    first: int
    targets: Sequence[int]
    top: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Last hidden states are wanted, after the final norm: to be added to the slot's sum.

    Attributes:
        first: index in the chunk of the first token whose state counts; all after it do.
        complete: whether these are the sequence's last.
    """

    first: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence to compute in this step.

    Attributes:
        slot: the sequence's slot. At most one chunk per slot and step.
        start: absolute position of `tokens[0]`; all positions before it are in the pages.
        tokens: token ids at positions start, start + 1, ...; at least one.
        pages: page ids covering positions [0, start + len(tokens)).
        sample: whether to sample a next token from the last token's logits.
        score: which log probabilities of prompt tokens are wanted; None for none.
        pool: which hidden states are; None for none.
    """

    slot: int
    start: int
    tokens: Sequence[int]
    pages: Sequence[int]
    sample: bool
    score: Scoring | None = None
    pool: Pool | None = None


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Make page `target` hold what page `source` holds: a sequence goes on from there."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step's work. Bindings take effect and pages are copied before chunks run."""

    bindings: tuple[Binding, ...]
    chunks: tuple[Chunk, ...]
    copies: tuple[PageCopy, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled token.

    Attributes:
        slot: the slot it belongs to.
        token: token id.
        logprob: natural log of its probability under the raw distribution; NaN when the request
            did not ask for logprobs.
        top: (token id, logprob) of the likeliest tokens, best first, ties to the lower id; as
            many as the request's `logprobs`.
        mu: mirostat's bound after this token, for the sequence's next :class:`Binding`; None
            without mirostat.
    """

    slot: int
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    mu: float | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """Log probabilities of prompt tokens, one for each target of a chunk's :class:`Scoring`."""

    slot: int
    scores: tuple[PromptLogprob, ...]


@dataclass(frozen=True, slots=True)
class Pooled:
    """An embedding: the mean of the states that were pooled.

    Attributes:
        slot: the slot it belongs to.
        vector: float32 of the model's width and of length 1.
    """

    slot: int
    vector: array[float]


@dataclass(frozen=True, slots=True)
class Failed:
    """One sequence got no number, and has to end; the step's others are sound.

    Attributes:
        slot: the slot it belongs to.
        error: what its caller gets; says what happened and the way out.
    """

    slot: int
    error: HeddleError


@dataclass(frozen=True, slots=True)
class Deferred:
    """No token was sampled, because what it is to be sampled under was late.

    A later step computes the chunk's last token again and samples from the same logits.

    Attributes:
        slot: the slot it belongs to.
        ready: done when such a step can sample.
    """

    slot: int
    ready: Future[None]


Outcome: TypeAlias = Sampled | Scored | Pooled | Failed | Deferred


@dataclass(frozen=True, slots=True)
class StepResult:
    """What was read from the chunks.

    Attributes:
        sampled: one entry per chunk with `sample` set, in chunk order.
        scored: likewise per chunk with `score`.
        pooled: likewise per chunk whose `pool` is complete.
    """

    sampled: tuple[Sampled | Failed | Deferred, ...]
    scored: tuple[Scored | Failed, ...] = ()
    pooled: tuple[Pooled | Failed, ...] = ()


class PageMemory(Protocol):
    """KV pages as bytes. Whole pages can be copied out and put back, and are the same bits then."""

    def read_page(self, page: int) -> memoryview:
        """A copy of a page, `page_bytes` bytes. Never while a step writes to it."""
        ...

    def write_page(self, page: int, content: memoryview) -> None:
        """Have a page hold what `read_page` gave. Never while a step reads or writes it."""
        ...


class Executor(PageMemory, Protocol):
    """Runs plans. Called from one thread only; a step must not keep references to the plan."""

    @property
    def pages(self) -> int:
        """How many KV pages there are; page ids are in [0, pages)."""
        ...

    @property
    def page_bytes(self) -> int:
        """Bytes of one KV page, all layers."""
        ...

    @property
    def page_format(self) -> str:
        """What the bytes of a page depend on beside the tokens and the model's file.

        Executors with equal formats compute equal pages from equal files, bit for bit.
        """
        ...

    @property
    def summary(self) -> str:
        """What it runs on and the memory it holds, in a few words for people."""
        ...

    @property
    def work(self) -> ModelWork:
        """What its steps cost."""
        ...

    def measure_limits(self) -> Limits:
        """Measure what the hardware can do at most; takes seconds. No step may run meanwhile."""
        ...

    @property
    def compute_seconds(self) -> float:
        """Wall time that steps took so far, without what Python does before, after and meanwhile.

        From any thread.
        """
        ...

    def execute(self, plan: StepPlan, meanwhile: Callable[[], None] | None = None) -> StepResult:
        """Copy pages, compute the chunks, write their KV, read from them what is asked.

        `meanwhile` is work of the caller's that may be done while the step computes: it is called
        in the caller's thread, once, or not at all when the step fails.

        What concerns one sequence alone is its :class:`Failed` entry in the result.

        Raises:
            EngineFailedError: the step failed as a whole; what it copied and the KV it wrote are
                undefined.
            StepAbandonedError: `abandon` was called; the same is undefined.
        """
        ...

    def abandon(self) -> None:
        """Have the step in flight end soon without a result, and every later one at once.

        For good: the engine stops, and does not wait for a step that takes a minute. From any
        thread.
        """
        ...

    def close(self) -> None:
        """Free threads and memory. Idempotent."""
        ...
