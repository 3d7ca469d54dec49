"""Sequences that pause after each token: what they hold, and when they release it."""

from pathlib import Path

import pytest

from heddle.cache.cache import Cache
from heddle.disk.directory import PageDirectory
from heddle.disk.tier import DiskTier
from heddle.scheduler.scheduler import Scheduler
from heddle.scheduler.sequence import Sequence, SlotState
from heddle.state import PAGE_TOKENS
from scheduler.test_scheduler import Rig
from steps import execute


def add(rig: Rig, identity: int, prompt: int) -> Sequence:
    sequence = rig.sequence(identity, prompt)
    sequence.driven = True
    rig.scheduler.add(sequence)
    return sequence


def test_a_paused_sequence_computes_nothing_until_resumed() -> None:
    rig = Rig(slots=2)
    sequence = add(rig, 1, prompt=5)
    [event] = rig.step()
    assert (event.finish, sequence.total, rig.states()[0]) == (None, 6, SlotState.PAUSED)
    assert not rig.scheduler.busy
    assert rig.step() == []
    rig.scheduler.resume(sequence)
    rig.scheduler.resume(sequence)
    assert rig.scheduler.busy
    assert [event.sequence for event in rig.step()] == [sequence]
    assert rig.shares() == [(0, 1)]


def test_the_longest_idle_sequence_gives_its_slot_to_a_queued_sequence() -> None:
    rig = Rig(slots=3)
    first, second, third = (add(rig, identity, prompt=5) for identity in (1, 2, 3))
    rig.step()
    rig.scheduler.resume(first)
    rig.step()
    rig.add(4, prompt=5)
    rig.step()
    assert [one.slot >= 0 for one in (first, second, third)] == [True, False, True]
    rig.scheduler.resume(second)  # waits in the queue again
    rig.step()
    assert [one.slot >= 0 for one in (first, second, third)] == [True, True, False]
    assert rig.scheduler.cancel(third.id)


def test_a_running_sequence_takes_pages_of_an_idle_sequence() -> None:
    rig = Rig(slots=2, pages=3)
    idle = add(rig, 1, prompt=60)
    rig.step()
    running = rig.add(2, prompt=20)
    while running.total <= 33:
        rig.step()
    assert (idle.slot, running.slot >= 0, rig.scheduler.admission.preemptions) == (-1, True, 1)


def test_a_queued_sequence_takes_pages_of_an_idle_sequence() -> None:
    rig = Rig(slots=2, pages=3)
    idle = add(rig, 1, prompt=60)
    rig.step()
    running = rig.add(2, prompt=64)
    rig.step()
    assert (idle.slot, running.slot >= 0) == (-1, True)


class DiskRig(Rig):
    """A rig with a disk tier, which reads if the test says so."""

    def __init__(self, folder: Path, slots: int, pages: int) -> None:
        super().__init__(slots, batch_tokens=256, pages=pages)
        directory = PageDirectory(folder / "cache", 10**6)
        executor = self.executor
        self.tier = DiskTier(directory, executor, executor.page_bytes, b"f" * 32, threaded=False)
        self.cache = Cache(executor.memory, disk=self.tier)
        self.scheduler = Scheduler(slots, 256, 4, self.cache, 1024)

    def read(self) -> None:
        while self.tier.work():
            pass


def save_prompt(folder: Path) -> None:
    """Leave the 5 pages of a prompt of 161 tokens on disk, that of the sequence 1."""
    rig = DiskRig(folder, slots=1, pages=8)
    rig.add(1, prompt=161, max_tokens=1)
    rig.step()
    rig.cache.close(keep=True)


def test_a_restore_from_disk_takes_pages_of_an_idle_sequence(tmp_path: Path) -> None:
    save_prompt(tmp_path)
    rig = DiskRig(tmp_path, slots=2, pages=8)
    idle = add(rig, 2, prompt=60)
    rig.step()
    restored = rig.add(1, prompt=161)  # claims all other pages
    while idle.total <= 97:  # the output takes two of the claimed pages during the wait
        rig.scheduler.resume(idle)
        rig.step()
    assert rig.states() == [SlotState.PAUSED, SlotState.WAITING_FOR_PREFIX]
    rig.read()
    rig.step()
    assert (idle.slot, restored.cached_tokens, restored.output_tokens) == (-1, 160, 1)
    rig.cache.close(keep=False)


def test_a_restore_that_waits_for_the_next_step_preempts_nobody(tmp_path: Path) -> None:
    """Beside a stream, a step loads only some of the pages that were read."""
    save_prompt(tmp_path)
    rig = DiskRig(tmp_path, slots=3, pages=32)
    idle = add(rig, 2, prompt=5)
    rig.add(3, prompt=5)
    rig.step()
    restored = rig.add(1, prompt=161)
    rig.step()
    rig.read()
    rig.step()
    assert (idle.slot, restored.computed) == (0, 4 * PAGE_TOKENS)
    rig.step()
    assert (idle.slot, restored.cached_tokens, restored.output_tokens) == (0, 160, 1)
    rig.cache.close(keep=False)


def test_a_paused_sequence_does_not_count_in_the_time_until_a_place_is_free() -> None:
    rig = Rig(slots=2)
    paused = add(rig, 1, prompt=5)
    rig.add(2, prompt=10, max_tokens=41)
    plan = rig.scheduler.schedule()
    rig.scheduler.update(execute(rig.executor, plan), 1.5)  # 10 tokens per second
    assert (paused.paused, paused.limit) == (True, 1024)
    assert rig.scheduler.seconds_until(1) == pytest.approx((1 + 40) / 10)
