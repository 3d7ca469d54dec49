"""Decides which tokens each step computes: admission, prefixes, budget, preemption, finish.

The life of a sequence::

    add -> waiting -> running (holds a slot) -> ended
               ^         |
               +---------+ preempted: gives up slot and pages, keeps its tokens

The queue orders waiting sequences by priority, then by the slots and the service of their clients,
then by arrival (`queue.py`). The first of them takes the next free slot, and no other passes it.
Three rules say which running sequence gives way to it, if any (`preemption.py`).

Running sequences are ordered by priority, then by the step in which they got their slots. If output
lacks a page, a sequence of the last class is preempted, never the first in order. So the first in
order always advances, and ends; then the next one is first. With one client and one priority, both
orders are the order of arrival: every running sequence is older than every waiting one, the
youngest is preempted first, and the oldest always advances.

No sequence of a class starves while the class is served: the first in order ends, so slots become
free, and the queue passes over a sequence only finitely often. A class starves if classes with
lower numbers take all slots; that is what a priority asks for.

A preempted sequence keeps its tokens and its arrival. Its results do not change, because they
depend on its tokens only.

A driven sequence pauses after each token until its caller resumes it. The scheduler preempts paused
sequences before all others, the longest idle first, if another sequence lacks a slot or a page.
Their pages stay in the prefix cache as long as there is memory. They queue again when they are
resumed.

There is no prefill phase and no decode phase. A sequence needs the tokens from `computed` to
`total` computed. When `computed` reaches `total`, the step samples the next token, or the sequence
ends if it has reached its limit. A sequence starts at the end of its prefix hit. If an older
sequence is computing more of its tokens, it follows that sequence first. If pages of its prefix are
on disk, `computed` grows with the pages read, and others may follow it. Steps read prompt logprobs
and embeddings from the chunks of the prompt, so they compute these tokens even if the cache has
them.

The scheduler publishes computed tokens before it looks up a prefix, and when a sequence gives up
its slot. So a step that only decodes spends no time on the cache.

A step may be planned while another one is in flight (`schedule_ahead`, `ahead.py`). Its sequences
go on with tokens that are not known yet. A sequence that has ended meanwhile keeps its slot
until that step, too, has ended.
"""

from __future__ import annotations

import math
from bisect import insort
from itertools import accumulate
from typing import TYPE_CHECKING

from heddle.outputs import FinishReason
from heddle.scheduler.ahead import chunk_ahead, may_run_ahead
from heddle.scheduler.following import find_leader, is_wait_over
from heddle.scheduler.outcomes import TokenEvent, outcomes_of
from heddle.scheduler.planning import PlanBuilder, next_snapshot
from heddle.scheduler.preemption import gives_pages, gives_way, longest_idle
from heddle.scheduler.queue import OUTPUT_COST, Queue
from heddle.scheduler.room import Room
from heddle.scheduler.waits import WaitReason, wait_of_running
from heddle.state import PAGE_TOKENS
from heddle.step import (
    UNKNOWN,
    Binding,
    Deferred,
    Failed,
    Pooled,
    Sampled,
    Scored,
    StepPlan,
    most_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Many

    from heddle.cache.manager import CacheManager, PageCounts, Restore
    from heddle.scheduler.pace import Pace
    from heddle.scheduler.sequence import Sequence
    from heddle.scheduler.speculation import Speculator
    from heddle.step import Chunk, Outcome, StepResult

    Carried = list[tuple[Sequence, Chunk]]


_LOADS = 4
"""Most restored pages to copy before a step while streams run. A copy takes at most 0.2 ms."""


class Scheduler:
    """Slots and the queue before them. Not thread-safe.

    Call `schedule` and `update` alternately, and perhaps `schedule_ahead` before an `update`: then
    another `update` follows, instead of `schedule`.

    Args:
        slots: most sequences that run at once.
        batch_tokens: most tokens in one step.
        queue: most sequences that wait when all slots are taken; see `Room`.
        cache: provides pages and prefixes.
        context: most tokens of one sequence.
        pace: limits the prompt tokens of steps that also decode; None: no limit.
        score_cost: extra cost of scoring a token, where computing a token costs 1.
        speculator: guesses tokens; None: no guesses.
        whole_prompts: one step computes all tokens of a sequence. `batch_tokens` must be at least
            `context`, and the cache must give no prefix hits.

    Attributes:
        preemptions: how often a sequence was preempted.
        computed_prompt_tokens: prompt tokens that steps have computed, including tokens that
            preemption dropped.
    """

    def __init__(
        self,
        slots: int,
        batch_tokens: int,
        queue: int,
        cache: CacheManager,
        context: int,
        pace: Pace | None = None,
        score_cost: float = 0.0,
        *,
        speculator: Speculator | None = None,
        whole_prompts: bool = False,
    ) -> None:
        assert not whole_prompts or batch_tokens >= context, "every sequence must fit in a step"
        self._batch_tokens = batch_tokens
        self._pace = pace
        self._score_cost = score_cost
        self._whole_prompts = whole_prompts
        self._room = Room(slots, queue, context, cache.pages * PAGE_TOKENS)
        self._cache = cache
        self._snapshot_every = cache.snapshot_tokens
        self._speculator = speculator
        self._most_rows = min(most_rows(slots), batch_tokens)
        self._slots: list[Sequence | None] = [None] * slots
        self._live: dict[int, Sequence] = {}  # not ended
        self._queue = Queue()
        self._running: list[Sequence] = []  # in order, including draining sequences
        self._in_flight: Carried = []
        self._ahead: Carried = []  # of the step after the one in flight
        self._turn = 0
        self._ranks = 0
        self.preemptions = 0
        self.computed_prompt_tokens = 0

    @property
    def busy(self) -> bool:
        """Whether a sequence has work: it has not ended and is not paused."""
        return self._queue.active > 0

    @property
    def waiting(self) -> int:
        """How many sequences wait for a slot."""
        return len(self._queue)

    @property
    def slots(self) -> tuple[Sequence | None, ...]:
        """The sequence that holds each slot; None if the slot is free."""
        return tuple(self._slots)

    def wait_reason(self, sequence: Sequence) -> WaitReason:
        """Why a sequence that has not ended is not part of the step."""
        if sequence.slot >= 0:
            return wait_of_running(sequence)
        return WaitReason.PAGES if self._slot_is_free else WaitReason.SLOT

    # --- add, cancel, resume ---------------------------------------------------------------------

    def add(self, *sequences: Sequence) -> None:
        """Queue the sequences, all or none, and set their `limit`.

        The limit is the prompt and `max_tokens`, bounded by the context and the KV cache.

        Raises:
            ContextLengthError: a prompt leaves no room for the output, even in an empty cache.
            OverloadedError: the queue is full.
            InvalidRequestError: there are more sequences than slots and queue together hold.
        """
        self._room.check(sequences, self._queue, self._live.values())
        for sequence in sequences:
            sequence.limit = self._room.limit_of(sequence)
            self._live[sequence.id] = sequence
            self._queue.enter(sequence)
            self._queue.arrive(sequence)

    def check_length(self, tokens: int, *, output: bool = True) -> None:
        """See `Room.check_length`. Any thread may call this."""
        self._room.check_length(tokens, output=output)

    def seconds_until(self, places: int) -> float:
        """Estimated time, in seconds, until `places` sequences have ended."""
        return self._room.seconds_until(places, self._live.values())

    def cancel(self, sequence_id: int) -> bool:
        """End a sequence early. Return False if it has ended already.

        No later event names the sequence. Its slot is free at once, or after `update` if a step in
        flight computes its tokens, because that step writes to its pages.
        """
        sequence = self._live.pop(sequence_id, None)
        if sequence is None:
            return False
        sequence.end()
        if not sequence.paused:
            if sequence.slot < 0:
                self._queue.remove(sequence)
            self._queue.leave(sequence)
        if sequence.slot >= 0 and not self._is_in_flight(sequence):
            self._release(sequence)
        return True

    def resume(self, sequence: Sequence) -> None:
        """Let a paused sequence compute its next token. No effect if it has ended.

        The sequence must have fewer tokens than its `limit`.
        """
        if sequence.ended or not sequence.paused:
            return
        sequence.paused = False
        self._queue.enter(sequence)
        if sequence.slot < 0:
            self._queue.arrive(sequence)

    def cancel_all(self) -> None:
        """End every sequence early and publish its computed tokens. Call it between steps."""
        for sequence_id in list(self._live):
            self.cancel(sequence_id)

    # --- one step --------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Plan the next step.

        The plan has a chunk if `busy`, unless all running sequences wait for the disk or for a
        mask.
        """
        self._cache.tick()
        for sequence in self._running:
            if sequence.awaited is not None and sequence.awaited.done():
                sequence.awaited = None
        self._load_restored()
        self._resume_followers()
        self._admit()
        shares = self._assign_tokens()
        while not self._grow_tables(shares):
            # The loop ends when only the first sequence runs: its pages always fit.
            self._preempt(gives_pages(self._running))
            shares = self._assign_tokens()
        guesses = self._guess(shares) if self._speculator is not None else {}
        builder, every = PlanBuilder(self._cache), self._snapshot_every
        chunks, in_flight = builder.chunks, self._in_flight
        for sequence, count in shares:
            if not sequence.bound:
                builder.bind(sequence, self._bind(sequence))
            if sequence.table.source is not None:
                builder.copy_pages(sequence)
            chunk = sequence.chunk(count, guesses.get(sequence.id, ()))
            if every and sequence.computed + count == next_snapshot(sequence, every):
                builder.snapshot(sequence)
            chunks.append(chunk)
            in_flight.append((sequence, chunk))
            self._end_turn(sequence)
        return builder.plan()

    def schedule_ahead(self) -> StepPlan | None:
        """Plan the step after the one in flight, before the tokens of that one are known.

        Returns None if the next step may depend on them; then call `update` first. It may if a
        request could take a slot, if a sequence waits or computes its prompt, if guesses would pay,
        or if the host needs a token.
        """
        head = self._queue.head(self._running)
        if self._ahead or (head and (self._slot_is_free or self._gives_way(head))):
            return None
        idle = [one for one in self._running if not (one.ended or one.paused)]
        carried = [(one, chunk) for one, chunk in self._in_flight if not one.ended]
        if len(idle) > len(carried) or not all(may_run_ahead(*both) for both in carried):
            return None
        decoding = [sequence for sequence, _ in carried if sequence.generating]
        if self._speculator is not None and self._speculator.guess(decoding, self._most_rows):
            return None
        going = [both for both in carried if both[0].total + 1 < both[0].limit]
        every, chunks = self._snapshot_every, []
        for sequence, _ in going:
            chunk = chunk_ahead(sequence, self._cache)
            if chunk is None or (every and (sequence.total + 1) % every == 0):
                return None
            chunks.append(chunk)
        self._ahead = [
            (sequence, chunk) for (sequence, _), chunk in zip(going, chunks, strict=True)
        ]
        for sequence, _ in going:
            self._end_turn(sequence)
        return StepPlan((), tuple(chunks)) if chunks else None

    def update(self, result: StepResult, seconds: float | None = None) -> list[TokenEvent]:
        """Apply the result of the step in flight. Returns events of sequences that had not ended.

        The step that was planned ahead, if there is one, is then the one in flight.

        Args:
            result: result of the oldest planned step.
            seconds: how long the step took, for the pace.

        Raises:
            ValueError: the result does not answer the plan.
        """
        carried, self._in_flight, self._ahead = self._in_flight, self._ahead, []
        outcomes = outcomes_of(carried, result)
        guessed = any(chunk.guesses for _, chunk in carried)
        wrong = self._wrong_guesses(carried, outcomes) if guessed else {}
        counts = [
            (sequence, len(chunk.tokens) - sequence.again - wrong.get(sequence.id, 0))
            for sequence, chunk in carried
            # Else the sequence ended before the token of its chunk was known.
            if chunk.tokens[0] != UNKNOWN or sequence.total > chunk.start
        ]
        if seconds is not None:
            self._measure(carried, seconds)
            self._room.rate.observe(sum(count for _, count in counts), seconds)
        if self._queue.shared:
            self._queue.serve(
                (one, OUTPUT_COST * count if one.generating else count) for one, count in counts
            )
        if self._speculator is not None:
            self._learn(carried, outcomes)
        for sequence, count in counts:
            self._count_computed(sequence, count)
            sequence.again = 0
        events = []
        for sequence, outcome in outcomes:
            if isinstance(outcome, Failed):
                self._cache.unpublish(sequence.table)
            if isinstance(outcome, Deferred):
                sequence.computed -= 1  # a later step computes it again, with the same bits
                sequence.awaited = outcome.ready
            elif not sequence.ended:
                events.append(TokenEvent(sequence, outcome, self._apply(sequence, outcome)))
        for sequence, chunk in carried:
            if sequence.id in wrong:
                # Right guesses after the token that ended the sequence do not count.
                sequence.computed = min(sequence.computed, sequence.total - 1)
                self._cache.shrink(sequence.table, sequence.total)
            if self._snapshot_every and wrong.get(sequence.id):
                certain = len(chunk.tokens) - chunk.uncertain
                sequence.again = sequence.computed - chunk.start - certain
            if not sequence.ended and sequence.computed == sequence.limit:
                self._end(sequence)
                events.append(TokenEvent(sequence, None, FinishReason.LENGTH))
        self._release_ended(carried)
        return events

    def abandon(self) -> list[Sequence]:
        """End the sequences of the failed step. Returns the sequences that had not ended before.

        The step that was planned ahead must not be collected. It carries no other sequences.
        """
        carried = self._forget_steps()
        failed = [sequence for sequence, _ in carried if not sequence.ended]
        for sequence in failed:
            self._end(sequence)
        self._release_ended(carried)
        return failed

    def shrink_steps(self) -> int | None:
        """Let later steps have at most half of the tokens of the step in flight, which failed.

        All running sequences are preempted: the state of those in the step is undefined. A step
        that was planned ahead must not be collected.

        Returns:
            Most tokens of later steps. None if the step cannot be smaller, because it had one token
            or must compute whole prompts; then nothing changes.
        """
        tokens = sum(len(chunk.tokens) for _, chunk in self._in_flight)
        if tokens < 2 or self._whole_prompts:
            return None
        carried = self._forget_steps()
        self._batch_tokens = tokens // 2
        self._most_rows = min(self._most_rows, self._batch_tokens)
        self._release_ended(carried)
        for sequence in list(self._running):
            self._preempt(sequence)
        return self._batch_tokens

    # --- admission and prefixes ------------------------------------------------------------------

    def _admit(self) -> None:
        """Give slots to waiting sequences in order, while their tokens fit the cache."""
        head = self._queue.head(self._running)
        if head is None or not (self._slot_is_free or self._gives_way(head)):
            return
        self._publish()
        unclaimed = self._unclaimed()
        while head is not None:
            cost = self._take_prefix(head, unclaimed) if self._slot_is_free else None
            if cost is not None:
                unclaimed -= cost
                self._start(head)
                head = self._queue.head(self._running)
            elif (other := self._gives_way(head)) is not None:
                self._preempt(other)  # it waits behind `head` now
                unclaimed = self._unclaimed()
            else:
                return

    def _gives_way(self, head: Sequence) -> Sequence | None:
        return gives_way(self._running, head, shared=self._queue.shared)

    def _start(self, sequence: Sequence) -> None:
        """Give a waiting sequence a free slot."""
        self._queue.remove(sequence)
        sequence.slot = self._slots.index(None)
        self._slots[sequence.slot] = sequence
        sequence.total_at_start = sequence.total
        self._ranks += 1
        sequence.rank = self._ranks
        self._end_turn(sequence)
        insort(self._running, sequence, key=_place)

    @property
    def _slot_is_free(self) -> bool:
        return len(self._running) < len(self._slots)

    def _load_restored(self) -> None:
        """Give sequences the pages that the disk tier has read for them."""
        streams = any(one.generating and not one.paused for one in self._running)
        most = _LOADS if streams else self._cache.pages
        for sequence in list(self._running):
            if sequence.restore is not None:
                most -= self._load(sequence, sequence.restore, most)

    def _load(self, sequence: Sequence, restore: Restore, most: int) -> int:
        """Give one sequence up to `most` pages from disk. Returns how many it got."""
        count = self._cache.load(sequence.table, restore, most)
        while restore.ready and count < most and (idle := longest_idle(self._running)) is not None:
            self._preempt(idle)  # it holds the pages, and its caller may never ask again
            count += self._cache.load(sequence.table, restore, most - count)
        sequence.computed = self._cache.restored(sequence.table, restore, sequence.computed)
        if restore.ended and not restore.ready:
            sequence.restore = None
            if len(sequence.table.pages) * PAGE_TOKENS > sequence.computed:
                self._restart(sequence)  # it has pages, but no snapshot at their end
        return count

    def _restart(self, sequence: Sequence) -> None:
        """Start again from the prefix cache: the sequence cannot continue its restored pages."""
        self._cache.release(sequence.table)
        sequence.computed = 0
        self._take_prefix(sequence, self._unclaimed() + self._claim(sequence))

    def _resume_followers(self) -> None:
        """End the wait of followers whose leader has computed the prefix or has stopped."""
        for sequence in self._running:
            leader = sequence.leader
            if leader is not None and is_wait_over(leader, sequence.shared_tokens):
                self._publish()
                self._take_prefix(sequence, self._unclaimed() + self._claim(sequence))

    def _take_prefix(self, sequence: Sequence, available: PageCounts) -> PageCounts | None:
        """Attach the sequence's cached prefix, and follow a sequence that computes more of it.

        If there is no such sequence, start to restore more of the prefix from disk.

        Returns how many of the `available` pages the sequence needs for its tokens. Returns None,
        and changes only its leader (to None), if the pages do not suffice or the sequence has
        already computed more tokens than the cache has.
        """
        sequence.leader = None
        most = sequence.first_needed
        match = self._cache.match(sequence.params.cache_salt, sequence.tokens, most)
        if match.length < sequence.computed:  # the cache was flushed
            return None
        leader, shared = find_leader(sequence, self._running, match.length)
        whole = self._cache.whole_pages(match)
        restore = None if leader else self._cache.find_on_disk(whole, sequence.tokens, most)
        cost = self._cache.cost(match, sequence.total)
        if leader is not None or restore is not None or not available.covers(cost):
            # Take only full pages: the leader or the disk adds the rest of the last page, or the
            # sequence needs all pages and leaves none for the source of a copy.
            match = whole
            cost = self._cache.cost(match, sequence.total)
        if not available.covers(cost):
            return None
        self._cache.attach(sequence.table, match)
        sequence.computed = match.length
        sequence.leader, sequence.shared_tokens = leader, shared
        sequence.restore = restore
        if restore is not None:
            self._cache.begin_restore(restore)
        return cost

    def _unclaimed(self) -> PageCounts:
        """Pages of each group that no running sequence needs for the tokens it has.

        Admission gives out only these pages. So preemptions come only from output, whose length is
        unknown.
        """
        unclaimed = self._cache.available_by_group
        for sequence in self._running:
            unclaimed -= self._claim(sequence)
        return unclaimed

    def _claim(self, sequence: Sequence) -> PageCounts:
        """Pages that the sequence still needs for its tokens."""
        return self._cache.claim(sequence.table, sequence.total)

    def _publish(self) -> None:
        """Publish the computed tokens of all running sequences."""
        for sequence in self._running:
            self._cache.publish(sequence.table, sequence.tokens, sequence.computed)

    def _bind(self, sequence: Sequence) -> Binding:
        """The binding that tells the executor: this sequence holds its slot from now on."""
        sequence.bound = True
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            if not sequence.reads_prompt:
                self._cache.count_query(sequence.total, sequence.computed, sequence.table.lost)
        tokens, prompt = sequence.tokens, sequence.prompt_tokens
        return Binding(
            sequence.slot,
            sequence.params,
            tokens[:prompt],
            tokens[prompt:],
            sequence.rules,
            sequence.mu,
        )

    # --- planning a step and applying its result -------------------------------------------------

    def _assign_tokens(self) -> list[tuple[Sequence, int]]:
        """How many new tokens each sequence gets: decodes 1 each, then prompts in order.

        The order of prompts is that of the queue: a client that was served less comes first.
        """
        running = [sequence for sequence in self._running if not sequence.waits]
        if self._queue.shared:
            running.sort(key=self._prompt_order())
        decodes = sum(sequence.generating for sequence in running)
        again = sum(sequence.again for sequence in running)
        budget = self._batch_tokens - decodes - again
        if self._pace is not None and decodes:
            budget = min(budget, self._pace.allowance(decodes))
        if budget <= 0 and len(running) + again > self._batch_tokens:
            return self._take_turns(running)
        shares = []
        for sequence in running:
            if sequence.generating:
                shares.append((sequence, 1))
            elif budget > 0:
                cost = self._cost(sequence)
                count = min(sequence.remaining, max(1, int(budget / cost)))
                if self._whole_prompts and count < sequence.remaining:
                    break  # the first sequence always fits
                if self._snapshot_every:
                    count = min(
                        count, next_snapshot(sequence, self._snapshot_every) - sequence.computed
                    )
                budget -= math.ceil(count * cost)
                shares.append((sequence, count))
        return shares

    def _guess(self, shares: list[tuple[Sequence, int]]) -> dict[int, Many[int]]:
        """The guesses of a step by sequence id, with pages for them. Only if no prompt shares it.

        No sequence is preempted for guesses: without free pages, there are fewer guesses.
        """
        assert self._speculator is not None
        if not all(sequence.generating and count for sequence, count in shares):
            return {}
        decoding = [sequence for sequence, _ in shares if not sequence.driven]
        taken = len(shares) + sum(sequence.again for sequence, _ in shares)
        guesses = self._speculator.guess(decoding, self._most_rows - taken)
        for sequence in decoding:
            if sequence.id in guesses:
                made = guesses[sequence.id]
                guesses[sequence.id] = made[: self._room_for_guesses(sequence, len(made))]
        return guesses

    def _room_for_guesses(self, sequence: Sequence, wanted: int) -> int:
        """How many of the wanted guesses of a sequence may be computed.

        They need pages, and the state of a snapshot must not be that of a guess.
        """
        if self._snapshot_every:
            before = next_snapshot(sequence, self._snapshot_every) - sequence.total - 1
            wanted = max(0, min(wanted, before))
        if self._cache.grow(sequence.table, sequence.total + wanted):
            return wanted
        return len(sequence.table.pages) * PAGE_TOKENS - sequence.total

    def _wrong_guesses(
        self, carried: Carried, outcomes: list[tuple[Sequence, Outcome]]
    ) -> dict[int, int]:
        """How many guesses were wrong, by sequence id, for each sequence with guesses."""
        wrong = {sequence.id: chunk.guesses + 1 for sequence, chunk in carried if chunk.guesses}
        for sequence, _ in outcomes:
            if sequence.id in wrong:
                wrong[sequence.id] -= 1
        return wrong

    def _learn(self, carried: Carried, outcomes: list[tuple[Sequence, Outcome]]) -> None:
        """Tell the speculator which tokens were sampled."""
        assert self._speculator is not None
        tokens: dict[int, list[int]] = {}
        for sequence, outcome in outcomes:
            if isinstance(outcome, Sampled):
                tokens.setdefault(sequence.id, []).append(outcome.token)
        for sequence, chunk in carried:
            if sequence.id in tokens:
                self._speculator.learn(sequence, tokens[sequence.id], chunk.guesses)

    def _measure(self, carried: Carried, seconds: float) -> None:
        """Tell the pace how long the step took."""
        if self._pace is None:
            return
        guesses = sum(chunk.guesses + sequence.again for sequence, chunk in carried)
        decodes = sum(sequence.generating for sequence, _ in carried)
        cost = sum(len(chunk.tokens) * self._cost(sequence) for sequence, chunk in carried)
        self._pace.observe(decodes, cost - decodes - guesses, seconds, guesses)

    def _prompt_order(self) -> Callable[[Sequence], tuple[int, float]]:
        """The order in which prompts get tokens. A leader takes the place of its first follower."""
        lent: dict[int, float] = {}
        for sequence in self._running:
            if sequence.leader is not None:
                leader, service = id(sequence.leader), sequence.account.service
                lent[leader] = min(lent.get(leader, service), service)

        def order(sequence: Sequence) -> tuple[int, float]:
            service = sequence.account.service
            return sequence.priority, min(service, lent.get(id(sequence), service))

        return order

    def _cost(self, sequence: Sequence) -> float:
        """Cost of one of its next tokens; 1.0 is the cost of a token that is not scored."""
        return 1.0 + self._score_cost if sequence.scores else 1.0

    def _take_turns(self, running: list[Sequence]) -> list[tuple[Sequence, int]]:
        """Give one token each to the sequences whose turn it is.

        If decodes alone use up the budget, prompts take turns with them. Else they would starve.
        """
        line = sorted(running, key=lambda sequence: sequence.turn)
        ends = accumulate(1 + sequence.again for sequence in line)
        fitting = zip(line, ends, strict=True)
        return [(sequence, 1) for sequence, end in fitting if end <= self._batch_tokens]

    def _end_turn(self, sequence: Sequence) -> None:
        self._turn += 1
        sequence.turn = self._turn

    def _grow_tables(self, shares: list[tuple[Sequence, int]]) -> bool:
        """Get the pages that the step writes to. Returns False if there are too few.

        First give back windowed pages that the step's tokens no longer see.
        """
        if self._cache.has_windows:
            for sequence, _ in shares:
                first = sequence.computed - sequence.again
                self._cache.give_back(sequence.table, sequence.tokens, first)
        return all(
            self._cache.grow(sequence.table, sequence.computed + count)
            for sequence, count in shares
        )

    def _preempt(self, sequence: Sequence) -> None:
        """Take a sequence's slot and pages, and let it wait at the place of its arrival.

        A paused sequence waits only when its caller resumes it.
        """
        self._release(sequence)
        sequence.computed = sequence.again = 0
        sequence.bound = False
        if not sequence.paused:
            self._queue.wait(sequence)
        self.preemptions += 1

    def _count_computed(self, sequence: Sequence, count: int) -> None:
        """Record that a step has computed `count` more tokens of the sequence."""
        prompt = sequence.prompt_tokens - sequence.computed
        if prompt > 0:
            self.computed_prompt_tokens += min(prompt, count)
        sequence.computed += count
        self._cache.copied(sequence.table)
        if self._snapshot_every and sequence.table.snapshot is not None:
            self._cache.end_snapshot(sequence.table, sequence.tokens, sequence.computed)

    def _apply(self, sequence: Sequence, outcome: Outcome) -> FinishReason | None:
        """Apply an outcome to its sequence. If the sequence ends, return its finish reason."""
        match outcome:
            case Failed():
                reason: FinishReason | None = FinishReason.ERROR
            case Scored():
                sequence.scored += len(outcome.scores) + (sequence.scored == 0)
                reason = None
            case Pooled():
                reason = FinishReason.STOP
            case Sampled():
                reason = self._append(sequence, outcome)
        if reason is not None:
            self._end(sequence)
        return reason

    def _append(self, sequence: Sequence, sampled: Sampled) -> FinishReason | None:
        """Append the token. Returns the finish reason if it is the last one, else None."""
        sequence.tokens.append(sampled.token)
        sequence.mu = sampled.mu
        if sequence.driven:
            sequence.paused = True
            self._queue.leave(sequence)
            return None
        if sampled.token in sequence.stop_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if sequence.total == sequence.limit else None

    def _end(self, sequence: Sequence) -> None:
        self._room.rate.observe_output(sequence.output_tokens)
        sequence.end()
        del self._live[sequence.id]
        self._queue.leave(sequence)

    def _forget_steps(self) -> Carried:
        """Forget the steps in flight. Returns what the older one carried."""
        carried, self._in_flight, self._ahead = self._in_flight, [], []
        return carried

    def _is_in_flight(self, sequence: Sequence) -> bool:
        return any(carried is sequence for carried, _ in (*self._in_flight, *self._ahead))

    def _release_ended(self, carried: Carried) -> None:
        for sequence, _ in carried:
            if sequence.ended and not self._is_in_flight(sequence):
                self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Take slot and pages from a sequence. No step in flight may carry it."""
        if sequence.restore is not None:
            self._cache.cancel_restore(sequence.restore)
        self._cache.publish(sequence.table, sequence.tokens, sequence.computed)
        self._cache.release(sequence.table)
        sequence.leader = sequence.restore = sequence.awaited = None
        self._running.remove(sequence)
        self._slots[sequence.slot] = None
        sequence.slot = -1


def _place(sequence: Sequence) -> tuple[int, int]:
    """The order of running sequences."""
    return sequence.priority, sequence.rank
