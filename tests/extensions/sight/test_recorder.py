"""What the engine thread records, and percentiles of the last minute."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.extensions.sight.percentiles import SECONDS, Minute
from heddle.extensions.sight.recorder import Recorder, Row
from heddle.sampling_params import SamplingParams
from heddle.step import Chunk, Sampled, StepPlan, StepResult

if TYPE_CHECKING:
    from heddle.engine import Engine


class Loop(SimpleNamespace):
    """Stands for an engine's loop. There may be weak references to it."""


def chunk(slot: int, tokens: int, guesses: int = 0) -> Chunk:
    return Chunk(slot, 7, [1] * tokens, [0], sample=True, guesses=guesses)


def test_a_step_tells_right_guesses_from_wrong_ones(engine: Engine) -> None:
    recorder = Recorder()
    tree = SimpleNamespace(clock=5)
    loop: Any = Loop(
        cache=SimpleNamespace(prefixes=SimpleNamespace(tree=tree)),
        delivery=SimpleNamespace(observe=lambda _: None, computed_at=7.5),
    )
    recorder.begin(loop)
    sequences: list[Any] = [SimpleNamespace(id=i, prompt_tokens=7) for i in range(5)]
    sequences[4].prompt_tokens = 8  # one is left
    chunks = (chunk(0, 9), chunk(1, 4, 3), chunk(2, 3, 2), chunk(3, 1), chunk(4, 1), chunk(5, 1))
    sampled = [Sampled(slot, 1, math.nan) for slot in (0, 1, 1, 1, 2, 3, 4)]
    plan, result = StepPlan((), chunks), StepResult(tuple(sampled))
    recorder.on_step(41, plan, result, 0.25, [*sequences, None])
    (step,) = recorder.steps
    assert (step.number, step.ended, step.seconds) == (41, 7.5, 0.25)
    assert step.rows == (
        Row(0, 0, 0, 7, 9, 0, 0),
        Row(1, 1, 1, 7, 4, 3, 2),
        Row(2, 2, 1, 7, 3, 2, 0),
        Row(3, 3, 1, 7, 1, 0, 0),
        Row(4, 4, 0, 7, 1, 0, 0),
    )
    assert recorder.used_at(5) == recorder.used_at(4) == recorder.used_at(6)


def test_requests_are_recorded_without_their_text(engine: Engine) -> None:
    recorder = Recorder()
    assert recorder.requests() == []
    engine.thread.call(recorder.begin)
    engine.complete("hello", SamplingParams(max_tokens=3, ignore_eos=True))
    (row,) = recorder.ended
    assert (row.prompt_tokens, row.output_tokens, row.finish) == (5, 3, "length")
    assert not {type(one) for one in row} - {int, float, str, type(None)}
    assert sum(one.tokens for step in recorder.steps for one in step.rows) == 5 + 2
    assert recorder.requests() == []


@given(st.lists(st.floats(1e-4, 100.0), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_percentiles_are_right_to_five_percent(durations: list[float], share: float) -> None:
    minute = Minute()
    for seconds in durations:
        minute.add(seconds, 1000.0)
    found = minute.percentiles(1000.0, (share,))
    exact = sorted(durations)[math.ceil(share * len(durations)) - 1]
    assert found is not None
    assert found[0] == pytest.approx(exact, rel=0.051)


def test_a_minute_forgets() -> None:
    minute = Minute()
    assert minute.percentiles(0.0, (0.5,)) is None
    minute.add(1.0, 100.0)
    minute.add(2.0, 100.0 + SECONDS)
    found = minute.percentiles(100.0 + SECONDS, (0.0, 1.0))
    assert found == pytest.approx((2.0, 2.0), rel=0.05)
    assert minute.percentiles(100.0 + 2 * SECONDS, (0.5,)) is None
    minute.add(1e9, 500.0)
    minute.add(0.0, 500.0)
    assert minute.percentiles(500.0, (0.1,)) == pytest.approx((1e-4,), rel=0.05)
