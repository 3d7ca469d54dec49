"""Shared prefixes, one rule at a time: prefix hits, followers, and computed tokens."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from cache_integrity import check_cache
from fake_executor import FakeExecutor, solo_output
from heddle.cache.cache import Cache
from heddle.cache.radix import RUN_TOKENS
from heddle.sampling_params import SamplingParams
from heddle.scheduler.scheduler import Scheduler
from heddle.scheduler.sequence import Sequence, SlotState
from heddle.state import PAGE_TOKENS, StateMemory
from heddle.step import StepPlan
from steps import execute


def words(number: int, length: int) -> list[int]:
    """Tokens that differ from the first on for each number."""
    return [number, *((number * i) % 31 + 1 for i in range(1, length))]


class Rig:
    """A scheduler with a prefix cache and a fake executor, stepped by hand."""

    def __init__(
        self, slots: int = 8, batch_tokens: int = 64, pages: int = 200, *, enabled: bool = True
    ) -> None:
        self.cache = Cache(StateMemory(pages), enabled=enabled)
        self.scheduler = Scheduler(slots, batch_tokens, 64, self.cache, context=2048)
        self.executor = FakeExecutor(pages)
        self.plan = StepPlan((), ())
        self.sequences: list[Sequence] = []

    def add(self, prompt: list[int], most: int = 4, salt: str | None = None) -> Sequence:
        params = SamplingParams(seed=1, max_tokens=most, ignore_eos=True, cache_salt=salt)
        identity = len(self.sequences)
        sequence = Sequence(identity, params, list(prompt), len(prompt), frozenset())
        self.sequences.append(sequence)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> None:
        assert self.executor.steps < 1000, "no end in sight"
        self.plan = self.scheduler.schedule()
        self.scheduler.update(execute(self.executor, self.plan))
        check_cache(self.cache)

    def finish(self) -> None:
        while self.scheduler.busy:
            self.step()
        for sequence in self.sequences:
            prompt = sequence.tokens[: sequence.prompt_tokens]
            said = sequence.tokens[sequence.prompt_tokens :]
            assert said == solo_output(prompt, sequence.params, 2048)[: len(said)]

    @property
    def computed(self) -> int:
        return self.scheduler.computed_prompt_tokens


def test_a_computed_prompt_is_a_prefix_hit() -> None:
    rig = Rig()
    rig.add(words(1, 100))
    rig.finish()
    again = rig.add(words(1, 100))
    rig.finish()
    assert (again.cached_tokens, rig.computed) == (99, 101)


def test_a_hit_copies_its_last_page_and_shares_the_others() -> None:
    rig = Rig()
    first = rig.add(words(1, 100) + words(2, 30), most=50)
    for _ in range(3):
        rig.step()
    second = rig.add(words(1, 100) + words(3, 30))
    rig.step()
    [copy] = rig.plan.copies
    assert (copy.source, copy.target) == (first.table.pages[3], second.table.pages[3])
    assert copy.source != copy.target
    assert first.table.pages[:3] == second.table.pages[:3]
    assert second.cached_tokens == 100
    rig.step()
    assert rig.plan.copies == ()
    rig.finish()


def test_a_hit_of_whole_pages_copies_no_page() -> None:
    rig = Rig()
    rig.add(words(1, 2 * PAGE_TOKENS))
    rig.finish()
    second = rig.add(words(1, 2 * PAGE_TOKENS) + words(2, 10))
    rig.step()
    assert (rig.plan.copies, second.cached_tokens) == ((), 2 * PAGE_TOKENS)
    rig.finish()


def test_the_next_turn_hits_the_conversation_except_its_last_token() -> None:
    rig = Rig()
    turn = rig.add(words(1, 50), most=25)
    rig.finish()
    following = rig.add(turn.tokens + words(2, 9))
    rig.finish()
    assert following.cached_tokens == 50 + 25 - 1


def test_a_running_sequence_is_found_up_to_its_computed_tokens() -> None:
    rig = Rig(batch_tokens=40)
    rig.add(words(1, 400))
    for _ in range(3):
        rig.step()
    second = rig.add(words(1, 110) + words(2, 5))
    rig.step()
    assert (second.leader, second.computed) == (None, 110)
    rig.finish()


@pytest.mark.parametrize("prefix", [64, 100, 1, 33])
@pytest.mark.parametrize("batch_tokens", [16, 512])
@pytest.mark.parametrize("tail", [1, 7, 40])
def test_simultaneous_requests_compute_their_prefix_once(
    prefix: int, batch_tokens: int, tail: int
) -> None:
    rig = Rig(batch_tokens=batch_tokens)
    for number in range(8):
        rig.add(words(1, prefix) + words(number + 2, tail))
    rig.finish()
    assert rig.computed == prefix + 8 * tail


def test_identical_prompts_compute_all_but_their_last_token_once() -> None:
    rig = Rig(batch_tokens=16)
    for _ in range(8):
        rig.add(words(1, 100))
    rig.finish()
    assert rig.computed == 100 + 7


def test_prompts_that_are_prefixes_of_each_other_share_tokens() -> None:
    rig = Rig(batch_tokens=16)
    for length in (50, 150, 100, 20, 200):
        rig.add(words(1, length))
    rig.finish()
    assert rig.computed == 50 + 100 + 1 + 1 + 50


def test_a_follower_holds_a_slot_and_computes_no_tokens() -> None:
    rig = Rig(slots=2, batch_tokens=32)
    rig.add(words(1, 70))
    second = rig.add(words(1, 64) + words(2, 40))
    for _ in range(2):
        rig.step()
        assert (second.slot, second.state) == (1, SlotState.WAITING_FOR_PREFIX)
        assert [chunk.slot for chunk in rig.plan.chunks] == [0]
    rig.step()
    assert second.state is SlotState.PREFILLING
    assert [(chunk.slot, chunk.start) for chunk in rig.plan.chunks] == [(0, 64), (1, 64)]
    rig.finish()


def test_followers_continue_from_the_pages_of_a_cancelled_leader() -> None:
    rig = Rig(batch_tokens=32)
    for number in range(4):
        rig.add(words(1, 200) + words(number + 2, 10))
    for _ in range(3):
        rig.step()
    rig.scheduler.cancel(0)
    rig.step()
    second, third, fourth = rig.sequences[1:]
    assert second.cached_tokens == 96
    assert (third.leader, fourth.leader) == (second, second)
    rig.finish()
    assert rig.computed == 200 + 3 * 10


def test_followers_continue_after_a_failed_step_of_their_leader() -> None:
    rig = Rig(batch_tokens=32)
    for number in range(3):
        rig.add(words(1, 200) + words(number + 2, 10))
    rig.step()
    rig.scheduler.schedule()
    assert rig.scheduler.abandon() == rig.sequences[:1]
    rig.finish()
    assert rig.sequences[1].cached_tokens == 32
    assert rig.computed == 200 + 2 * 10


def test_a_sequence_follows_the_one_that_shares_most_tokens() -> None:
    rig = Rig(batch_tokens=16)
    rig.add(words(1, 100))
    second = rig.add(words(1, 60) + words(2, 60))
    third = rig.add(words(1, 60) + words(2, 50) + words(3, 8))
    rig.step()
    assert (third.leader, third.shared_tokens) == (second, 110)
    rig.finish()
    assert rig.computed == 100 + 60 + 8


def test_a_decoding_sequence_is_not_followed() -> None:
    rig = Rig()
    first = rig.add(words(1, 40), most=20)
    rig.step()
    ahead = solo_output(first.tokens[:40], first.params, 2048)
    second = rig.add(first.tokens[:40] + ahead[:10])
    rig.step()
    assert (second.leader, second.cached_tokens) == (None, 40)


def test_sequences_of_different_salts_share_nothing() -> None:
    rig = Rig(batch_tokens=16)
    for salt in ("one", "other", None):
        rig.add(words(1, 100), salt=salt)
    rig.finish()
    assert rig.computed == 300
    again = rig.add(words(1, 100), salt="other")
    rig.finish()
    assert (again.cached_tokens, rig.computed) == (99, 301)


def test_without_the_prefix_cache_every_prompt_is_computed() -> None:
    rig = Rig(batch_tokens=16, enabled=False)
    for _ in range(3):
        rig.add(words(1, 100))
    rig.finish()
    rig.add(words(1, 100))
    rig.finish()
    assert rig.computed == 400


def test_followers_compute_alone_once_the_cache_is_disabled() -> None:
    rig = Rig(batch_tokens=32)
    for number in range(3):
        rig.add(words(1, 200) + words(number + 2, 10))
    rig.step()
    rig.cache.set_enabled(False)
    rig.step()
    assert all(s.leader is None for s in rig.sequences)
    rig.finish()
    assert (rig.computed, rig.cache.stats().nodes) == (3 * 210, 0)


def test_after_a_flush_a_follower_without_pages_starts_over() -> None:
    rig = Rig(batch_tokens=32)
    for number in range(3):
        rig.add(words(1, 200) + words(number + 2, 10))
    rig.step()
    rig.cache.flush()
    rig.step()
    first, second, third = rig.sequences
    assert (first.table.cursor, second.leader, third.leader) == (None, None, second)
    rig.finish()
    assert rig.computed == 2 * 210 + 10


def test_after_a_flush_a_follower_keeps_its_pages() -> None:
    rig = Rig(batch_tokens=32)
    rig.add(words(1, 64))
    rig.finish()
    rig.add(words(1, 64) + words(2, 200))
    second = rig.add(words(1, 64) + words(2, 150) + words(3, 5))
    rig.step()
    assert second.leader is not None
    rig.cache.flush()
    rig.step()
    assert (second.leader, second.computed) == (None, 64)
    rig.finish()
    assert rig.computed == 64 + 200 + 155


def test_a_preempted_sequence_resumes_from_its_cached_prefix() -> None:
    rig = Rig(slots=2, pages=12)
    rig.add(words(1, 150), most=60)
    younger = rig.add(words(2, 150), most=60)
    while not rig.scheduler.admission.preemptions:
        rig.step()
    computed, total = rig.computed, younger.total
    assert younger.slot < 0
    rig.finish()
    assert rig.computed - computed == 150 - RUN_TOKENS, "the end of it made room for the older"
    assert younger.cached_tokens == 0, "of the prompt, when it first began"
    assert total < younger.total


def test_a_follower_that_is_preempted_starts_over() -> None:
    """The output of three other sequences takes the pages that the follower had claimed."""
    rig = Rig(batch_tokens=4, pages=13)
    for number in (2, 3, 4):
        rig.add(words(number, 1), most=200)
    rig.add(words(1, 160))
    waits = rig.add(words(1, 150) + words(5, 5))
    while not rig.scheduler.admission.preemptions:
        rig.step()
        assert waits.slot < 0 or waits.leader is not None
    assert (waits.slot, waits.leader) == (-1, None)
    rig.finish()


def test_a_prompt_that_fills_the_cache_is_hit_by_whole_pages_only() -> None:
    """The pool has no page for the copy while the source page is held."""
    rig = Rig(pages=2)
    rig.add(words(1, 63))
    rig.finish()
    again = rig.add(words(1, 63))
    rig.finish()
    assert again.cached_tokens == PAGE_TOKENS


def test_a_failed_sequence_leaves_no_prefix() -> None:
    rig = Rig()
    prompt = words(1, 50)
    rig.executor.poisonous = lambda history: len(history) == 53
    rig.add(prompt, most=9)
    rig.finish()
    assert rig.cache.prefixes.match(None, prompt).length == 0


def test_a_cancelled_sequence_that_fails_leaves_no_prefix() -> None:
    rig = Rig()
    prompt = words(1, 50)
    rig.executor.poisonous = lambda history: True
    sequence = rig.add(prompt)
    plan = rig.scheduler.schedule()
    rig.scheduler.cancel(sequence.id)
    assert rig.scheduler.update(execute(rig.executor, plan)) == []
    assert rig.cache.prefixes.match(None, prompt).length == 0


def test_a_request_with_another_salt_follows_nobody() -> None:
    rig = Rig(batch_tokens=32)
    for salt in ("mine", "yours", None, "mine"):
        rig.add(words(1, 100), salt=salt)
    rig.step()
    assert [one.leader for one in rig.sequences] == [None, None, None, rig.sequences[0]]
    rig.finish()
    assert rig.computed == 3 * 100 + 1


def test_followers_do_not_wait_for_a_mask() -> None:
    rig = Rig(slots=2, batch_tokens=32)
    leader = rig.add(words(1, 100))
    follower = rig.add(words(1, 80))
    rig.step()
    assert follower.leader is leader
    leader.awaited = Future()
    rig.step()
    assert (follower.leader, follower.cached_tokens) == (None, 32)
