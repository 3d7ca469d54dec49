"""Plans and results of steps, between scheduler and executor: integers in, sampled tokens out.

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
the model reads them (:attr:`heddle.executor.Executor.head`).

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
from typing import TYPE_CHECKING, Any, TypeAlias

from heddle.token_rules import NO_RULES, TokenRules

if TYPE_CHECKING:
    from array import array
    from concurrent.futures import Future

    import numpy as np
    from numpy.typing import NDArray

    from heddle.embedding import EmbeddingParams
    from heddle.errors import HeddleError
    from heddle.outputs import PromptLogprob
    from heddle.sampling_params import SamplingParams

    States: TypeAlias = NDArray[np.float32]


UNKNOWN = -1
"""In place of a token that the step in flight samples: the device knows it before the host."""


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """An adapter that changes a sequence's forward passes, and the factor on its changes.

    Attributes:
        adapter: what :meth:`heddle.executors.adapting.AdaptingExecutor.make_adapter` made.
        factor: 1 for the changes as they are.
    """

    adapter: Any
    factor: float = 1.0


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
class Sight:
    """What a chunk reads of pictures: its own, or those before it.

    Attributes:
        places: (tokens, axes) int32, what rotations of several axes turn by; None: the positions.
        runs: (tokens, kinds, 2) int32: the positions [begin, end) of the run that a token is in,
            for each kind of runs. They begin and end in ascending order, and end within the chunk.
            None: each token is a run.
        rows: (first token, rows) of each picture: float32 (n, columns) for as many tokens.
    """

    places: NDArray[np.int32] | None = None
    runs: NDArray[np.int32] | None = None
    rows: Sequence[tuple[int, States]] = ()

    def of(self, index: int) -> Sight:
        """That of one token alone, which sees no later ones."""
        places = None if self.places is None else self.places[index : index + 1]
        parts = ((index - first, values) for first, values in self.rows)
        rows = [(0, values[at : at + 1]) for at, values in parts if 0 <= at < len(values)]
        return Sight(places, None, rows)


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
        adapters: adapters of the sequence; their changes are added in this order.
        sight: what it reads of pictures; None: nothing, and the places are the positions.
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
    adapters: Sequence[AdapterUse] = ()
    sight: Sight | None = None

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
