"""The scheduler's data of one choice: its token ids, how many are computed, its slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from heddle.cache.page_tables import PageTable
from heddle.embedding import EVERY_STATE, EmbeddingParams
from heddle.step import Chunk, Pool, Scoring
from heddle.token_rules import NO_RULES

if TYPE_CHECKING:
    from collections.abc import Hashable
    from collections.abc import Sequence as Many
    from concurrent.futures import Future

    from heddle.cache.disk_pages import Restore
    from heddle.embedding import Pooling
    from heddle.pictures import Pictures
    from heddle.sampling_params import SamplingParams
    from heddle.scheduler.guessing import Guessing
    from heddle.step import AdapterUse
    from heddle.token_rules import TokenRules


class SlotState(Enum):
    """The states of a slot."""

    FREE = "free"
    WAITING_FOR_PREFIX = "waiting_for_prefix"
    WAITING_FOR_PICTURE = "waiting_for_picture"
    PREFILLING = "prefilling"
    GENERATING = "generating"
    PAUSED = "paused"
    DRAINING = "draining"


@dataclass(slots=True, eq=False)
class Account:
    """One client in one class.

    Attributes:
        service: cost of the tokens that it was served, in virtual time.
        active: its sequences that have work: they have not ended and are not paused.
        waiting: its sequences without a slot, in order of arrival.
    """

    service: float
    active: int = 0
    waiting: list[Sequence] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and its output. After `Scheduler.add`, only the scheduler writes to it.

    Attributes:
        id: unique among the sequences of a scheduler.
        params: parameters of the request, with `seed` drawn.
        tokens: prompt, then output; grows by one per sampled token.
        prompt_tokens: how many of `tokens` are the prompt.
        stop_tokens: token ids that end it.
        rules: token rules, for the executor.
        limit: most `tokens` that it may have. `Scheduler.add` sets it. If the limit is the prompt's
            length, the sequence ends when the prompt is computed.
        computed: leading tokens whose KV is in the pages of `table`.
        again: how many of them the next chunk computes again. The slot's fixed-size state does not
            hold them: they are the right guesses of a step that also had a wrong one.
        slot: index of its slot; -1 while it waits.
        table: its pages; empty while it waits.
        bound: whether the executor has a binding of `slot` to it.
        ended: finished or cancelled. If it still holds a slot, that slot is draining.
        turn: order in which sequences take turns; the lowest is next.
        leader: older sequence that computes more of this sequence's tokens than are cached. This
            sequence waits as long as it has a leader.
        shared_tokens: number of leading tokens that it shares with its leader.
        restore: pages of its tokens that the disk tier is reading. This sequence waits as long as
            it has a restore, and `computed` grows with the pages read.
        awaited: future of a deferred token; it is done when the token can be sampled. None if no
            token is deferred.
        scored: number of leading prompt tokens whose logprobs the scheduler has reported.
        cached_tokens: length of the prefix hit when it first started; None before.
        mu: mirostat's bound after its newest token, for the next binding.
        driven: whether its caller asks for every token, and decides when it ends.
        paused: its caller has not asked for another token yet. It computes nothing, and keeps its
            slot and pages unless others need them.
        pooling: how its embedding is pooled; None if no embedding is wanted.
        prompt_logprobs: how many alternatives to report beside each token of the prompt; None if
            the prompt is not scored.
        most_output: most tokens that it may generate; None if its request sets no limit.
        client: identifies the client that sent its request; None: unknown.
        priority: its class; the lowest number is first.
        wanted_slot: the slot that it gets if this is free; -1: any slot.
        account: the account of its client in its class. The queue sets it.
        arrival: its place among the waiting sequences of its client.
        rank: its place among the running sequences of its class: when it got its slot.
        total_at_start: number of its tokens when it got its slot.
        guessing: its drafters and what is known of their guesses; None before the first guess.
        known: the first tokens of its output, if another engine has computed them before. They are
            guesses.
        adapters: adapters that change its forward passes.
        scope: only sequences of one scope share prefixes.
        pictures: the pictures of its prompt; None: it has none.
        keys: `tokens` as the prefix tree has them, where tokens of pictures have the keys of these.
    """

    id: int
    params: SamplingParams | EmbeddingParams
    tokens: list[int]
    prompt_tokens: int
    stop_tokens: frozenset[int]
    rules: TokenRules = NO_RULES
    limit: int = 0
    computed: int = 0
    again: int = 0
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
    client: Hashable | None = None
    arrival: int = 0
    rank: int = 0
    total_at_start: int = 0
    guessing: Guessing | None = field(default=None, repr=False)
    known: Many[int] = ()
    adapters: Many[AdapterUse] = ()
    scope: str | None = None
    pictures: Pictures | None = field(default=None, repr=False)
    keys: list[int] = field(init=False, repr=False)
    priority: int = field(init=False)
    wanted_slot: int = field(init=False)
    account: Account = field(init=False, repr=False)
    pooling: Pooling | None = field(init=False)
    prompt_logprobs: int | None = field(init=False)
    most_output: int | None = field(init=False)

    def __post_init__(self) -> None:
        params = self.params
        self.priority = params.priority
        self.scope = self.scope or params.cache_salt
        self.keys = self.tokens if self.pictures is None else self.pictures.keys(self.tokens)
        if isinstance(params, EmbeddingParams):
            self.pooling, self.prompt_logprobs, self.most_output = params.pooling, None, 0
            self.wanted_slot = -1
        else:
            self.pooling, self.prompt_logprobs = None, params.prompt_logprobs
            self.most_output, self.wanted_slot = params.max_tokens, params.id_slot

    def afresh(self, sequence_id: int, output: int, scored: int, mu: float | None) -> Sequence:
        """The prompt and the first `output` tokens after it for another scheduler, not computed.

        `scored` tokens of the prompt need no score. `mu` is mirostat's bound after the output.
        """
        one = Sequence(
            sequence_id,
            self.params,
            self.tokens[: self.prompt_tokens + output],
            self.prompt_tokens,
            self.stop_tokens,
            self.rules,
            self.limit,
            scored=scored,
            cached_tokens=self.cached_tokens,
            mu=mu,
            client=self.client,
            known=self.known,
            scope=self.scope,
            pictures=self.pictures,
        )
        one.most_output = self.most_output
        return one

    @property
    def reads_prompt(self) -> bool:
        """Whether steps must compute all positions of the prompt, so that prefix hits do not
        help."""
        return self.prompt_logprobs is not None or self.pooling in EVERY_STATE

    @property
    def first_needed(self) -> int:
        """The first position that a step must compute, because it reads logits or states there.

        A step samples the next token at the last position. It reads the logprob of a prompt token
        at the position before that token.
        """
        if self.pooling in EVERY_STATE:
            return 0
        return max(0, self.scored - 1) if self.scores else len(self.tokens) - 1

    @property
    def scores(self) -> bool:
        """Whether logprobs of its prompt are not all reported yet."""
        return self.prompt_logprobs is not None and self.scored < self.prompt_tokens

    def chunk(self, count: int, guesses: Many[int] = ()) -> Chunk:
        """The chunk of its next `count` tokens, and what the step reads from them.

        Guesses follow only the last of its tokens.
        """
        start = self.computed - self.again
        end = self.computed + count
        sample = end == len(self.tokens) < self.limit
        may_wait = sample and self.rules.edits_logits
        pictures = self.pictures
        return Chunk(
            self.slot,
            start,
            [*self.tokens[start:end], *guesses],
            self.table.pages,
            sample=sample,
            score=None if self.prompt_logprobs is None else self._scoring(start, end),
            pool=self._pool(start, end) if self.pooling is not None else None,
            windows=self.table.windows,
            guesses=len(guesses),
            uncertain=len(guesses) + may_wait,
            adapters=self.adapters,
            sight=None if pictures is None else pictures.sight(start, end + len(guesses)),
        )

    def end(self) -> None:
        """Note that it has ended. Its drafters are of no more use; a caller may keep the rest."""
        self.ended = True
        if self.guessing is not None:
            self.guessing.draftings.clear()

    def _scoring(self, start: int, end: int) -> Scoring | None:
        """The prompt tokens whose logprobs the positions [start, end) give; None if none."""
        first, until = max(1, self.scored), min(end + 1, self.prompt_tokens)
        if until <= self.scored or not self.scores:
            return None
        assert self.prompt_logprobs is not None
        return Scoring(first - 1 - start, self.tokens[first:until], self.prompt_logprobs)

    def _pool(self, start: int, end: int) -> Pool | None:
        """The hidden states at positions [start, end) that its embedding uses; None if none."""
        complete = end == len(self.tokens)
        if self.pooling in EVERY_STATE:
            return Pool(0, complete)
        return Pool(end - 1 - start, complete) if complete else None

    @property
    def total(self) -> int:
        """Number of its tokens, prompt and output."""
        return len(self.tokens)

    @property
    def remaining(self) -> int:
        """Number of tokens to compute before the next one can be sampled."""
        return len(self.tokens) - self.computed

    @property
    def output_tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def generating(self) -> bool:
        """Whether it decodes: at most its newest token, a generated token, is not computed yet."""
        total = len(self.tokens)
        return total - self.computed <= 1 and total > self.prompt_tokens

    @property
    def least_chunk(self) -> int:
        """The most tokens that one of its chunks has to hold."""
        return 1 if self.pictures is None else self.pictures.least_chunk

    @property
    def wants_looks(self) -> bool:
        """Whether it needs rows of pictures that the eyes have not made yet."""
        return self.pictures is not None and bool(self.pictures.wanted(self.computed))

    @property
    def waits(self) -> bool:
        """Whether it computes nothing now, because it waits for its caller, a mask, rows of a
        picture, leader or disk."""
        if self.paused or self.awaited is not None or self.wants_looks:
            return True
        return self.leader is not None or self.restore is not None

    @property
    def state(self) -> SlotState:
        """The state of its slot."""
        if self.ended:
            return SlotState.DRAINING
        if self.paused:
            return SlotState.PAUSED
        if self.waits and self.awaited is None:
            has_prefix = self.leader is None and self.restore is None
            return SlotState.WAITING_FOR_PICTURE if has_prefix else SlotState.WAITING_FOR_PREFIX
        return SlotState.GENERATING if self.generating else SlotState.PREFILLING
