"""Sequences with pictures in slots, steps and the prefix tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fake_executor import solo_output
from fake_sight import SeeingExecutor, lay, look_at, rows_of, shown
from heddle.cache.cache import Cache
from heddle.errors import InvalidRequestError
from heddle.sampling_params import SamplingParams
from heddle.scheduler.scheduler import Scheduler
from heddle.scheduler.sequence import Sequence
from heddle.scheduler.waits import WaitReason
from heddle.state import PAGE_TOKENS
from heddle.step import Failed
from steps import execute

if TYPE_CHECKING:
    from heddle.pictures import Laid
    from heddle.step import StepPlan


class Rig:
    def __init__(self, pages: int = 32, slots: int = 4, batch_tokens: int = 64, **more: Any):
        self.executor = SeeingExecutor(pages, **more)
        self.cache = Cache(self.executor.memory)
        self.scheduler = Scheduler(slots, batch_tokens, 8, self.cache, 400)
        self.executor.holders = self.scheduler.slots
        self.output: dict[int, list[int]] = {}

    def make(self, prompt: Laid | list[int], **fields: Any) -> Sequence:
        tokens, pictures = (prompt, None) if isinstance(prompt, list) else (
            prompt.tokens, prompt.pictures
        )  # fmt: skip
        params = SamplingParams(seed=1, ignore_eos=True, **{"max_tokens": 3} | fields)
        number = len(self.output)
        self.output[number] = []
        return Sequence(
            number, params, [*tokens], len(tokens), frozenset(), pictures=pictures
        )  # fmt: skip

    def add(self, prompt: Laid | list[int], **fields: Any) -> Sequence:
        sequence = self.make(prompt, **fields)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        if plan.chunks:
            for event in self.scheduler.update(execute(self.executor, plan)):
                assert not isinstance(event.outcome, Failed)
                self.output[event.sequence.id].append(event.outcome.token)  # type: ignore[union-attr]
        return plan

    def run(self) -> None:
        while self.scheduler.busy:
            assert self.step().chunks

    def complete(self, prompt: Laid | list[int], **fields: Any) -> Sequence:
        sequence = self.add(prompt, **fields)
        self.run()
        self.check(sequence)
        return sequence

    def check(self, sequence: Sequence) -> None:
        """Its output is that of its prompt alone."""
        prompt = shown(sequence.tokens[: sequence.prompt_tokens], sequence.pictures)
        assert self.output[sequence.id] == solo_output(prompt, sequence.params, 400)


def sizes(plan: StepPlan) -> dict[int, int]:
    return {chunk.slot: len(chunk.tokens) for chunk in plan.chunks}


def test_equal_pictures_share_a_prefix_and_others_do_not() -> None:
    rig = Rig()
    assert rig.complete(lay([1, 2], look_at(1, 40), [3])).cached_tokens == 0
    assert rig.complete(lay([1, 2], look_at(1, 40), [4])).cached_tokens == 42
    assert rig.complete(lay([1, 2], look_at(2, 40), [3])).cached_tokens == 2


def test_the_output_after_a_picture_is_a_prefix_too() -> None:
    rig = Rig()
    first = rig.complete(lay([1], look_at(1, 8)), max_tokens=50)
    look = first.pictures.spans[0].look  # type: ignore[union-attr]
    later = rig.complete(lay([1], look, first.tokens[9:]))
    assert later.cached_tokens == 58


@pytest.mark.parametrize("whole", [False, True])
def test_a_hit_may_end_within_a_picture(whole: bool) -> None:
    rig = Rig(pages=3, batch_tokens=100)  # no page is left for a copy of the last one
    for cached in (0, 2 * PAGE_TOKENS):
        sequence = rig.complete(lay([1], look_at(1, 90), [2], whole=whole), max_tokens=1)
        assert sequence.cached_tokens == cached


def test_a_sequence_waits_for_the_rows_that_it_lacks() -> None:
    rig = Rig()
    look = look_at(1, 5, seen=False)
    sequence, other = rig.add(lay([1, 2], look, [3])), rig.add([4, 5])
    assert sizes(rig.step()) == {1: 2}
    assert rig.scheduler.wait_reason(sequence) is WaitReason.EYES
    assert not other.waits
    look.take(rows_of(1, 5))
    rig.run()
    rig.check(sequence)
    rig.check(other)


def test_a_follower_shares_a_picture_with_its_leader() -> None:
    rig = Rig(batch_tokens=16)
    look = look_at(1, 40, seen=False)
    one, other = rig.add(lay([1], look, [2])), rig.add(lay([1], look, [3]))
    rig.step()
    assert (other.leader, other.shared_tokens) == (one, 41)
    assert rig.scheduler.wait_reason(other) is WaitReason.LEADER
    look.take(rows_of(1, 40))
    rig.run()
    rig.check(one)
    rig.check(other)
    assert sum(size for plan in rig.executor.plans for *_, size in plan) < 41 + 40


def test_a_preempted_sequence_comes_back_with_its_pictures() -> None:
    rig = Rig(batch_tokens=16)
    sequence = rig.add(lay([1], look_at(1, 40), [2]))
    rig.step()
    rig.step()  # within the picture
    rig.scheduler.admission.preempt(sequence)
    rig.run()
    rig.check(sequence)


# --- pictures whose tokens see one another -------------------------------------------------------


def test_a_picture_that_fits_no_step_is_refused() -> None:
    rig = Rig(batch_tokens=16)
    with pytest.raises(InvalidRequestError, match=r"17 tokens.*16 \(batch_tokens\)") as raised:
        rig.add(lay([1], look_at(1, 17), [2], whole=True))
    assert raised.value.param == "messages"
    with pytest.raises(InvalidRequestError, match="batch_tokens"):
        rig.scheduler.add_again(rig.make(lay([1], look_at(1, 17), whole=True)))
    assert not rig.scheduler.busy
    rig.complete(lay([1], look_at(1, 17), [2]))  # one whose tokens see those before them
    rig.complete(lay([1], look_at(2, 16), [2], whole=True))


def test_streams_do_not_shut_out_a_picture_of_a_whole_step() -> None:
    rig = Rig(batch_tokens=16)
    stream = rig.add([1, 2], max_tokens=90)
    rig.step()
    sequence = rig.add(lay([4], look_at(1, 16), [2], whole=True))
    assert sizes(rig.step()) == {0: 1, 1: 1}
    assert sizes(rig.step()) == {1: 16}
    assert sizes(rig.step()) == {0: 1, 1: 1}
    rig.run()
    rig.check(stream)
    rig.check(sequence)


def test_a_picture_waits_for_the_prompts_before_it() -> None:
    rig = Rig(batch_tokens=16)
    first = rig.add([1] * 20)
    sequence = rig.add(lay(look_at(1, 16), [2], whole=True))
    assert sizes(rig.step()) == {0: 16}
    assert sizes(rig.step()) == {0: 4}
    assert sizes(rig.step()) == {1: 16}
    rig.run()
    rig.check(first)
    rig.check(sequence)


def test_a_picture_takes_turns_with_decodes_that_fill_the_steps() -> None:
    rig = Rig(slots=4, batch_tokens=3)
    streams = [rig.add([number], max_tokens=60) for number in (1, 2, 3)]
    rig.step()
    sequence = rig.add(lay(look_at(1, 3), [2], whole=True))
    seen = [sizes(rig.step()) for _ in range(3)]
    assert {3: 3} in seen
    rig.run()
    for one in (*streams, sequence):
        rig.check(one)


def test_steps_stay_large_enough_for_a_picture() -> None:
    rig = Rig(batch_tokens=40)
    sequence = rig.add(lay([1] * 10, look_at(1, 22), [2], whole=True))
    rig.scheduler.schedule()
    assert rig.scheduler.shrink_steps() == 22
    assert sizes(rig.step()) == {0: 10}
    rig.scheduler.schedule()
    assert rig.scheduler.shrink_steps() is None, "the picture has 22 tokens"
    assert [one.id for one in rig.scheduler.abandon()] == [sequence.id]


# --- other ways ----------------------------------------------------------------------------------


def test_a_step_ahead_has_the_places_behind_the_pictures() -> None:
    rig = Rig(runs_ahead=True)
    rig.add(lay([1], look_at(1, 8), [2], axes=3), max_tokens=5)
    plan = rig.scheduler.schedule()
    rig.executor.submit(plan)
    ahead = rig.scheduler.schedule_ahead()
    assert ahead is not None
    [chunk] = ahead.chunks
    assert chunk.sight is not None
    assert np.array_equal(chunk.sight.places, [[3, 3, 3]])


def test_a_slot_shows_its_tokens_before_the_first_picture() -> None:
    rig = Rig()
    rig.complete(lay([1] * 40, look_at(1, 40), [2]))
    assert rig.scheduler.prefixes.latest(0, None) == ([1] * 40, 32)
    assert rig.scheduler.prefixes.erase(0, None) == 83
