"""The contract between scheduler and executor: integers in, sampled tokens out.

A step is four verbs::

    plan = scheduler.schedule()
    executor.submit(plan)
    result = executor.collect()
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

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence
    from concurrent.futures import Future

    from heddle.embedding import EmbeddingParams
    from heddle.errors import HeddleError
    from heddle.roofline import Limits, ModelWork
    from heddle.state import StateMemory
    from heddle.types import PromptLogprob, SamplingParams


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the engine must know of a model to size its memory. `width` is that of embeddings."""

    layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    width: int


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


@dataclass(slots=True, eq=False)
class WindowPages:
    """The pages that a sequence holds of a windowed group: a run of consecutive page numbers.

    Attributes:
        first: number of the first page; positions before it are seen by no one any more.
        pages: page ids; position p lives in `pages[p // PAGE_TOKENS - first]`.
        source: page whose content belongs in the next page before anything is computed there; None
            if there is nothing to copy.
    """

    first: int = 0
    pages: list[int] = field(default_factory=list)
    source: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence to compute in this step.

    Attributes:
        slot: the sequence's slot. At most one chunk per slot and step.
        start: absolute position of `tokens[0]`; all positions before it are in the pages.
        tokens: token ids at positions start, start + 1, ...; at least one.
        pages: page ids covering positions [0, start + len(tokens)), of the group of all positions.
        sample: whether to sample a next token from the last token's logits.
        score: which log probabilities of prompt tokens are wanted; None for none.
        pool: which hidden states are; None for none.
        windows: pages of each windowed group, which cover what the chunk's tokens see.
    """

    slot: int
    start: int
    tokens: Sequence[int]
    pages: Sequence[int]
    sample: bool
    score: Scoring | None = None
    pool: Pool | None = None
    windows: Sequence[WindowPages] = ()


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Make page `target` hold what page `source` holds: a sequence goes on from there.

    `window` is the number of the windowed group that both belong to; None for the group of all
    positions.
    """

    source: int
    target: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class StateCopy:
    """Copy the fixed-size state of a slot to a snapshot, or a snapshot to the slot's state."""

    slot: int
    snapshot: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step's work, in this order: bindings, copies, clears, restores, chunks, snapshots.

    Attributes:
        bindings: sequences that take slots.
        chunks: tokens to compute.
        copies: pages to copy.
        clears: slots whose fixed-size state becomes that of an empty sequence.
        restores: snapshots to copy to the states of slots.
        snapshots: states of slots to copy to snapshots, as the chunks leave the states.
    """

    bindings: tuple[Binding, ...]
    chunks: tuple[Chunk, ...]
    copies: tuple[PageCopy, ...] = ()
    clears: tuple[int, ...] = ()
    restores: tuple[StateCopy, ...] = ()
    snapshots: tuple[StateCopy, ...] = ()


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

    A later step computes the chunk's last token again and samples from the same logits. The slot's
    state of fixed size is left as it was before that token.

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
    """State as bytes. Pages and snapshots can be copied out and put back, and are the same bits."""

    def read_page(self, page: int, windows: Sequence[int] = ()) -> memoryview:
        """A copy of a page, and of a page of each windowed group after it.

        Never while a step writes to one of them.
        """
        ...

    def write_page(self, page: int, content: memoryview, windows: Sequence[int] = ()) -> None:
        """Have these pages hold what `read_page` gave. Never while a step uses one of them."""
        ...

    def read_snapshot(self, snapshot: int) -> memoryview:
        """A copy of a snapshot of fixed-size state."""
        ...

    def write_snapshot(self, snapshot: int, content: memoryview) -> None:
        """Have a snapshot hold what `read_snapshot` gave."""
        ...


class Executor(PageMemory, Protocol):
    """Runs plans, one at a time: `submit` starts a step, `collect` returns its result.

    The device computes between the two calls, and the caller does other work. An executor holds one
    submitted step at most: every `submit` that returns is followed by a `collect`, and no page is
    read or written in between. All methods are called from one thread, unless they say otherwise.

    The engine, the benchmarks and the server use nothing of an executor that is not declared here.
    """

    @property
    def shape(self) -> ModelShape:
        """The model's sizes; `context` as this executor serves it."""
        ...

    @property
    def memory(self) -> StateMemory:
        """How many pages of each group, and snapshots, there are. Ids begin at 0."""
        ...

    @property
    def page_format(self) -> str:
        """What the bytes of a page depend on beside the tokens and the model's file.

        Executors with equal formats compute equal pages from equal files, bit for bit.
        """
        ...

    @property
    def summary(self) -> str:
        """The device and the memory that the executor holds, in a few words for people."""
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
        """Wall time that steps took so far, as if each had been collected as soon as submitted.

        From any thread.
        """
        ...

    def submit(self, plan: StepPlan) -> None:
        """Start a step: copy pages, compute the chunks, write their KV, read what the plan asks.

        The plan must not change before `collect` has returned; after that the executor keeps no
        reference to it.

        Raises:
            EngineFailedError: the executor refuses the plan. Nothing is to be collected; what the
                plan copies is undefined.
        """
        ...

    def collect(self) -> StepResult:
        """Wait for the submitted step and return its result. The calling thread may compute.

        An error of one sequence alone is its :class:`Failed` entry in the result.

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
        """Free threads and memory; `shape`, sizes and totals stay readable. Idempotent.

        A step that was submitted is not collected any more.
        """
        ...
