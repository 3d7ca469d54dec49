"""The contract between scheduler and executor: integers in, sampled tokens out.

A step is four verbs::

    plan = scheduler.schedule()
    executor.submit(plan)
    result = executor.collect()
    scheduler.update(result)

The contract does not distinguish prefill and decode: a chunk is a run of tokens of one sequence at
known positions, one token or hundreds. A :class:`Binding` sets up all state that an executor keeps
for a slot (sampler counts, random counters, sums of hidden states). Preemption rebuilds the state
from a new binding, at any time. `mu` does not follow from the tokens, so it comes back with each
token and goes out with the next binding.

A chunk leaves keys and values. A plan can also ask a chunk for three results: the next token
(`sample`), log probabilities of prompt tokens (:class:`Scoring`), and the hidden states of an
embedding (:class:`Pool`).

A chunk may also return the hidden states of its last tokens (`keep_states`): a prediction head of
the model reads them (:attr:`Executor.head`).

A chunk that samples may end with guesses: tokens that nobody has sampled yet. The executor samples
after the last known token. As long as the sampled token equals the guess at its place, the executor
goes on and samples after that guess. So a step yields as many tokens as steps without guesses would
yield one by one, and the same ones: logits do not depend on later tokens, and the sampler sees the
same history and the same random number at each index.

A recurrence cannot go back to the token before a wrong guess. So its state stays before the guesses
unless all of them were right, and the next step computes the right ones again
(:attr:`Chunk.uncertain`).
"""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 (codecs of messages read the annotations)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable
    from concurrent.futures import Future

    import numpy as np
    from numpy.typing import NDArray

    from heddle import _native
    from heddle.embedding import EmbeddingParams
    from heddle.errors import HeddleError
    from heddle.outputs import PromptLogprob
    from heddle.roofline import Limits, ModelWork
    from heddle.sampling_params import SamplingParams
    from heddle.state import StateMemory

    States: TypeAlias = NDArray[np.float32]

RuleT = TypeVar("RuleT")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model that the engine needs. `width` is also the width of embeddings.

    `causal` says whether tokens see no later tokens. A model that is not causal is an encoder: it
    makes embeddings, generates and scores nothing, and one step computes a whole sequence.
    """

    layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    width: int
    causal: bool = True


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class TokenSequences:
    """Non-empty token sequences. Many requests share one object; its identity is its key."""

    sequences: tuple[tuple[int, ...], ...] = ()


class GrammarState(Protocol):
    """The place of one sequence's output in its grammar. For one thread at a time."""

    def next_mask(self, tokens: Sequence[int]) -> bytes:
        """Append `tokens` to the output, and return the mask for the next token.

        Returns:
            A bit per token id: t is allowed if bit t % 8 of byte t // 8 is set. Ids beyond the last
            bit are not allowed. An empty mask allows all tokens. If the output may end here, the
            mask allows the tokens that end it. The mask depends on all tokens so far, and not on
            how they were divided among calls.

        Raises:
            GrammarError: following the grammar costs too much.
        """
        ...

    def rewind(self, count: int) -> bool:
        """Take back the last `count` tokens. False: it cannot, and must not be used again."""
        ...


class TokenGrammar(Protocol):
    """A grammar over the tokens of a model. Requests and threads share it."""

    def begin(self) -> GrammarState:
        """The state of an empty output."""
        ...


class ProcessorState(Protocol):
    """A logits processor's place in one sequence. For one thread at a time."""

    def next_bias(self, tokens: Sequence[int]) -> NDArray[np.float32] | None:
        """Append `tokens` to the output, and return what to add to the logits of the next token.

        Returns:
            (n,) numbers for the tokens below n, at most the vocabulary; minus infinity excludes a
            token. None adds nothing. The bias depends on the prompt and all tokens so far, and not
            on how they were divided among calls: so a request has the same output whatever shares
            its batch, and whatever was guessed.

        Raises:
            HeddleError: the request must end with this error.
        """
        ...

    def rewind(self, count: int) -> bool:
        """Take back the last `count` tokens. False: it cannot, and must not be used again."""
        ...


class LogitsProcessor(Protocol):
    """Changes the logits of a sequence, by its tokens alone. One object for each request."""

    def begin(self, prompt: Sequence[int]) -> ProcessorState:
        """The state of an empty output. May be called again, if a state cannot rewind."""
        ...


class LogitEdit(NamedTuple):
    """The change that a grammar and logits processors make to the logits of one pick.

    Attributes:
        mask: the tokens that may be picked, as :meth:`GrammarState.next_mask` returns them.
        bias: float32 in the machine's order, added to the logits of the tokens from 0 on; minus
            infinity excludes a token. Empty: nothing is added.
    """

    mask: bytes = b""
    bias: bytes = b""


NO_EDIT = LogitEdit()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class TokenPieces:
    """The tokens of a vocabulary as the sampler `infill` needs them. One object for each model.

    Attributes:
        texts: the bytes of each token, empty for control tokens.
        ends: tokens that end a generation, ascending.
    """

    texts: tuple[bytes, ...]
    ends: tuple[int, ...]


class SamplerRule(Protocol):
    """A rule that an extension brings for the sampler of one sequence."""

    def apply_to(self, native: _native.SamplerParams) -> None:
        """Set the rule in the parameters of a native sampler.

        Raises:
            TypeError: the rule needs something that is not open in this process.
        """
        ...


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Sampling rules in token ids, which follow from a request's sampling parameters.

    Attributes:
        end_tokens: tokens that may not be sampled before `min_tokens`.
        bad_sequences: token sequences that may not be generated.
        breakers: sequences across which DRY's repetitions do not reach; None without DRY.
        forbidden: tokens that may never be sampled. They are not the complete vocabulary.
        grammar: the grammar of the output; None: no constraint.
        pieces: pieces of the vocabulary if the sampler `infill` runs; else None.
        extensions: rules of extensions, at most one of each class.
        processors: add their biases after those of `logit_bias` and of `extensions`.
    """

    end_tokens: tuple[int, ...] = ()
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    breakers: TokenSequences | None = None
    forbidden: tuple[int, ...] = ()
    grammar: TokenGrammar | None = None
    pieces: TokenPieces | None = None
    extensions: tuple[SamplerRule, ...] = ()
    processors: tuple[LogitsProcessor, ...] = ()

    @property
    def edits_logits(self) -> bool:
        """Whether each pick has a :class:`LogitEdit`."""
        return self.grammar is not None or bool(self.processors)

    @property
    def needs_known_output(self) -> bool:
        """Whether the host must know the output so far to sample a token.

        A step of such a sequence cannot be submitted before the step before it is collected.
        """
        return self.edits_logits or self.pieces is not None or bool(self.extensions)

    def of(self, kind: type[RuleT]) -> RuleT | None:
        """The rule of class `kind`; None: there is none."""
        return next((one for one in self.extensions if isinstance(one, kind)), None)


NO_RULES = TokenRules()

UNKNOWN = -1
"""In place of a token that the step in flight samples: the device knows it before the host."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Binds a sequence to a slot, from this step on.

    Attributes:
        slot: slot index in [0, slots).
        params: parameters of the request, with `seed` already drawn.
        prompt: prompt token ids.
        output: tokens generated so far; not empty if the sequence was preempted.
        rules: token rules of the request.
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
    """Asks for log probabilities of prompt tokens, each given all tokens before it.

    Attributes:
        first: index in the chunk of the token before `targets[0]`.
        targets: consecutive token ids of the prompt; empty if the request scores only the first
            token, which has no token before it.
        top: number of likeliest tokens to report with each.
    """

    first: int
    targets: Sequence[int]
    top: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Asks to add last hidden states, after the final norm, to those of the slot.

    Attributes:
        first: index in the chunk of the first token whose state counts. All later states count too.
        complete: whether the sequence ends with this chunk.
    """

    first: int
    complete: bool


@dataclass(slots=True, eq=False)
class WindowPages:
    """The pages that a sequence holds of a windowed group: a run of consecutive page numbers.

    Attributes:
        first: number of the first page. No later token sees positions before it.
        pages: page ids; position p lives in `pages[p // PAGE_TOKENS - first]`.
        source: page to copy to the next page before that page is computed; None if there is nothing
            to copy.
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
        tokens: token ids at positions start, start + 1, ...; at least one that is not a guess.
            `UNKNOWN` alone: the token that the step in flight samples for this slot.
        pages: page ids covering positions [0, start + len(tokens)), of the group of all positions.
        sample: whether to sample a next token from the last token's logits.
        score: log probabilities of prompt tokens to compute, or None.
        pool: hidden states to add to the slot's sum, or None.
        windows: pages of each windowed group. They cover all positions that the tokens see.
        guesses: how many of the last tokens are guesses. Only with `sample`.
        uncertain: how many of the last tokens may have to be computed again: guesses, and the token
            before them if its outcome may be :class:`Deferred`. If the step samples after the last
            token, the slot's fixed-size state holds all tokens afterwards, else all but these.
        keep_states: of how many of the last tokens the result has hidden states.
        states: (len(tokens), width) hidden states that a prediction head reads beside the tokens;
            None for other models.
    """

    slot: int
    start: int
    tokens: Sequence[int]
    pages: Sequence[int]
    sample: bool
    score: Scoring | None = None
    pool: Pool | None = None
    windows: Sequence[WindowPages] = ()
    guesses: int = 0
    uncertain: int = 0
    keep_states: int = 0
    states: States | None = None

    @property
    def known(self) -> int:
        """How many of the tokens are not guesses."""
        return len(self.tokens) - self.guesses


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copies page `source` to page `target`, so that a sequence can continue it.

    `window` is the number of the windowed group that both belong to; None: the group of all
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
        snapshots: states of slots to copy to snapshots after the chunks.
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
        slot: the sequence's slot.
        token: token id.
        logprob: natural logarithm of its probability under the raw distribution; NaN if the request
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
    """An embedding: the mean of the pooled states, or with `Pooling.NONE` each of them.

    Attributes:
        slot: the sequence's slot.
        vector: float32. The mean has the model's width, and length 1 if the parameters have
            `unit_length`. States follow one another as they are.
    """

    slot: int
    vector: array[float]


@dataclass(frozen=True, slots=True)
class Failed:
    """A failure of one sequence, which must end. The step's other sequences are not affected.

    Attributes:
        slot: the sequence's slot.
        error: the error for its caller. It says what happened and what to do.
    """

    slot: int
    error: HeddleError


@dataclass(frozen=True, slots=True)
class Deferred:
    """No token was sampled, because the mask of the sequence's grammar was late.

    A later step computes the last known token of the chunk again and samples from the same logits.

    Attributes:
        slot: the sequence's slot.
        ready: done when a later step can sample.
    """

    slot: int
    ready: Future[None]


HEAD_TOKENS = 64
"""Most tokens of a step of a prediction head that computes one sequence."""

HEAD_TOKENS_OF_SLOT = 4
"""Most tokens of each sequence in a step of a prediction head that computes several."""


def most_rows(slots: int) -> int:
    """Most tokens of a step, guesses included, after which it may sample."""
    return max(slots, 32)


Outcome: TypeAlias = Sampled | Scored | Pooled | Failed | Deferred


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of a step's chunks.

    Attributes:
        sampled: entries for each chunk with `sample`, in chunk order: one, and one more for each
            guess that its token confirmed. Only the last entry of a chunk may be a failure.
        scored: an entry for each chunk with `score`, in chunk order.
        pooled: an entry for each chunk whose `pool` is complete, in chunk order.
        states: (keep_states, width) hidden states after the last norm, for each chunk with
            `keep_states`, in chunk order.
    """

    sampled: tuple[Sampled | Failed | Deferred, ...]
    scored: tuple[Scored | Failed, ...] = ()
    pooled: tuple[Pooled | Failed, ...] = ()
    states: tuple[States, ...] = ()


@dataclass(frozen=True, slots=True)
class LogitsSummary:
    """Figures of logits, or of hidden states, after a failure.

    Attributes:
        length: number of values.
        nan, inf, negative_inf: how many of them are NaN, positive infinity, negative infinity.
        negative_rows: number of rows that have only values below zero.
        minimum, maximum, mean: of the finite values; None if there are none.
    """

    length: int
    nan: int
    inf: int
    negative_inf: int
    negative_rows: int
    minimum: float | None
    maximum: float | None
    mean: float | None

    def __str__(self) -> str:
        """The figures in words."""
        finite = "none is finite"
        if self.minimum is not None:
            finite = f"the finite ones are {self.minimum:.6g} to {self.maximum:.6g}"
        return (
            f"{self.length} values: {self.nan} NaN, {self.inf} inf, {self.negative_inf} -inf;"
            f" {finite}; rows with only negative values: {self.negative_rows}"
        )


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a device's memory: those that may still be allocated, and all."""

    free: int
    total: int


class PageMemory(Protocol):
    """State as bytes. Pages and snapshots can be read and written back, bit for bit."""

    def read_page(self, page: int, windows: Sequence[int] = ()) -> memoryview:
        """A copy of a page, followed by a page of each windowed group.

        Not to be called while a step writes to one of the pages.
        """
        ...

    def write_page(self, page: int, content: memoryview, windows: Sequence[int] = ()) -> None:
        """Write what `read_page` returned. Not to be called while a step uses one of the pages."""
        ...

    def read_snapshot(self, snapshot: int) -> memoryview:
        """A copy of a snapshot of fixed-size state."""
        ...

    def write_snapshot(self, snapshot: int, content: memoryview) -> None:
        """Write what `read_snapshot` returned to a snapshot."""
        ...


class Executor(PageMemory, Protocol):
    """Runs plans, one at a time: `submit` starts a step, `collect` returns its result.

    Between the two calls the device computes, and the caller does other work. An executor holds at
    most one submitted step, and one more if it `runs_ahead`: after each `submit` that returns, the
    caller calls `collect`, and reads or writes no page in between. If only a step that ran ahead is
    in flight, the caller may read pages that it does not write to, and waits for it. Results come
    in the order of the steps. One thread calls all methods, unless they say otherwise.

    The engine, the benchmarks and the server use only what this protocol declares.
    """

    @property
    def shape(self) -> ModelShape:
        """The model's sizes. `context` is the limit that this executor serves."""
        ...

    @property
    def memory(self) -> StateMemory:
        """Numbers of pages of each group, and of snapshots. Ids begin at 0."""
        ...

    @property
    def page_format(self) -> str:
        """Identifies everything that decides the bytes of a page, except tokens and model file.

        Executors with equal formats compute equal pages from equal files, bit for bit.
        """
        ...

    @property
    def summary(self) -> str:
        """The device and the memory that the executor holds, in a few words for people."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of the weights, and of all pages and snapshots."""
        ...

    @property
    def device_memory(self) -> DeviceMemory | None:
        """The memory of the device, of rank 0's if there are several; None if it is not known.

        The figures may be those of a second before the last step. Any thread may ask.
        """
        ...

    @property
    def work(self) -> ModelWork:
        """The work of its steps."""
        ...

    @property
    def head(self) -> Executor | None:
        """The executor of the model's own prediction head, if it has one and it is loaded.

        Its chunks have `states`: at position i it reads token i + 1 of a sequence, and the model's
        hidden state at position i. It samples token i + 2. This executor closes it.
        """
        ...

    @property
    def runs_ahead(self) -> bool:
        """Whether it takes a step before the result of the step before is collected.

        Chunks of such a step may have `UNKNOWN` tokens, of requests whose parameters and rules
        have no `needs_known_output`; penalties, DRY and bad sequences read them nevertheless.
        `submit` then keeps nothing of the plan that the caller may change.
        """
        ...

    def measure_limits(self) -> Limits:
        """Measure the peak rates of the hardware. Takes seconds. No step may run meanwhile."""
        ...

    @property
    def compute_seconds(self) -> float:
        """Total wall time of steps, as if each had been collected as soon as it was submitted.

        Any thread may call this.
        """
        ...

    def submit(self, plan: StepPlan) -> None:
        """Start a step: copy pages, compute the chunks, write their KV, make the plan's results.

        The plan must not change before `collect` has returned. After that the executor keeps no
        reference to it. If a binding's sampler cannot be made, only its sequence fails: its outcome
        is a :class:`Failed` entry.

        Raises:
            EngineFailedError: the executor refuses the plan. The caller must not call `collect`.
                The targets of the plan's copies are undefined.
        """
        ...

    def collect(self) -> StepResult:
        """Wait for the submitted step and return its result. The calling thread may compute.

        If only one sequence fails, the result has a :class:`Failed` entry for it.

        Raises:
            EngineFailedError: the complete step failed. Its copies and the KV it wrote are
                undefined.
            StepMemoryError: the same, for want of memory. Later steps may succeed if each of their
                slots is bound again.
            StepAbandonedError: `abandon` was called. Copies and KV are undefined too.
        """
        ...

    def watch(self, failed: Callable[[str], None]) -> None:
        """Call `failed` with the reason, once, if the device fails, also while no step runs.

        Any thread may make that call, also this one.
        """
        ...

    def logits_summary(self) -> LogitsSummary | None:
        """Figures of the logits that were computed last; None if there are none.

        The engine calls this after a failed step. If the step failed before its logits, they may
        be logits of the step before.
        """
        ...

    def abandon(self) -> None:
        """End the step in flight soon, without a result, and all later steps at once.

        This cannot be undone. The engine calls it when it stops, so that it need not wait for a
        step that takes a minute. Any thread may call this.
        """
        ...

    def close(self) -> None:
        """Free threads and memory. `shape`, sizes and totals stay readable. Idempotent.

        The caller must not collect a submitted step after this.
        """
        ...


@runtime_checkable
class WarmingExecutor(Protocol):
    """An executor with work to do before its first steps, which would be slow otherwise."""

    @property
    def warm_ups(self) -> int:
        """How many parts the work has; 0: none."""
        ...

    def warm_up(self, done: Callable[[int], None]) -> None:
        """Do the work, once, before the first step. `done` gets the number of parts so far."""
        ...
