"""Decides which tokens each step computes, and applies what the step found.

The life of a sequence::

    add -> waiting -> running (holds a slot) -> ended
               ^         |
               +---------+ preempted: gives up slot and pages, keeps its tokens

`admission.py` says which sequences hold slots and pages, `prefixes.py` where they start, and
`budget.py` how many tokens each gets in a step. `speculation.py` adds guesses to them.

Running sequences are ordered by priority, then by the step in which they got their slots. If output
lacks a page, a sequence of the last class is preempted, never the first in order. So the first in
order always advances, and ends; then the next one is first. With one client and one priority, both
orders are the order of arrival: every running sequence is older than every waiting one, the
youngest is preempted first, and the oldest always advances.

No sequence of a class starves while the class is served: the first in order ends, so slots become
free, and the queue passes over a sequence only finitely often. A class starves if classes with
lower numbers take all slots; that is what a priority asks for.

A driven sequence pauses after each token until its caller resumes it. The scheduler preempts paused
sequences before all others, the longest idle first, if another sequence lacks a slot or a page.
Their pages stay in the prefix cache as long as there is memory. They queue again when they are
resumed.

There is no prefill phase and no decode phase. A sequence needs the tokens from `computed` to
`total` computed. When `computed` reaches `total`, the step samples the next token, or the sequence
ends if it has reached its limit. Steps read prompt logprobs and embeddings from the chunks of the
prompt, so they compute these tokens even if the cache has them.

A step may be planned while another one is in flight (`schedule_ahead`, `ahead.py`). Its sequences
go on with tokens that are not known yet. A sequence that has ended meanwhile keeps its slot
until that step, too, has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import InvalidRequestError
from heddle.outputs import FinishReason
from heddle.scheduler.admission import Admission
from heddle.scheduler.ahead import chunk_ahead, may_run_ahead
from heddle.scheduler.budget import Budget
from heddle.scheduler.outcomes import TokenEvent, outcomes_of, teach_drafters
from heddle.scheduler.planning import PlanBuilder, next_snapshot
from heddle.scheduler.prefixes import Prefixes
from heddle.scheduler.queue import OUTPUT_COST, Queue
from heddle.scheduler.room import Room
from heddle.scheduler.slots import Slots
from heddle.scheduler.speculation import Guesses
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
    from collections.abc import Sequence as Many

    from heddle.cache.cache import Cache
    from heddle.scheduler.pace import Pace
    from heddle.scheduler.sequence import Sequence
    from heddle.scheduler.speculation import Speculator
    from heddle.step import Chunk, Outcome, StepResult

    Carried = list[tuple[Sequence, Chunk]]


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
        slots: the sequence that holds each slot; None if the slot is free. Any thread may read it.
        check_length: see `Room.check_length`. Any thread may call it.
        queue: the waiting sequences.
        set_queue: changes how many sequences may wait.
        admission: moves sequences between the queue and the slots.
        prefixes: cached prefixes of the sequences in slots.
        computed_prompt_tokens: prompt tokens that steps have computed, including tokens that
            preemption dropped.
    """

    def __init__(
        self,
        slots: int,
        batch_tokens: int,
        queue: int,
        cache: Cache,
        context: int,
        pace: Pace | None = None,
        score_cost: float = 0.0,
        *,
        speculator: Speculator | None = None,
        whole_prompts: bool = False,
    ) -> None:
        assert not whole_prompts or batch_tokens >= context, "every sequence must fit in a step"
        self._room = Room(slots, queue, context, cache.pages.size * PAGE_TOKENS)
        self.check_length = self._room.check_length
        self.longest = self._room.capacity
        self._pages = cache.pages
        self._cached = cache.prefixes
        self._snapshot_every = cache.pages.snapshot_tokens
        rows = min(most_rows(slots), batch_tokens)
        self._guesses = Guesses(speculator, cache.pages, rows) if speculator is not None else None
        self._live: dict[int, Sequence] = {}  # not ended
        self.set_queue = self._room.set_queue
        self.queue = Queue()
        self._slots = Slots(slots)
        self.slots: Many[Sequence | None] = self._slots.holders
        self.prefixes = Prefixes(cache, self._slots)
        self.admission = Admission(self.queue, self._slots, cache, self.prefixes)
        self._budget = Budget(
            batch_tokens, pace, score_cost, cache.pages.snapshot_tokens, whole_prompts=whole_prompts
        )
        self._in_flight: Carried = []
        self._ahead: Carried = []  # of the step after the one in flight
        self.computed_prompt_tokens = 0

    @property
    def busy(self) -> bool:
        """Whether a sequence has work: it has not ended and is not paused."""
        return self.queue.active > 0

    def wait_reason(self, sequence: Sequence) -> WaitReason:
        """Why a sequence that has not ended is not part of the step."""
        if sequence.slot >= 0:
            return wait_of_running(sequence)
        return WaitReason.PAGES if self._slots.has_free else WaitReason.SLOT

    # --- add, cancel, resume ---------------------------------------------------------------------

    def add(self, *sequences: Sequence) -> None:
        """Queue the sequences, all or none, and set their `limit`.

        The limit is the prompt and `max_tokens`, bounded by the context and the KV cache.

        Raises:
            ContextLengthError: a prompt leaves no room for the output, even in an empty cache.
            OverloadedError: the queue is full.
            InvalidRequestError: there are more sequences than slots and queue together hold, or a
                picture fits no step.
        """
        for sequence in sequences:
            self._check_pictures(sequence)
        self._room.check(sequences, self.queue, self._live.values())
        for sequence in sequences:
            sequence.limit = self._room.limit_of(sequence)
            self._queue(sequence)

    def add_again(self, sequence: Sequence) -> None:
        """Queue a sequence of another scheduler, perhaps with output, even if the queue is full.

        It keeps its limit, unless this cache is smaller.

        Raises:
            ContextLengthError: it leaves no room for output here.
            InvalidRequestError: a picture fits no step here.
        """
        self._check_pictures(sequence)
        self.check_length(sequence.total, output=sequence.most_output != 0)
        sequence.limit = min(sequence.limit, self._room.limit_of(sequence))
        self._queue(sequence)

    def _check_pictures(self, sequence: Sequence) -> None:
        """Check that a step may hold all tokens that see one another. Else it would never run."""
        least, most = sequence.least_chunk, self._budget.tokens
        if least > most:
            raise InvalidRequestError(
                f"a picture has {least} tokens, which this model reads in one step; a step has at"
                f" most {most} (batch_tokens). Send a smaller picture, or raise batch_tokens",
                param="messages",
            )

    def _queue(self, sequence: Sequence) -> None:
        self._live[sequence.id] = sequence
        self.queue.enter(sequence)
        self.queue.arrive(sequence)

    def seconds_until(self, places: int) -> float:
        """Estimated time, in seconds, until `places` sequences have ended."""
        return self._room.seconds_until(places, self._live.values())

    def waiting_tokens(self) -> int:
        """Tokens that sequences without a slot need; see `Room.work`. Any thread may call this."""
        live = list(self._live.values())  # one call of C: another thread cannot change it meanwhile
        waiting = (one for one in live if one.slot < 0 and not one.paused)
        return round(sum(map(self._room.work, waiting)))

    @property
    def busy_rate(self) -> float:
        """Prompt and output tokens per second of recent steps; 0.0 before any step was timed."""
        return self._room.rate.tokens_per_second

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
                self.queue.remove(sequence)
            self.queue.leave(sequence)
        if sequence.slot >= 0 and not self._is_in_flight(sequence):
            self.admission.release(sequence)
        return True

    def resume(self, sequence: Sequence) -> None:
        """Let a paused sequence compute its next token. No effect if it has ended.

        The sequence must have fewer tokens than its `limit`.
        """
        if sequence.ended or not sequence.paused:
            return
        sequence.paused = False
        self.queue.enter(sequence)
        if sequence.slot < 0:
            self.queue.arrive(sequence)

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
        self._cached.tick()
        running = self._slots.running
        for sequence in running:
            if sequence.awaited is not None and sequence.awaited.done():
                sequence.awaited = None
        if any(one.restore is not None for one in running):
            self.admission.load_restored()
        if any(one.leader is not None for one in running):
            self.prefixes.resume_followers()
        if self.queue.waiting:
            self.admission.admit()
        while True:
            shares = self._budget.divide(running, shared=self.queue.shared)
            if self._pages.has_windows:
                self._give_back(shares)
            if all(self._pages.grow(one.table, one.computed + count) for one, count in shares):
                break
            # The loop ends when only the first sequence runs: its pages always fit.
            self.admission.free_pages()
        guesses = self._guesses.choose(shares) if self._guesses is not None else {}
        builder, every = PlanBuilder(self._pages), self._snapshot_every
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
            self._slots.end_turn(sequence)
        return builder.plan()

    def schedule_ahead(self) -> StepPlan | None:
        """Plan the step after the one in flight, before the tokens of that one are known.

        Returns None if the next step may depend on them; then call `update` first. It may if a
        request could take a slot, if a sequence waits or computes its prompt, if guesses would pay,
        or if the host needs a token.
        """
        if self._ahead or self.admission.may_admit:
            return None
        idle = [one for one in self._slots.running if not (one.ended or one.paused)]
        carried = [(one, chunk) for one, chunk in self._in_flight if not one.ended]
        if len(idle) > len(carried) or not all(may_run_ahead(*both) for both in carried):
            return None
        decoding = [sequence for sequence, _ in carried if sequence.generating]
        if self._guesses is not None and self._guesses.would_pay(decoding):
            return None
        going = [both for both in carried if both[0].total + 1 < both[0].limit]
        every, chunks = self._snapshot_every, []
        for sequence, _ in going:
            chunk = chunk_ahead(sequence, self._pages)
            if chunk is None or (every and (sequence.total + 1) % every == 0):
                return None
            chunks.append(chunk)
        self._ahead = [
            (sequence, chunk) for (sequence, _), chunk in zip(going, chunks, strict=True)
        ]
        for sequence, _ in going:
            self._slots.end_turn(sequence)
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
        wrong = teach_drafters(carried, outcomes) if self._guesses is not None else {}
        counts = [
            (sequence, len(chunk.tokens) - sequence.again - wrong.get(sequence.id, 0))
            for sequence, chunk in carried
            # Else the sequence ended before the token of its chunk was known.
            if chunk.tokens[0] != UNKNOWN or len(sequence.tokens) > chunk.start
        ]
        if seconds is not None:
            self._budget.measure(carried, seconds)
            self._room.rate.observe(sum(count for _, count in counts), seconds)
        if self.queue.shared:
            self.queue.serve(
                (one, OUTPUT_COST * count if one.generating else count) for one, count in counts
            )
        for sequence, count in counts:
            self._count_computed(sequence, count)
            sequence.again = 0
        events = []
        for sequence, outcome in outcomes:
            if isinstance(outcome, Failed):
                self._cached.unpublish(sequence.table)
            if isinstance(outcome, Deferred):
                sequence.computed -= 1  # a later step computes it again, with the same bits
                sequence.awaited = outcome.ready
            elif not sequence.ended:
                events.append(TokenEvent(sequence, outcome, self._apply(sequence, outcome)))
        for sequence, chunk in carried:
            if sequence.id in wrong:
                # Right guesses after the token that ended the sequence do not count.
                total = len(sequence.tokens)
                sequence.computed = min(sequence.computed, total - 1)
                if len(sequence.table.pages) * PAGE_TOKENS >= total + PAGE_TOKENS:
                    self._pages.shrink(sequence.table, total)
            if self._snapshot_every and wrong.get(sequence.id):
                certain = len(chunk.tokens) - chunk.uncertain
                sequence.again = sequence.computed - chunk.start - certain
            if not sequence.ended and sequence.computed == sequence.limit:
                self._end(sequence)
                events.append(TokenEvent(sequence, None, FinishReason.LENGTH))
        if any(sequence.ended for sequence, _ in carried):
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
            Most tokens of later steps. None if the step cannot be smaller, because it had one
            token, or as many as a picture, or must compute whole prompts; then nothing changes.
        """
        tokens = sum(len(chunk.tokens) for _, chunk in self._in_flight)
        most = max([tokens // 2, *(one.least_chunk for one in self._live.values())])
        if most >= tokens or tokens < 2 or self._budget.whole_prompts:
            return None
        carried = self._forget_steps()
        self._budget.tokens = most
        if self._guesses is not None:
            self._guesses.most_rows = min(self._guesses.most_rows, self._budget.tokens)
        self._release_ended(carried)
        for sequence in list(self._slots.running):
            self.admission.preempt(sequence)
        return self._budget.tokens

    # --- parts of a step -------------------------------------------------------------------------

    def _bind(self, sequence: Sequence) -> Binding:
        """The binding that tells the executor: this sequence holds its slot from now on."""
        sequence.bound = True
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            if not sequence.reads_prompt:
                self._cached.count_query(sequence.total, sequence.computed, sequence.table.lost)
        tokens, prompt = sequence.tokens, sequence.prompt_tokens
        return Binding(
            sequence.slot,
            sequence.params,
            tokens[:prompt],
            tokens[prompt:],
            sequence.rules,
            sequence.mu,
        )

    def _give_back(self, shares: list[tuple[Sequence, int]]) -> None:
        """Give back windowed pages that the tokens of a step no longer see."""
        for sequence, _ in shares:
            first = sequence.computed - sequence.again
            self._pages.give_back(sequence.table, sequence.keys, first)

    def _count_computed(self, sequence: Sequence, count: int) -> None:
        """Record that a step has computed `count` more tokens of the sequence."""
        prompt = sequence.prompt_tokens - sequence.computed
        if prompt > 0:
            self.computed_prompt_tokens += min(prompt, count)
        sequence.computed += count
        if sequence.table.source is not None or sequence.table.state is not None:
            self._pages.copied(sequence.table)
        if self._snapshot_every and sequence.table.snapshot is not None:
            self._pages.end_snapshot(sequence.table, sequence.keys, sequence.computed)

    def _apply(self, sequence: Sequence, outcome: Outcome) -> FinishReason | None:
        """Apply an outcome to its sequence. If the sequence ends, return its finish reason."""
        reason: FinishReason | None = None
        match outcome:
            case Sampled(token=token, mu=mu):
                sequence.tokens.append(token)
                if sequence.keys is not sequence.tokens:
                    sequence.keys.append(token)
                sequence.mu = mu
                if sequence.driven:
                    sequence.paused = True
                    self.queue.leave(sequence)
                elif token in sequence.stop_tokens:
                    reason = FinishReason.STOP
                elif len(sequence.tokens) == sequence.limit:
                    reason = FinishReason.LENGTH
            case Failed():
                reason = FinishReason.ERROR
            case Scored():
                sequence.scored += len(outcome.scores) + (sequence.scored == 0)
            case Pooled():
                reason = FinishReason.STOP
        if reason is not None:
            self._end(sequence)
        return reason

    def _end(self, sequence: Sequence) -> None:
        self._room.rate.observe_output(sequence.output_tokens)
        sequence.end()
        del self._live[sequence.id]
        self.queue.leave(sequence)

    def _forget_steps(self) -> Carried:
        """Forget the steps in flight. Returns what the older one carried."""
        carried, self._in_flight, self._ahead = self._in_flight, [], []
        return carried

    def _is_in_flight(self, sequence: Sequence) -> bool:
        # The step ahead carries no other sequences than the step in flight.
        return any(carried is sequence for carried, _ in self._in_flight)

    def _release_ended(self, carried: Carried) -> None:
        for sequence, _ in carried:
            if sequence.ended and not self._is_in_flight(sequence):
                self.admission.release(sequence)
