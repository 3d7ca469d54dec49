"""When a step is planned before the tokens of the step in flight are known, and when not."""

from __future__ import annotations

from typing import Any

import pytest

from cache_integrity import check_cache
from fake_executor import FakeExecutor, solo_output
from heddle.cache.cache import Cache
from heddle.sampling_params import SamplingParams
from heddle.scheduler.scheduler import Scheduler
from heddle.scheduler.sequence import Sequence
from heddle.state import PAGE_TOKENS, WindowMemory
from steps import execute


class Saving:
    """Stands in for a disk tier with nothing on disk: counts the pages it must save."""

    def __init__(self) -> None:
        self.saved = 0

    def save(self, page: object) -> None:
        self.saved += 1

    def find(self, *asked: object) -> None:
        return None


class Rig:
    """A scheduler that plans ahead, and an executor that takes such steps."""

    def __init__(self, slots: int = 2, *, disk: Any = None, **memory: Any) -> None:
        self.executor = FakeExecutor(**memory)
        self.executor.runs_ahead = self.executor.may_go_back = True
        self.cache = Cache(self.executor.memory, disk=disk)
        self.scheduler = Scheduler(slots, 64, 8, self.cache, 512)
        self.sequences: list[Sequence] = []

    def add(self, prompt: int = 10, most: int = 200, *, driven: bool = False, **asked: Any):
        identity = len(self.sequences)
        params = SamplingParams(seed=identity, ignore_eos=True, max_tokens=most, **asked)
        tokens = [(7 * identity + i) % 31 + 1 for i in range(prompt)]
        sequence = Sequence(identity, params, tokens, prompt, frozenset(), driven=driven)
        self.sequences.append(sequence)
        self.scheduler.add(sequence)
        return sequence

    def step_until(self, sequence: Sequence, total: int) -> None:
        while sequence.total < total:
            self.scheduler.update(execute(self.executor, self.scheduler.schedule()))
            check_cache(self.cache)

    def begin(self) -> None:
        self.executor.submit(self.scheduler.schedule())

    def ahead(self) -> list[int] | None:
        """The slots of a step ahead, which the executor takes; None if there is none."""
        plan = self.scheduler.schedule_ahead()
        if plan is None:
            return None
        self.executor.submit(plan)
        return [chunk.slot for chunk in plan.chunks]

    def finish(self) -> None:
        """Collect the steps in flight and compute the rest. The outputs are those of alone."""
        while self.executor.submitted:
            self.scheduler.update(self.executor.collect())
            check_cache(self.cache)
        while self.scheduler.busy:
            self.scheduler.update(execute(self.executor, self.scheduler.schedule()))
        for sequence in self.sequences:
            prompt, params = sequence.tokens[: sequence.prompt_tokens], sequence.params
            said = sequence.tokens[sequence.prompt_tokens :]
            assert said == solo_output(prompt, params, 512)[: len(said)]  # type: ignore[arg-type]


def test_streams_run_ahead() -> None:
    rig = Rig()
    rig.step_until(rig.add(most=9), 12)
    rig.begin()
    assert rig.ahead() == [0]
    assert rig.ahead() is None, "a device holds at most two steps"
    rig.finish()


@pytest.mark.parametrize(("slots", "planned"), [(1, [0]), (2, None)])
def test_no_step_is_ahead_while_a_request_could_get_a_slot(
    slots: int, planned: list[int] | None
) -> None:
    rig = Rig(slots)
    rig.step_until(rig.add(most=9), 12)
    rig.begin()
    rig.add()
    assert rig.ahead() == planned
    rig.finish()


@pytest.mark.parametrize(("total", "planned"), [(62, [0]), (63, None), (64, [0])])
def test_no_step_ahead_passes_a_position_of_a_snapshot(
    total: int, planned: list[int] | None
) -> None:
    """The step ahead computes token `total`. A snapshot is due after 64 tokens."""
    rig = Rig(snapshots=4, snapshot_tokens=64)
    rig.step_until(rig.add(prompt=50), total)
    rig.begin()
    assert rig.ahead() == planned
    rig.finish()


@pytest.mark.parametrize(("most", "planned"), [(3, None), (4, [0])])
def test_a_sequence_that_ends_with_the_step_in_flight_is_not_in_the_next(
    most: int, planned: list[int] | None
) -> None:
    rig = Rig()
    rig.step_until(rig.add(most=most), 12)
    rig.begin()
    assert rig.ahead() == planned
    rig.finish()


def test_a_driven_sequence_does_not_run_ahead_of_its_caller() -> None:
    rig = Rig()
    sequence = rig.add(driven=True)
    rig.step_until(sequence, 11)
    rig.scheduler.resume(sequence)
    rig.begin()
    assert rig.ahead() is None


def test_a_prompt_that_is_scored_does_not_run_ahead() -> None:
    rig = Rig()
    rig.add(prompt_logprobs=0)
    rig.begin()
    assert rig.ahead() is None


@pytest.mark.parametrize(("total", "planned"), [(31, [0]), (32, None), (33, [0])])
def test_a_step_ahead_takes_no_windowed_page(total: int, planned: list[int] | None) -> None:
    """Pages behind a window go back between steps only."""
    rig = Rig(windows=(WindowMemory(40, 64, reach=4),))
    rig.step_until(rig.add(prompt=20), total)
    rig.begin()
    assert rig.ahead() == planned
    rig.finish()


def test_a_step_ahead_saves_no_page_on_disk() -> None:
    """It evicts nothing, because the step in flight may still read the page."""
    disk = Saving()
    rig = Rig(1, disk=disk, pages=3)
    for _ in range(3):
        rig.step_until(rig.add(prompt=PAGE_TOKENS, most=1), PAGE_TOKENS + 1)
    stream = rig.add(prompt=20, most=40)
    rig.step_until(stream, PAGE_TOKENS)
    assert disk.saved == 1
    rig.begin()
    assert rig.ahead() is None
    assert disk.saved == 1
    rig.finish()
    assert disk.saved == 2


def test_a_sequence_cancelled_in_the_step_ahead_keeps_its_pages_until_it_has_ended() -> None:
    rig = Rig()
    sequence = rig.add()
    rig.step_until(sequence, 12)
    rig.begin()
    rig.ahead()
    rig.scheduler.update(rig.executor.collect())
    rig.scheduler.cancel(sequence.id)
    assert sequence.slot == 0
    assert sequence.table.pages
    rig.scheduler.update(rig.executor.collect())
    assert sequence.slot == -1
    assert sequence.table.pages == []
