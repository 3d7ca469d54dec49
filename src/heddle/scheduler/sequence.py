"""One request as the scheduler sees it: token ids, two counts and a place."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from heddle.cache.manager import PageTable
from heddle.embedding import EmbeddingParams, Pooling
from heddle.step import NO_RULES, Chunk, Pool, Scoring

if TYPE_CHECKING:
    from concurrent.futures import Future

    from heddle.cache.manager import Restore
    from heddle.step import TokenRules
    from heddle.types import SamplingParams


class SlotState(Enum):
    """What a slot is doing."""

    FREE = "free"
    WAITING_FOR_PREFIX = "waiting_for_prefix"
    PREFILLING = "prefilling"
    GENERATING = "generating"
    PAUSED = "paused"
    DRAINING = "draining"


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and what has been generated after it. Once it is accepted only the scheduler writes
    to it.

    Attributes:
        id: unique among the sequences of a scheduler.
        params: what is asked for, with `seed` drawn.
        tokens: prompt, then output; grows by one per sampled token.
        prompt_tokens: how many of `tokens` are the prompt.
        stop_tokens: token ids that end it.
        rules: of its sampling, for the executor.
        limit: most `tokens` it may reach; set when the scheduler accepts it. Where that is the
            prompt, it ends when all of it is computed.
        computed: leading tokens whose KV is in the pages of `table`.
        slot: index of its slot; -1 while it waits.
        table: its pages; empty while it waits.
        bound: the executor knows that `slot` holds it.
        ended: finished or cancelled; a slot held nevertheless is draining.
        turn: who has the lowest is next when decodes must take turns.
        leader: an older sequence that computes more of this one's tokens than are cached. While
            there is one, this sequence waits for it.
        shared_tokens: leading tokens that it has in common with its leader.
        restore: pages of its tokens that are being read from disk. While there is one, this
            sequence waits for it, and `computed` goes on by what was read.
        awaited: done when its next token can be sampled, which was deferred; None before and after.
        scored: leading tokens of the prompt whose log probabilities have been told.
        cached_tokens: tokens that were found in the prefix cache when it first began; None before.
        mu: what the executor wants back with the next binding.
        driven: its caller asks for every token, and decides what ends it.
        paused: it has the token that was asked for, and computes nothing until the next is. It
            keeps slot and pages unless others need them.
        pooling: what its embedding is made of; None where none is wanted.
        prompt_logprobs: how many alternatives to report beside each token of the prompt; None if
            the prompt is not scored.
        most_output: tokens that it may generate; None without a limit of its own.
    """

    id: int
    params: SamplingParams | EmbeddingParams
    tokens: list[int]
    prompt_tokens: int
    stop_tokens: frozenset[int]
    rules: TokenRules = NO_RULES
    limit: int = 0
    computed: int = 0
    slot: int = -1
    table: PageTable = field(default_factory=PageTable, repr=False)
    bound: bool = False
    ended: bool = False
    turn: int = 0
    leader: Sequence | None = field(default=None, repr=False)
    shared_tokens: int = 0
    restore: Restore | None = field(default=None, repr=False)
    awaited: Future[None] | None = field(default=None, repr=False)
    scored: int = 0
    cached_tokens: int | None = None
    mu: float | None = None
    driven: bool = False
    paused: bool = False
    pooling: Pooling | None = field(init=False)
    prompt_logprobs: int | None = field(init=False)
    most_output: int | None = field(init=False)

    def __post_init__(self) -> None:
        params = self.params
        if isinstance(params, EmbeddingParams):
            self.pooling, self.prompt_logprobs, self.most_output = params.pooling, None, 0
        else:
            self.pooling, self.prompt_logprobs = None, params.prompt_logprobs
            self.most_output = params.max_tokens

    @property
    def reads_prompt(self) -> bool:
        """Whether something is wanted of all positions of the prompt, so that no hit is of use."""
        return self.prompt_logprobs is not None or self.pooling is Pooling.MEAN

    @property
    def first_needed(self) -> int:
        """The first position that must be computed, because something will be read from it.

        The next token is read from the last one, and the log probability of a prompt's token from
        the one before it.
        """
        if self.pooling is Pooling.MEAN:
            return 0
        return max(0, self.scored - 1) if self.scores else len(self.tokens) - 1

    @property
    def scores(self) -> bool:
        """Whether log probabilities of its prompt are still to be told."""
        return self.prompt_logprobs is not None and self.scored < self.prompt_tokens

    def chunk(self, count: int) -> Chunk:
        """The next so many of its tokens, and what is read from them."""
        start = self.computed
        end = start + count
        return Chunk(
            self.slot,
            start,
            self.tokens[start:end],
            self.table.pages,
            sample=end == len(self.tokens) < self.limit,
            score=self._scoring(start, end) if self.scores else None,
            pool=self._pool(start, end) if self.pooling is not None else None,
            windows=self.table.windows,
        )

    def _scoring(self, start: int, end: int) -> Scoring | None:
        """What can be told of the prompt's tokens once positions [start, end) are computed."""
        first, until = max(1, self.scored), min(end + 1, self.prompt_tokens)
        if until <= self.scored:
            return None
        assert self.prompt_logprobs is not None
        return Scoring(first - 1 - start, self.tokens[first:until], self.prompt_logprobs)

    def _pool(self, start: int, end: int) -> Pool | None:
        """Which states of positions [start, end) are part of its embedding."""
        complete = end == len(self.tokens)
        if self.pooling is Pooling.MEAN:
            return Pool(0, complete)
        return Pool(end - 1 - start, complete) if complete else None

    @property
    def total(self) -> int:
        """Tokens so far, prompt included."""
        return len(self.tokens)

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.tokens) - self.computed

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def generating(self) -> bool:
        """Whether the next step needs no more than its newest token, a generated one."""
        total = len(self.tokens)
        return total - self.computed <= 1 and total > self.prompt_tokens

    @property
    def waits(self) -> bool:
        """Whether what it needs next is coming from elsewhere, so that it computes nothing."""
        if self.paused or self.awaited is not None:
            return True
        return self.leader is not None or self.restore is not None

    @property
    def state(self) -> SlotState:
        """State of its slot."""
        if self.ended:
            return SlotState.DRAINING
        if self.paused:
            return SlotState.PAUSED
        if self.waits and self.awaited is None:
            return SlotState.WAITING_FOR_PREFIX
        return SlotState.GENERATING if self.generating else SlotState.PREFILLING
