"""Lines of the log about loads, waits for slots, chunks of prompts and steps."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import MEMORY
from heddle.engine.observation import step_log
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from fake_executor import FakeExecutor

PARAMS = SamplingParams(seed=1, max_tokens=2, ignore_eos=True)
MILLISECONDS = re.compile(r"[\d.]+ ms")


def lines(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """The lines of a logger, without their times."""
    own = [record.getMessage() for record in caplog.records if record.name == name]
    return [MILLISECONDS.sub("T ms", line) for line in own]


@pytest.mark.parametrize(("memory", "told"), [(MEMORY, "2.00 GB of 5.00 GB"), (None, "unknown")])
def test_a_load_is_logged_with_the_memory_of_the_device(
    start: Any, executor: FakeExecutor, caplog: pytest.LogCaptureFixture, memory: Any, told: str
) -> None:
    executor.device_memory = memory
    with caplog.at_level(logging.INFO, "heddle"):
        start()
    line = f"fake runs on nothing real; free memory of the device: {told}"
    assert lines(caplog, "heddle.engine.engine") == [line]


def test_the_log_has_chunks_of_prompts_and_steps(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start(batch_tokens=64)
    with caplog.at_level(logging.DEBUG, "heddle"):
        engine.submit_many([([1] * 100, PARAMS, lambda _: None)], log_id="mine")
        engine.close(drain=True)
    assert lines(caplog, step_log.__name__) == [
        "request 0 (mine), slot 0: prompt tokens 0 to 64 of 100, prefix hit 0",
        "step 0: 1 sequences, 64 tokens, T ms",
        "request 0 (mine), slot 0: prompt tokens 64 to 100 of 100, prefix hit 0",
        "step 1: 1 sequences, 36 tokens, T ms",
        "step 2: 1 sequences, 1 tokens, T ms",
    ]


def test_a_chunk_after_a_prefix_hit_says_so(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine = start()
    engine.complete([1] * 50, PARAMS)
    with caplog.at_level(logging.DEBUG, "heddle"):
        engine.complete([1] * 50 + [2] * 20, PARAMS)
    [line] = [one for one in lines(caplog, step_log.__name__) if "prompt tokens" in one]
    assert line == "request 1, slot 0: prompt tokens 50 to 70 of 70, prefix hit 50"


def test_a_request_that_gets_a_slot_is_logged_with_its_wait(
    start: Any, executor: FakeExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start(slots=2)
    with caplog.at_level(logging.INFO, "heddle"):
        engine.submit_many([([1] * 9, PARAMS, lambda _: None)] * 2, log_id="mine")
        engine.close(drain=True)
    assert sorted(lines(caplog, "heddle.requests.start.slot")) == [
        "request 0 (mine) waited T ms for slot 0",
        "request 1 (mine) waited T ms for slot 1",
    ]
    assert not lines(caplog, step_log.__name__)


def test_steps_make_no_lines_that_the_level_leaves_out(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_log, "log_prompts", None)
    monkeypatch.setattr(step_log, "log_step", None)
    engine = start()
    engine.complete([1] * 9, PARAMS)
    engine.close()
    assert engine.snapshot().steps == 2
