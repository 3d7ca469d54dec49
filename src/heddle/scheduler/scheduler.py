"""Hands out each step's tokens: admission, prefixes, budget, preemption, finish.

The life of a sequence::

    add -> waiting -> running (holds a slot) -> ended
               ^         |
               +---------+ preempted: pages and slot given back, tokens kept

Waiting sequences are taken in arrival order and never overtaken, and whoever must give way is the
youngest that runs. So every running sequence is older than every waiting one: the oldest always
moves on, and no one is passed over for good.

A driven sequence pauses after each token until its caller resumes it. Paused ones give way before
all others, the longest idle first: to whoever lacks a slot as well as to whoever lacks a page. What
was theirs stays in the prefix cache as long as it can, and they queue again when they are resumed.

There is no prefill phase and no decode phase: a sequence needs the tokens from `computed` to
`total`, and whoever reaches `total` has its next token sampled, or ends if it may have no more. It
begins where the prefix cache ends: at `computed` tokens, or, while an older sequence computes more
of its tokens, not yet. Where pages of its prefix are on disk, `computed` goes on by what was read,
and others may follow it. What is asked of a prompt's own tokens (log probabilities, an embedding)
is read from chunks on the way; then they are computed whatever the cache has.

What has been computed is published when someone may look: before a prefix is looked up, and when a
sequence gives its slot back. A step that only decodes pays nothing for the cache.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from heddle.errors import ContextLengthError, InvalidRequestError, OverloadedError
from heddle.scheduler.following import find_leader, leads_no_more
from heddle.scheduler.outcomes import Event, outcomes_of
from heddle.scheduler.planning import PlanBuilder, next_snapshot
from heddle.state import PAGE_TOKENS
from heddle.step import Binding, Deferred, Failed, Pooled, Sampled, Scored
from heddle.types import FinishReason

if TYPE_CHECKING:
    from heddle.cache.manager import CacheManager, Restore, Room
    from heddle.scheduler.pace import Pace
    from heddle.scheduler.sequence import Sequence
    from heddle.step import Chunk, Outcome, StepPlan, StepResult


_LOADS = 4
"""Pages from disk that go to memory before a step for which streams wait: 0.2 ms each or less."""


class Scheduler:
    """Slots and the queue before them. Not thread-safe: `schedule`, then `update`, in turns.

    Args:
        slots: sequences that run at once.
        batch_tokens: most tokens in one step.
        queue: sequences that may wait when all slots are taken.
        cache: where pages and prefixes come from.
        context: most tokens of one sequence.
        pace: bounds the prompt tokens of steps in which streams wait for a token; None does not.
        score_cost: what it costs beside computing a token to score it, in tokens computed.

    Attributes:
        preemptions: how often a sequence gave its slot and pages back.
        computed_prompt_tokens: prompt tokens that steps have computed, those that preemption threw
            away included.
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
    ) -> None:
        self._batch_tokens = batch_tokens
        self._pace = pace
        self._score_cost = score_cost
        self._room = slots + queue
        self._cache = cache
        self._stops = cache.snapshot_tokens
        self._context = context
        self._capacity = min(context, cache.pages * PAGE_TOKENS)
        self._slots: list[Sequence | None] = [None] * slots
        self._live: dict[int, Sequence] = {}  # not ended
        self._waiting: deque[Sequence] = deque()  # in arrival order
        self._running: list[Sequence] = []  # in arrival order, those that drain included
        self._in_flight: list[tuple[Sequence, Chunk]] = []
        self._turn = 0
        self.preemptions = 0
        self.computed_prompt_tokens = 0

    @property
    def busy(self) -> bool:
        """Whether `schedule` has work to hand out."""
        return any(not sequence.paused for sequence in self._live.values())

    @property
    def waiting(self) -> int:
        """How many sequences have no slot."""
        return len(self._waiting)

    @property
    def slots(self) -> tuple[Sequence | None, ...]:
        """Who holds each slot."""
        return tuple(self._slots)

    # --- in and out ------------------------------------------------------------------------------

    def add(self, *sequences: Sequence) -> None:
        """Queue the sequences, all or none, and set their `limit`.

        `max_tokens` beyond what the context or the KV cache holds is cut to it.

        Raises:
            ContextLengthError: a prompt leaves no room for the output, now or ever.
            OverloadedError: the queue is full.
            InvalidRequestError: they are more than slots and queue together hold.
        """
        for sequence in sequences:
            self.check_length(sequence.prompt_tokens, output=sequence.most_output != 0)
        if len(sequences) > self._room:
            raise InvalidRequestError(
                f"{len(sequences)} requests at once, but slots and queue hold {self._room}; "
                "send fewer at a time or raise the setting `queue`",
                param="n",
            )
        held = sum(not sequence.paused for sequence in self._live.values())
        if held + len(sequences) > self._room:
            raise OverloadedError(
                f"{held} requests are running or waiting and slots and queue hold {self._room}; "
                "try again later"
            )
        for sequence in sequences:
            most = sequence.most_output
            wanted = self._capacity if most is None else sequence.prompt_tokens + most
            sequence.limit = min(wanted, self._capacity)
            self._live[sequence.id] = sequence
            self._waiting.append(sequence)

    def check_length(self, tokens: int, *, output: bool = True) -> None:
        """Accept a prompt of so many tokens, with or without `output` after it. From any thread.

        Raises:
            ContextLengthError: it is too long, or leaves no room for one more token, now or ever.
        """
        most = self._capacity - output
        if tokens <= most:
            return
        holder = "context" if self._context <= self._capacity else "KV cache"
        included = ", output included" if output else ""
        raise ContextLengthError(
            f"the prompt has {tokens} tokens and the {holder} holds {self._capacity}{included};"
            f" send at most {most}",
            param="prompt",
        )

    def cancel(self, sequence_id: int) -> bool:
        """End a sequence early: no event names it any more. False if it has ended already.

        Its slot is free at once, or after `update` if the step in flight carries it: until then
        that step writes to its pages.
        """
        sequence = self._live.pop(sequence_id, None)
        if sequence is None:
            return False
        sequence.ended = True
        if sequence.slot < 0:
            if not sequence.paused:
                self._waiting.remove(sequence)
        elif all(carried is not sequence for carried, _ in self._in_flight):
            self._vacate(sequence)
        return True

    def resume(self, sequence: Sequence) -> None:
        """Have the next token of a paused sequence computed. No effect if it has ended.

        Its `limit` is for its caller to observe: it must have fewer tokens than that.
        """
        if sequence.ended or not sequence.paused:
            return
        sequence.paused = False
        if sequence.slot < 0:
            self._waiting.append(sequence)

    def cancel_all(self) -> None:
        """End every sequence early, between steps, and publish what they have computed."""
        for sequence_id in list(self._live):
            self.cancel(sequence_id)

    # --- one step --------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """The next step. Has a chunk when `busy`, unless all that run wait: for the disk, or for
        what their next tokens are to be sampled under.
        """
        self._cache.tick()
        for sequence in self._running:
            if sequence.awaited is not None and sequence.awaited.done():
                sequence.awaited = None
        self._load_restored()
        self._resume_followers()
        self._admit()
        shares = self._share_out()
        while not self._grow_tables(shares):
            # Ends at the latest when the oldest is alone: it fits.
            self._preempt(self._longest_idle() or self._running[-1])
            shares = self._share_out()
        builder, stops = PlanBuilder(self._cache), self._stops
        chunks, in_flight = builder.chunks, self._in_flight
        for sequence, count in shares:
            if not sequence.bound:
                builder.bind(sequence, self._bind(sequence))
            if sequence.table.source is not None:
                builder.copy_pages(sequence)
            chunk = sequence.chunk(count)
            if stops and sequence.computed + count == next_snapshot(sequence, stops):
                builder.snapshot(sequence)
            chunks.append(chunk)
            in_flight.append((sequence, chunk))
            self._to_the_back(sequence)
        return builder.plan()

    def update(self, result: StepResult, seconds: float | None = None) -> list[Event]:
        """Take in what the planned step computed: what was read from living sequences, in events.

        Args:
            result: of the step that `schedule` planned.
            seconds: how long it took, for the pace.

        Raises:
            ValueError: the result does not answer the plan.
        """
        carried, self._in_flight = self._in_flight, []
        if self._pace is not None and seconds is not None:
            decodes = sum(sequence.generating for sequence, _ in carried)
            cost = sum(len(chunk.tokens) * self._cost(sequence) for sequence, chunk in carried)
            self._pace.observe(decodes, cost - decodes, seconds)
        outcomes = outcomes_of(carried, result)
        for sequence, chunk in carried:
            self._count_computed(sequence, len(chunk.tokens))
        events = []
        for sequence, outcome in outcomes:
            if isinstance(outcome, Failed):
                self._cache.disown(sequence.table)
            if isinstance(outcome, Deferred):
                sequence.computed -= 1  # its last token is computed again, to the same bits
                sequence.awaited = outcome.ready
            elif not sequence.ended:
                events.append(Event(sequence, outcome, self._take(sequence, outcome)))
        for sequence, _ in carried:
            if not sequence.ended and sequence.computed == sequence.limit:
                self._end(sequence)
                events.append(Event(sequence, None, FinishReason.LENGTH))
        self._vacate_ended(carried)
        return events

    def abandon(self) -> list[Sequence]:
        """The planned step failed: end what it carried. Returns those that lived until then."""
        carried, self._in_flight = self._in_flight, []
        failed = [sequence for sequence, _ in carried if not sequence.ended]
        for sequence in failed:
            self._end(sequence)
        self._vacate_ended(carried)
        return failed

    # --- who may begin ---------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give slots to those who waited longest, while the tokens they have fit the cache."""
        if not self._waiting or not (self._slot_is_free or self._longest_idle()):
            return
        self._publish()
        unclaimed = self._unclaimed()
        while self._waiting:
            sequence = self._waiting[0]
            cost = self._take_prefix(sequence, unclaimed) if self._slot_is_free else None
            if cost is None:
                idle = self._longest_idle()
                if idle is None:
                    return
                self._preempt(idle)
                unclaimed = self._unclaimed()
                continue
            unclaimed -= cost
            sequence.slot = self._slots.index(None)
            self._slots[sequence.slot] = sequence
            self._to_the_back(sequence)
            self._running.append(self._waiting.popleft())

    @property
    def _slot_is_free(self) -> bool:
        return len(self._running) < len(self._slots)

    def _longest_idle(self) -> Sequence | None:
        """The paused sequence with a slot whose last step is longest ago."""
        idle = (sequence for sequence in self._running if sequence.paused)
        return min(idle, key=lambda sequence: sequence.turn, default=None)

    def _load_restored(self) -> None:
        """Let sequences go on by the pages that have been read for them."""
        streams = any(one.generating and not one.paused for one in self._running)
        most = _LOADS if streams else self._cache.pages
        for sequence in list(self._running):
            if sequence.restore is not None:
                most -= self._load(sequence, sequence.restore, most)

    def _load(self, sequence: Sequence, restore: Restore, most: int) -> int:
        """Let one of them go on, by at most so many pages; returns how many."""
        count = self._cache.load(sequence.table, restore, most)
        while restore.ready and count < most and (idle := self._longest_idle()) is not None:
            self._preempt(idle)  # its output took the pages, and it may be idle for ever
            count += self._cache.load(sequence.table, restore, most - count)
        sequence.computed = self._cache.restored(sequence.table, restore, sequence.computed)
        if restore.ended and not restore.ready:
            sequence.restore = None
            if len(sequence.table.pages) * PAGE_TOKENS > sequence.computed:
                self._restart(sequence)  # pages without the state at their end
        return count

    def _restart(self, sequence: Sequence) -> None:
        """Begin again with what the cache has: what was restored cannot be gone on from."""
        self._cache.release(sequence.table)
        sequence.computed = 0
        self._take_prefix(sequence, self._unclaimed() + self._claim(sequence))

    def _resume_followers(self) -> None:
        """Let go on who waited for tokens that are there by now, or will not come."""
        for sequence in self._running:
            leader = sequence.leader
            if leader is not None and leads_no_more(leader, sequence.shared_tokens):
                self._publish()
                self._take_prefix(sequence, self._unclaimed() + self._claim(sequence))

    def _take_prefix(self, sequence: Sequence, room: Room) -> Room | None:
        """Attach what the cache has of the sequence, and follow who is computing more of it.

        If no one is, begin to restore what there is of it on disk.

        Returns how much of the room the sequence needs for the tokens it has; None if that is too
        much. Then, and if it has computed more by itself, it is left as it is.
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
        if leader is not None or restore is not None or not room.holds(cost):
            # The rest of a page comes with what the leader or the disk adds; or, in a cache that
            # this sequence fills to the last page, there is none to copy from while it is copied.
            match = whole
            cost = self._cache.cost(match, sequence.total)
        if not room.holds(cost):
            return None
        self._cache.attach(sequence.table, match)
        sequence.computed = match.length
        sequence.leader, sequence.shared_tokens = leader, shared
        sequence.restore = restore
        if restore is not None:
            self._cache.begin_restore(restore)
        return cost

    def _unclaimed(self) -> Room:
        """Pages of each group that no running sequence needs for tokens it has.

        Admission hands out no others. Hence only output, which no one can foresee, ever causes a
        preemption.
        """
        unclaimed = self._cache.room
        for sequence in self._running:
            unclaimed -= self._claim(sequence)
        return unclaimed

    def _claim(self, sequence: Sequence) -> Room:
        """Pages that the sequence still needs for tokens it has."""
        return self._cache.claim(sequence.table, sequence.total)

    def _publish(self) -> None:
        """Let what has been computed be found."""
        for sequence in self._running:
            self._cache.publish(sequence.table, sequence.tokens, sequence.computed)

    def _bind(self, sequence: Sequence) -> Binding:
        """Tell the executor who holds the slot from now on."""
        sequence.bound = True
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            if not sequence.reads_prompt:
                self._cache.count_query(sequence.total, sequence.computed)
        tokens, prompt = sequence.tokens, sequence.prompt_tokens
        return Binding(
            sequence.slot,
            sequence.params,
            tokens[:prompt],
            tokens[prompt:],
            sequence.rules,
            sequence.mu,
        )

    # --- how a step is put together --------------------------------------------------------------

    def _share_out(self) -> list[tuple[Sequence, int]]:
        """Who gets how many tokens: decodes one each, then prompts in arrival order."""
        running = [sequence for sequence in self._running if not sequence.waits]
        decodes = sum(sequence.generating for sequence in running)
        budget = self._batch_tokens - decodes
        if self._pace is not None and decodes:
            budget = min(budget, self._pace.allowance(decodes))
        if budget <= 0 and len(running) > self._batch_tokens:
            return self._take_turns(running)
        shares = []
        for sequence in running:
            if sequence.generating:
                shares.append((sequence, 1))
            elif budget > 0:
                cost = self._cost(sequence)
                count = min(sequence.remaining, max(1, int(budget / cost)))
                if self._stops:
                    count = min(count, next_snapshot(sequence, self._stops) - sequence.computed)
                budget -= math.ceil(count * cost)
                shares.append((sequence, count))
        return shares

    def _cost(self, sequence: Sequence) -> float:
        """What one of its next tokens costs, in tokens that nothing is read from."""
        return 1.0 + self._score_cost if sequence.scores else 1.0

    def _take_turns(self, running: list[Sequence]) -> list[tuple[Sequence, int]]:
        """One token each for those whose turn it is.

        When decodes alone use up the budget, prompts take turns with them, or they would starve.
        """
        line = sorted(running, key=lambda sequence: sequence.turn)
        return [(sequence, 1) for sequence in line[: self._batch_tokens]]

    def _to_the_back(self, sequence: Sequence) -> None:
        self._turn += 1
        sequence.turn = self._turn

    def _grow_tables(self, shares: list[tuple[Sequence, int]]) -> bool:
        """Get the pages that the shares write to; false if there are too few.

        Windowed pages that the shares do not see go first.
        """
        if self._cache.has_windows:
            for sequence, _ in shares:
                self._cache.give_back(sequence.table, sequence.tokens, sequence.computed)
        return all(
            self._cache.grow(sequence.table, sequence.computed + count)
            for sequence, count in shares
        )

    def _preempt(self, sequence: Sequence) -> None:
        """Take slot and pages. Back to the head of the queue: it is older than all who wait there.

        One that is paused waits for its caller first.
        """
        self._vacate(sequence)
        sequence.computed = 0
        sequence.bound = False
        if not sequence.paused:
            self._waiting.appendleft(sequence)
        self.preemptions += 1

    def _count_computed(self, sequence: Sequence, count: int) -> None:
        """A step has computed so many tokens of the sequence more."""
        prompt = sequence.prompt_tokens - sequence.computed
        if prompt > 0:
            self.computed_prompt_tokens += min(prompt, count)
        sequence.computed += count
        self._cache.copied(sequence.table)
        if self._stops and sequence.table.snapshot is not None:
            self._cache.end_snapshot(sequence.table, sequence.tokens, sequence.computed)

    def _take(self, sequence: Sequence, outcome: Outcome) -> FinishReason | None:
        """Take in what was read; end the sequence if it failed or this was the last of it."""
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

    @staticmethod
    def _append(sequence: Sequence, sampled: Sampled) -> FinishReason | None:
        """Append the token; whether, and why, it is the last one."""
        sequence.tokens.append(sampled.token)
        sequence.mu = sampled.mu
        if sequence.driven:
            sequence.paused = True
            return None
        if sampled.token in sequence.stop_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if sequence.total == sequence.limit else None

    def _end(self, sequence: Sequence) -> None:
        sequence.ended = True
        del self._live[sequence.id]

    def _vacate_ended(self, carried: list[tuple[Sequence, Chunk]]) -> None:
        for sequence, _ in carried:
            if sequence.ended:
                self._vacate(sequence)

    def _vacate(self, sequence: Sequence) -> None:
        """Give back slot and pages. No step in flight may carry the sequence."""
        if sequence.restore is not None:
            self._cache.cancel_restore(sequence.restore)
        self._cache.publish(sequence.table, sequence.tokens, sequence.computed)
        self._cache.release(sequence.table)
        sequence.leader = sequence.restore = sequence.awaited = None
        self._running.remove(sequence)
        self._slots[sequence.slot] = None
        sequence.slot = -1
