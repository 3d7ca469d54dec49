"""Admission, budget, preemption and finish, one rule at a time."""

from dataclasses import replace

import pytest

from cache_integrity import check_cache
from fake_executor import END, FakeExecutor, solo_output
from heddle.cache.cache import Cache
from heddle.errors import (
    ContextLengthError,
    HeddleError,
    InvalidRequestError,
    OverloadedError,
)
from heddle.outputs import FinishReason
from heddle.sampling_params import SamplingParams
from heddle.scheduler.outcomes import TokenEvent
from heddle.scheduler.pace import Pace
from heddle.scheduler.scheduler import Scheduler
from heddle.scheduler.sequence import Sequence, SlotState
from heddle.state import PAGE_TOKENS, StateMemory
from heddle.step import Failed, Sampled, StepPlan, StepResult
from steps import execute


class Rig:
    """A scheduler and a fake executor, stepped by hand."""

    def __init__(
        self, slots: int = 4, batch_tokens: int = 64, queue: int = 4, pages: int = 64, context=1024
    ) -> None:
        self.cache = Cache(StateMemory(pages))
        self.scheduler = Scheduler(slots, batch_tokens, queue, self.cache, context)
        self.executor = FakeExecutor(pages)
        self.plan = StepPlan((), ())

    def sequence(self, identity: int, prompt: int, ignore_eos: bool = True, **params) -> Sequence:
        params = SamplingParams(seed=identity, ignore_eos=ignore_eos, **params)  # type: ignore[assignment]
        tokens = [(identity + i) % 31 + 1 for i in range(prompt)]
        ends = frozenset() if ignore_eos else frozenset({END})
        return Sequence(identity, params, tokens, prompt, ends)

    def add(self, identity: int, prompt: int, **params) -> Sequence:
        sequence = self.sequence(identity, prompt, **params)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> list[TokenEvent]:
        assert self.executor.steps < 1000, "no end in sight"
        self.plan = self.scheduler.schedule()
        events = self.scheduler.update(execute(self.executor, self.plan))
        check_cache(self.cache)
        return events

    def shares(self) -> list[tuple[int, int]]:
        """(slot, tokens) of the last step."""
        return [(chunk.slot, len(chunk.tokens)) for chunk in self.plan.chunks]

    def states(self) -> list[SlotState]:
        return [s.state if s else SlotState.FREE for s in self.scheduler.slots]


class TenAtMost(Pace):
    """Allows ten prompt tokens beside any number of streams, and records observations."""

    def __init__(self) -> None:
        self.observed: list[tuple[int, int, float]] = []

    def observe(  # type: ignore[override]
        self, decodes: int, prompt_tokens: int, seconds: float, guesses: int = 0
    ) -> None:
        assert not guesses
        self.observed.append((decodes, prompt_tokens, seconds))

    def allowance(self, decodes: int) -> int:
        assert decodes > 0
        return 10


def test_prefill_beside_decode_gets_the_allowance_of_the_pace() -> None:
    rig, pace = Rig(), TenAtMost()
    rig.scheduler = Scheduler(4, 64, 4, rig.cache, 1024, pace)
    stream = rig.add(1, prompt=40)
    rig.step()
    assert rig.shares() == [(0, 40)]  # no stream is decoding yet
    rig.add(2, prompt=25)
    for second, share in enumerate((10, 10, 5)):
        plan = rig.scheduler.schedule()
        assert [len(chunk.tokens) for chunk in plan.chunks] == [1, share]
        rig.scheduler.update(execute(rig.executor, plan), float(second))
    assert pace.observed == [(1, 10, 0.0), (1, 10, 1.0), (1, 5, 2.0)]
    rig.scheduler.cancel(stream.id)
    rig.add(3, prompt=30)
    rig.add(4, prompt=30)
    plan = rig.scheduler.schedule()  # the second sequence decodes now
    assert [len(chunk.tokens) for chunk in plan.chunks] == [1, 10]


def test_a_scored_token_counts_for_more_than_one() -> None:
    rig, pace = Rig(), TenAtMost()
    rig.scheduler = Scheduler(4, 64, 4, rig.cache, 1024, pace, score_cost=0.5)
    rig.add(1, prompt=4)
    rig.step()
    rig.add(2, prompt=8, max_tokens=9, prompt_logprobs=0)
    rig.add(3, prompt=30)
    for second, shares in enumerate(([6, 1], [2, 7], [1, 10])):  # 6 cost 9 of 10, and 2 cost 3
        plan = rig.scheduler.schedule()
        assert [len(chunk.tokens) for chunk in plan.chunks] == [1, *shares]
        rig.scheduler.update(execute(rig.executor, plan), float(second))
    assert pace.observed == [(1, 10.0, 0.0), (1, 10.0, 1.0), (2, 10.0, 2.0)]


class Wrong:
    """Guesses tokens that never come."""

    def guess(self, sequences: list[Sequence], most: int) -> dict[int, list[int]]:
        return {sequence.id: [END] * 4 for sequence in sequences}

    def learn(self, sequence: Sequence, tokens: list[int], guesses: int) -> None:
        pass


def test_a_page_that_held_only_wrong_guesses_is_given_back() -> None:
    rig, wrong = Rig(), Wrong()
    rig.scheduler = Scheduler(4, 64, 4, rig.cache, 1024, speculator=wrong)  # type: ignore[arg-type]
    sequence = rig.add(1, prompt=29)
    rig.step()
    plan = rig.scheduler.schedule()
    assert (plan.chunks[0].guesses, len(sequence.table.pages)) == (4, 2)
    rig.scheduler.update(execute(rig.executor, plan))
    assert (sequence.total, sequence.computed, len(sequence.table.pages)) == (31, 30, 1)


def test_a_token_whose_mask_may_be_late_is_uncertain() -> None:
    rig = Rig()
    plain, held = rig.sequence(1, prompt=5), rig.sequence(2, prompt=5)
    held.rules = replace(held.rules, grammar=object())  # type: ignore[arg-type]
    for sequence, waits in ((plain, 0), (held, 1)):
        sequence.limit = 100
        assert sequence.chunk(4).uncertain == 0, "it samples nothing"
        assert sequence.chunk(5).uncertain == waits
        assert sequence.chunk(5, [7, 8]).uncertain == 2 + waits


def test_a_sequence_ends_at_max_tokens() -> None:
    rig = Rig(slots=2)
    sequence = rig.add(1, prompt=5, max_tokens=3)
    assert (rig.states(), rig.scheduler.queue.waiting) == ([SlotState.FREE] * 2, 1)
    events = [event for _ in range(3) for event in rig.step()]
    assert [event.outcome.token for event in events] == sequence.tokens[5:]
    assert [event.finish for event in events] == [None, None, FinishReason.LENGTH]
    assert rig.executor.plans == [[(0, 0, 5)], [(0, 5, 1)], [(0, 6, 1)]]
    assert (rig.states(), rig.cache.pages.available) == ([SlotState.FREE] * 2, 64)
    assert not rig.scheduler.busy


def test_an_end_token_finishes_with_stop() -> None:
    rig = Rig()
    sequence = rig.add(3, prompt=4, ignore_eos=False)
    while rig.scheduler.busy:
        events = rig.step()
    assert events[-1].finish is FinishReason.STOP
    assert sequence.tokens[-1] == END
    assert END not in sequence.tokens[4:-1]


def test_prefill_takes_the_budget_that_decode_leaves() -> None:
    rig = Rig(batch_tokens=16)
    rig.add(1, prompt=4)
    rig.step()
    rig.add(2, prompt=40)
    seen = []
    for _ in range(4):
        rig.step()
        seen.append((rig.shares(), rig.states()[:2]))
    prefilling = [SlotState.GENERATING, SlotState.PREFILLING]
    generating = [SlotState.GENERATING, SlotState.GENERATING]
    assert seen == [
        ([(0, 1), (1, 15)], prefilling),
        ([(0, 1), (1, 15)], prefilling),
        ([(0, 1), (1, 10)], generating),
        ([(0, 1), (1, 1)], generating),
    ]


def test_prefill_goes_in_arrival_order() -> None:
    rig = Rig(batch_tokens=16)
    rig.add(1, prompt=20)
    rig.add(2, prompt=3)
    rig.add(3, prompt=30)
    shares = []
    for _ in range(3):
        rig.step()
        shares.append(rig.shares())
    assert shares == [[(0, 16)], [(0, 4), (1, 3), (2, 9)], [(0, 1), (1, 1), (2, 14)]]


def test_decodes_beyond_the_budget_take_turns() -> None:
    rig = Rig(slots=4, batch_tokens=3)
    for identity in range(4):
        rig.add(identity, prompt=1)
    while any(state is not SlotState.GENERATING for state in rig.states()):
        rig.step()
    served = [0] * 4
    for _ in range(8):
        rig.step()
        assert sum(count for _, count in rig.shares()) == 3
        for slot, _ in rig.shares():
            served[slot] += 1
    assert served == [6, 6, 6, 6]


def test_prefill_takes_turns_with_decodes_that_fill_the_budget() -> None:
    rig = Rig(slots=3, batch_tokens=2)
    rig.add(1, prompt=1)
    rig.add(2, prompt=1)
    rig.step()
    late = rig.add(3, prompt=6, max_tokens=1)
    for _ in range(9):
        rig.step()
    assert late.total == 7


def test_the_queue_bound_counts_only_sequences_without_a_free_slot() -> None:
    rig = Rig(slots=2, queue=1)
    for identity in range(3):
        rig.add(identity, prompt=2)
    with pytest.raises(OverloadedError, match="3 requests running or waiting"):
        rig.add(3, prompt=2)
    rig.step()
    with pytest.raises(OverloadedError):
        rig.add(4, prompt=2)
    assert rig.scheduler.cancel(0)
    rig.add(5, prompt=2)


def test_several_sequences_are_added_all_or_none() -> None:
    rig = Rig(slots=2, queue=1)
    rig.add(0, prompt=2)
    with pytest.raises(OverloadedError):
        rig.scheduler.add(*(rig.sequence(identity, 2) for identity in (1, 2, 3)))
    too_long = rig.sequence(5, 2000)
    with pytest.raises(ContextLengthError):
        rig.scheduler.add(rig.sequence(4, 2), too_long)
    assert rig.scheduler.queue.waiting == 1
    with pytest.raises(InvalidRequestError, match="4 requests sent at once") as error:
        rig.scheduler.add(*(rig.sequence(identity, 2) for identity in range(6, 10)))
    assert error.value.param == "n"


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    rig = Rig(context=50)
    with pytest.raises(ContextLengthError, match="50 tokens; the context holds 50"):
        rig.add(1, prompt=50)
    rig.add(2, prompt=49)


def test_a_prompt_that_fills_the_pages_is_refused() -> None:
    rig = Rig(pages=2)
    with pytest.raises(ContextLengthError, match="the KV cache holds 64"):
        rig.add(1, prompt=64)
    rig.add(2, prompt=63)


@pytest.mark.parametrize(("pages", "context", "total"), [(64, 50, 50), (2, 1024, 64)])
def test_output_ends_at_the_context_or_the_last_page(pages: int, context: int, total: int) -> None:
    rig = Rig(pages=pages, context=context)
    for most in (None, 1000):
        sequence = rig.add(1, prompt=40, max_tokens=most)
        while rig.scheduler.busy:
            events = rig.step()
        assert events[-1].finish is FinishReason.LENGTH
        assert sequence.total == total


def test_pages_are_taken_one_at_a_time_as_needed() -> None:
    rig = Rig(batch_tokens=PAGE_TOKENS)
    rig.add(1, prompt=4 * PAGE_TOKENS)
    for used in (1, 2, 3, 4, 5):
        rig.step()
        assert rig.cache.pages.size - rig.cache.pages.available == used


def test_the_youngest_sequence_is_preempted_and_resumes() -> None:
    rig = Rig(slots=3, batch_tokens=512, pages=6)
    prompts = {1: 40, 2: 40, 3: 20}
    sequences = [rig.add(i, prompt=n, max_tokens=70) for i, n in prompts.items()]
    preempted: list[int] = []
    while rig.scheduler.busy:
        before = rig.scheduler.admission.preemptions
        rig.step()
        if rig.scheduler.admission.preemptions > before:
            held = {sequence.id for sequence in rig.scheduler.slots if sequence}
            preempted += [s.id for s in sequences if not s.ended and s.id not in held]
    assert preempted == [3, 2, 3]  # 3 is queued again, behind 2
    for sequence in sequences:
        prompt = sequence.tokens[: sequence.prompt_tokens]
        assert sequence.tokens == prompt + solo_output(prompt, sequence.params, 6 * PAGE_TOKENS)


def test_a_resumed_sequence_samples_only_after_all_its_tokens_are_computed() -> None:
    rig = Rig(slots=2, batch_tokens=32, pages=4)
    rig.add(1, prompt=60, max_tokens=10)
    younger = rig.add(2, prompt=60, max_tokens=10)
    while not rig.scheduler.admission.preemptions:
        rig.step()
    tokens = list(younger.tokens)
    assert (younger.computed, younger.table.pages, younger.output_tokens > 0) == (0, [], True)
    while not (events := [e for e in rig.step() if e.sequence is younger]):
        for binding in rig.plan.bindings:
            assert [*binding.prompt, *binding.output] == tokens
            assert len(binding.prompt) == 60
    assert younger.tokens[:-1] == tokens
    assert events[0].outcome.token == younger.tokens[-1]


def test_a_prompt_is_not_admitted_while_it_would_be_preempted_at_once() -> None:
    rig = Rig(slots=2, batch_tokens=32, pages=4)
    rig.add(1, prompt=70, max_tokens=20)
    rig.add(2, prompt=40, max_tokens=5)  # one page is free, and it needs two
    while rig.scheduler.busy:
        rig.step()
    assert rig.scheduler.admission.preemptions == 0


def test_a_short_prompt_does_not_overtake_a_long_one_that_waits_for_pages() -> None:
    rig = Rig(slots=3, batch_tokens=128, pages=4)
    first = rig.add(1, prompt=70, max_tokens=3)
    rig.add(2, prompt=40)
    short = rig.add(3, prompt=2, max_tokens=1)
    while not first.ended:
        rig.step()
        assert rig.scheduler.queue.waiting == 2
    rig.step()
    assert short.ended


def test_cancel_removes_a_sequence_from_the_queue() -> None:
    rig = Rig(slots=1)
    rig.add(1, prompt=2)
    rig.step()
    waiting = rig.add(2, prompt=2)
    assert rig.scheduler.cancel(waiting.id)
    assert not rig.scheduler.cancel(waiting.id)
    assert rig.scheduler.queue.waiting == 0


def test_cancel_between_steps_frees_the_slot_at_once() -> None:
    rig = Rig(slots=1)
    sequence = rig.add(1, prompt=2)
    rig.step()
    assert rig.scheduler.cancel(sequence.id)
    assert (rig.states(), rig.cache.pages.available) == ([SlotState.FREE], 64)


def test_cancel_during_a_step_drains_the_slot() -> None:
    rig = Rig(slots=1)
    sequence = rig.add(1, prompt=2)
    plan = rig.scheduler.schedule()
    assert rig.scheduler.cancel(sequence.id)
    assert (rig.states(), rig.cache.pages.available) == ([SlotState.DRAINING], 63)
    assert rig.scheduler.update(execute(rig.executor, plan)) == []
    assert (rig.states(), rig.cache.pages.available) == ([SlotState.FREE], 64)
    assert sequence.output_tokens == 0


def test_a_failed_step_ends_only_the_sequences_of_its_plan() -> None:
    rig = Rig(slots=2, queue=4, batch_tokens=1)
    carried, spared, queued = (rig.add(i, prompt=1, max_tokens=2) for i in (1, 2, 3))
    rig.scheduler.schedule()
    assert rig.scheduler.abandon() == [carried]
    assert (carried.ended, spared.ended, queued.ended) == (True, False, False)
    check_cache(rig.cache)
    assert not rig.scheduler.cancel(carried.id)
    while rig.scheduler.busy:
        rig.step()
    assert (spared.output_tokens, queued.output_tokens) == (2, 2)
    assert rig.cache.pages.available == 64


def test_a_failed_step_does_not_end_a_cancelled_sequence_twice() -> None:
    rig = Rig()
    sequence = rig.add(1, prompt=2)
    rig.scheduler.schedule()
    rig.scheduler.cancel(sequence.id)
    assert rig.scheduler.abandon() == []
    assert rig.states() == [SlotState.FREE] * 4


def test_a_result_that_does_not_match_the_plan_is_refused() -> None:
    rig = Rig()
    rig.add(1, prompt=2)
    rig.scheduler.schedule()
    with pytest.raises(ValueError, match="an outcome for each request"):
        rig.scheduler.update(StepResult((Sampled(3, 1, 0.0),)))


def test_a_failed_outcome_ends_only_its_sequence() -> None:
    rig = Rig(slots=2)
    failing, sound = rig.add(1, prompt=5), rig.add(2, prompt=5)
    error = HeddleError("no token")
    plan = rig.scheduler.schedule()
    first, second = execute(rig.executor, plan).sampled
    events = rig.scheduler.update(StepResult((Failed(first.slot, error), second)))
    assert events[0] == TokenEvent(failing, Failed(0, error), FinishReason.ERROR)
    assert events[1] == TokenEvent(sound, second, None)
    assert (failing.ended, failing.total) == (True, 5)
    assert rig.states() == [SlotState.FREE, SlotState.GENERATING]
    check_cache(rig.cache)
    assert rig.cache.pages.available == 63


def test_a_failed_outcome_of_a_cancelled_sequence_gives_no_event() -> None:
    rig = Rig(slots=1)
    rig.add(1, prompt=5)
    rig.scheduler.schedule()
    rig.scheduler.cancel(1)
    assert rig.scheduler.update(StepResult((Failed(0, HeddleError("no token")),))) == []
    assert (rig.states(), rig.cache.pages.available) == ([SlotState.FREE], 64)


def test_a_full_queue_says_when_a_place_is_free() -> None:
    rig = Rig(slots=2, queue=0)
    for identity in range(2):
        rig.add(identity, prompt=10, max_tokens=41)
    with pytest.raises(OverloadedError) as error:
        rig.add(3, prompt=2)
    assert error.value.retry_after == 1.0  # no step was timed yet
    for _ in range(2):
        plan = rig.scheduler.schedule()
        tokens = sum(len(chunk.tokens) for chunk in plan.chunks)
        rig.scheduler.update(execute(rig.executor, plan), tokens / 10)
    with pytest.raises(OverloadedError, match="about 4 s") as error:
        rig.add(3, prompt=2)
    assert error.value.retry_after == pytest.approx((1 + 39) / 10)  # at 10 tokens per second
    rig.scheduler.cancel(0)
    rig.add(4, prompt=2)


class Rows:
    """Stands in for a speculator that guesses nothing: records how many rows guesses may have."""

    def guess(self, sequences: list[Sequence], rows: int) -> dict[int, list[int]]:
        self.rows = rows
        return {}

    def learn(self, *step: object) -> None:
        pass


def test_after_a_memory_error_steps_have_half_of_the_tokens_and_no_more_rows() -> None:
    rig, rows = Rig(), Rows()
    rig.scheduler = Scheduler(4, 64, 4, rig.cache, 1024, speculator=rows)  # type: ignore[arg-type]
    stream = rig.add(1, prompt=20)
    rig.scheduler.schedule()
    assert rig.scheduler.shrink_steps() == 10
    assert (stream.slot, stream.computed, stream.table.pages) == (-1, 0, [])
    rig.executor = FakeExecutor(64)
    for share in (10, 10, 1):
        rig.step()
        assert rig.shares() == [(0, share)]
    assert rows.rows == 10 - 1


@pytest.mark.parametrize(("tokens", "whole_prompts"), [(1, False), (20, True)])
def test_a_step_that_cannot_be_smaller_stays(tokens: int, whole_prompts: bool) -> None:
    rig = Rig()
    cache = Cache(StateMemory(64), enabled=False)
    rig.scheduler = Scheduler(4, 64, 4, cache, 64, whole_prompts=whole_prompts)
    stream = rig.add(1, prompt=tokens)
    rig.scheduler.schedule()
    assert rig.scheduler.shrink_steps() is None
    assert stream.slot == 0


def test_snapshots_are_taken_at_multiples_and_at_the_end_of_the_prompt() -> None:
    memory = StateMemory(64, snapshots=8, snapshot_bytes=4, snapshot_tokens=64)
    rig, taken = Rig(), list[int]()
    rig.cache = Cache(memory)
    rig.executor = FakeExecutor(64, snapshots=8)
    rig.scheduler = Scheduler(4, 64, 4, rig.cache, 1024)
    sequence = rig.add(1, prompt=100, max_tokens=40)
    while rig.scheduler.busy:
        rig.step()
        taken += [sequence.computed] * len(rig.plan.snapshots)
        assert rig.plan.clears == ((0,) if sequence.computed == 64 else ())
    assert taken == [64, 100, 128]


def test_waiting_tokens_are_those_of_sequences_without_a_slot() -> None:
    rig = Rig(slots=1, queue=4)
    assert (rig.scheduler.waiting_tokens(), rig.scheduler.busy_rate) == (0, 0.0)
    rig.add(1, prompt=5, max_tokens=3)
    rig.step()
    assert rig.scheduler.waiting_tokens() == 0
    rig.add(2, prompt=7, max_tokens=4)
    rig.add(3, prompt=2, max_tokens=1)
    assert rig.scheduler.waiting_tokens() == 7 + 4 + 2 + 1
    rig.scheduler.cancel(3)
    assert rig.scheduler.waiting_tokens() == 11
