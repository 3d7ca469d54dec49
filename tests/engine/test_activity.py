"""Rates, utilisation and composition of steps, with times that the test chooses."""

from __future__ import annotations

import math

import pytest

from heddle.engine.observation.activity import WINDOW, Activity, StepComposition, StepKind
from heddle.sampling_params import SamplingParams
from heddle.scheduler.sequence import Sequence
from heddle.step import Binding, Chunk, Sampled, StepPlan


def sequence(prompt: int, output: int, computed: int) -> Sequence:
    tokens = [1] * (prompt + output)
    return Sequence(0, SamplingParams(seed=1), tokens, prompt, frozenset(), computed=computed)


def plan(*chunks: tuple[int, int], binds: tuple[int, ...] = ()) -> StepPlan:
    """A plan with chunks of (slot, tokens)."""
    return StepPlan(
        tuple(Binding(slot, SamplingParams(seed=1), [1], []) for slot in binds),
        tuple(Chunk(slot, 0, [1] * tokens, [], sample=True) for slot, tokens in chunks),
    )


def sampled(*slots: int) -> list[Sampled]:
    return [Sampled(slot, 1, math.nan) for slot in slots]


PREFILL, DECODE = sequence(9, 0, 0), sequence(9, 3, 11)
LAST_OF_PROMPT = sequence(9, 0, 8)
DROPPED = sequence(9, 3, 0)  # a preempted sequence computes all its tokens again


@pytest.mark.parametrize(
    ("slots", "kind", "counts"),
    [
        ((PREFILL, None), StepKind.PREFILL, (5, 0, 1)),
        ((LAST_OF_PROMPT, None), StepKind.PREFILL, (5, 0, 1)),
        ((DROPPED, None), StepKind.PREFILL, (5, 0, 1)),
        ((PREFILL, DECODE), StepKind.MIXED, (5, 1, 2)),
        ((None, DECODE), StepKind.DECODE, (0, 1, 1)),
    ],
)
def test_composition_of_a_step(
    slots: tuple[Sequence | None, Sequence | None], kind: StepKind, counts: tuple[int, int, int]
) -> None:
    chunks = [(slot, 1 if one is DECODE else 5) for slot, one in enumerate(slots) if one]
    step = StepComposition.of(plan(*chunks), slots)
    assert step.kind is kind
    assert (step.prompt_tokens, step.decodes, step.sequences) == counts


def decode(activity: Activity, began: float, ended: float, *slots: int) -> None:
    """A step in which the sequences of `slots` decode."""
    activity.step_began = began
    activity.note_plan(plan(*((slot, 1) for slot in slots)), [DECODE, DECODE])
    activity.note_result(sampled(*slots), ended)
    activity.end(ended)


def test_utilisation_is_the_share_of_time_in_steps() -> None:
    activity = Activity(2, now=100.0)
    assert activity.utilisation(100.0) == 0.0
    for step in range(80):
        decode(activity, 100.0 + step / 10, 100.025 + step / 10, 0)
    assert activity.utilisation(108.0) == pytest.approx(0.25, abs=0.01)
    assert activity.utilisation(108.0 + 2 * WINDOW) == 0.0


def test_utilisation_counts_a_step_in_flight_and_a_step_longer_than_the_window() -> None:
    activity = Activity(2, now=100.0)
    activity.step_began = 104.0
    assert activity.utilisation(106.0) == pytest.approx(2 / WINDOW, rel=0.06)
    assert activity.utilisation(200.0) == 1.0
    activity.end(200.0)
    assert activity.utilisation(200.0) == pytest.approx(1.0)
    assert activity.utilisation(202.0) == pytest.approx(3 / WINDOW, rel=0.06)


def test_a_step_of_a_day_is_divided_among_the_slices_of_the_window_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    activity, noted = Activity(2, now=100.0), list[float]()
    row_of = activity._row
    monkeypatch.setattr(activity, "_row", lambda at: noted.append(at) or row_of(at))
    activity.step_began = 104.0
    activity.end(86_504.0)
    assert min(noted) >= 86_504.0 - WINDOW
    assert activity.utilisation(86_504.0) == pytest.approx(1.0)


def test_a_step_that_ended_before_the_window_counts_only_with_its_part_in_it() -> None:
    activity = Activity(2, now=100.0)
    activity.step_began = 100.0
    activity.end(104.0)
    assert activity.utilisation(108.0) == pytest.approx(0.75 / 4.75, rel=0.1)


def test_rates_of_slots_and_of_all() -> None:
    activity = Activity(2, now=100.0)
    activity.step_began = 100.0
    activity.note_plan(plan((0, 40), binds=(0,)), [PREFILL, None])
    activity.note_result(sampled(0), 101.0)  # the first token does not count
    assert activity.slot_rate(0, 101.0) == 0.0
    for step in range(20):
        decode(activity, 101.0 + step / 10, 101.1 + step / 10, 0)
    now = 103.125
    assert activity.slot_rate(0, 103.0) == pytest.approx(10.0)
    assert activity.slot_rate(1, now) == 0.0
    assert activity.token_rate(now) == pytest.approx(21 / 3.125)
    assert activity.prompt_rate(now) == pytest.approx(40 / 3.125)
    assert activity.slot_rate(0, now + 2 * WINDOW) == activity.token_rate(now + 2 * WINDOW) == 0.0


def test_the_next_sequence_in_a_slot_starts_at_zero() -> None:
    activity = Activity(1, now=100.0)
    for step in range(10):
        decode(activity, 100.0 + step / 10, 100.1 + step / 10, 0)
    assert activity.slot_rate(0, 101.0) == pytest.approx(10.0)
    activity.note_plan(plan((0, 40), binds=(0,)), [PREFILL])
    assert activity.slot_rate(0, 101.0) == 0.0
    activity.note_result(sampled(0), 101.5)
    activity.note_result(sampled(0), 102.0)
    assert activity.slot_rate(0, 102.0) == pytest.approx(2.0)
    assert activity.steps == {StepKind.PREFILL: 1, StepKind.DECODE: 10, StepKind.MIXED: 0}
