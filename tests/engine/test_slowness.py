"""Warnings of requests that wait and of steps that last, with times that the test chooses."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

import pytest

from heddle.cache.cache import Cache
from heddle.engine.observation.activity import StepComposition
from heddle.engine.observation.slowness import QUIET, SLOW, Slowness
from heddle.engine.requests.request import Request
from heddle.sampling_params import SamplingParams
from heddle.scheduler.scheduler import Scheduler
from heddle.scheduler.sequence import Sequence
from heddle.scheduler.waits import WaitReason
from heddle.state import StateMemory

if TYPE_CHECKING:
    from fake_executor import FakeExecutor
    from heddle.cache.disk_pages import Restore

START = 100.0


class Rig:
    """A scheduler, and requests that were all submitted at START."""

    def __init__(self, slots: int = 1, batch_tokens: int = 64, pages: int = 8) -> None:
        self.scheduler = Scheduler(slots, batch_tokens, 8, Cache(StateMemory(pages)), 256)
        self.slowness = Slowness("fake")
        self.requests: dict[int, Request] = {}

    def add(self, prompt: list[int], log_id: str = "") -> Sequence:
        number = len(self.requests)
        params = SamplingParams(seed=1, max_tokens=4)
        sequence = Sequence(number, params, list(prompt), len(prompt), frozenset())
        self.requests[number] = Request(sequence, cast("Any", None), print, START, log_id)
        self.scheduler.add(sequence)
        return sequence

    def look(self, seconds: float, *, computing: bool = True) -> None:
        """Look at the requests, `seconds` after START. `computing`: while a step computes."""
        chunks = [] if not computing else self.scheduler.schedule().chunks
        step = StepComposition({chunk.slot: 1 for chunk in chunks}, 0, len(chunks))
        self.slowness.look(START + seconds, self.requests, step, self.scheduler.wait_reason)

    @property
    def reasons(self) -> dict[WaitReason, int]:
        return {reason: count for reason, count in self.slowness.slow_waits.items() if count}


def test_a_request_without_a_slot(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.add([1] * 9)
    rig.add([2] * 9, log_id="mine")
    rig.add([3] * 9)
    rig.look(SLOW - 0.1)
    assert not caplog.messages
    rig.look(SLOW + 1)
    [message] = caplog.messages
    assert message == (
        "fake: request 1 (mine) has waited 3.0 s: no slot is free (--slots) (1 more requests wait)"
    )
    assert rig.reasons == {WaitReason.SLOT: 2}
    fields: dict[str, object] = vars(caplog.records[0])["fields"]
    expected = {"event": "slow_request", "model": "fake", "request_id": "mine", "waiting": 2}
    assert fields == expected | {"reason": "no_slot", "seconds": pytest.approx(3.0)}


def test_warnings_are_rare_and_waits_count_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.add([1] * 9)
    rig.add([2] * 9)
    for tenth in range(int(10 * QUIET)):
        rig.look(SLOW + 1 + tenth / 10)
    assert len(caplog.messages) == 1
    rig.look(SLOW + 2 + QUIET)
    assert len(caplog.messages) == 2
    assert rig.reasons == {WaitReason.SLOT: 1}


def test_too_few_pages(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(slots=2)
    rig.add([1] * 200)
    rig.add([2] * 200)
    rig.look(SLOW + 1)
    assert rig.reasons == {WaitReason.PAGES: 1}
    assert "request 1 has waited 3.0 s: too few pages" in caplog.text


def test_a_follower(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(slots=2)
    rig.add([1] * 70)
    rig.add([1] * 70)
    rig.look(SLOW + 1)
    assert rig.reasons == {WaitReason.LEADER: 1}
    assert "request 1 has waited 3.0 s: request 0 computes a prefix" in caplog.text


def test_older_prompts_fill_the_step(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(slots=2)
    rig.add([1] * 70)
    rig.add([2] * 9)
    rig.look(SLOW + 1)
    assert rig.reasons == {WaitReason.BUDGET: 1}
    assert "--batch-tokens" in caplog.text


@pytest.mark.parametrize("reason", [WaitReason.MASK, WaitReason.DISK])
def test_masks_and_the_disk(reason: WaitReason, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    sequence = rig.add([1] * 9)
    rig.look(0.1)
    if reason is WaitReason.MASK:
        sequence.awaited = Future()
    else:
        sequence.restore = cast("Restore", object())
    rig.look(SLOW, computing=False)
    assert not caplog.messages, "it was part of a step 1.9 s ago"
    rig.look(SLOW + 0.7, computing=False)
    assert rig.reasons == {reason: 1}
    assert "request 0 has waited 2.6 s" in caplog.text


def test_progress_and_pauses_end_a_wait(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    sequence = rig.add([1] * 9)
    for second in range(9):
        sequence.computed = second
        rig.look(second, computing=False)
    sequence.paused = True
    rig.look(20, computing=False)
    sequence.paused = False
    rig.look(20 + SLOW, computing=False)
    assert not caplog.messages
    rig.look(21 + SLOW, computing=False)
    assert len(caplog.messages) == 1


def test_a_slow_step(caplog: pytest.LogCaptureFixture) -> None:
    slowness, step = Slowness("fake"), StepComposition({0: 1, 3: 512}, 1, 512)
    slowness.note_step(SLOW, step)
    slowness.note_step(SLOW + 1, step)
    assert not caplog.messages, "nothing is written before the next step computes"
    for now in (START, START + 1):
        slowness.look(now, {}, step, lambda _: WaitReason.SLOT)
        slowness.note_step(SLOW + 2, step)
    expected = "fake: a step took 3.0 s: mixed, 512 prompt tokens and 1 decodes of 2 requests"
    assert caplog.messages == [expected]
    assert slowness.slow_steps == 3


def test_log_lines_of_the_engine_name_the_caller(
    start: Any, executor: FakeExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    executor.poisonous = lambda history: True
    engine = start()
    deltas: list[Any] = []
    params = SamplingParams(seed=1)
    engine.submit_many([("hello", params, deltas.append)], log_id="req_abc")
    engine.close(drain=True)
    assert "request 0 (req_abc) failed: the logits are NaN" in caplog.text
