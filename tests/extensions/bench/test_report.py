"""Rows from known runs, computed by hand, and the whole report on a fake executor."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fake_executor import WORK
from heddle.errors import ConfigError
from heddle.extensions.bench.figures import FORMULAS, Stream
from heddle.extensions.bench.local import Run
from heddle.extensions.bench.report import Loads, decode_row, measure, prompt_row

if TYPE_CHECKING:
    from fake_executor import FakeExecutor
    from fixtures.benches import Start
    from heddle.engine import Engine

LOADS = Loads(streams=[1, 3], depths=[0, 70], prompt_tokens=40, new_tokens=4, rounds=2)


def run_of(engine: Engine, streams: list[Stream], steps: float, computed: float) -> Run:
    before = engine.snapshot()
    after = replace(before, step_seconds=steps, compute_seconds=computed)
    return Run(tuple(streams), before, after)


def test_a_prompt_row(start: Start) -> None:
    engine = start(batch_tokens=64)
    limits = engine.model.executor.measure_limits()
    streams = [Stream(0.0, (end,), 100, 1) for end in (1.0, 2.0)]
    row = prompt_row(engine, limits, [run_of(engine, streams, 4.0, 3.0)])
    multiply_adds = 2 * (100 * 500 + 50)
    assert (row.streams, row.tokens, row.rate) == (2, 100, 100.0)
    assert row.floor == WORK.prompts(2, 100, 64).floor(limits)
    assert row.floor.seconds == multiply_adds / limits.multiply_rate
    assert row.reached == pytest.approx(row.floor.seconds / 2.0)
    assert row.multiply_rate == multiply_adds / 2.0
    assert row.of_peak == pytest.approx(row.multiply_rate / limits.multiply_rate)
    assert row.overhead == 0.25


def test_a_decode_row(start: Start) -> None:
    engine = start()
    limits = engine.model.executor.measure_limits()
    moments = tuple(float(step) for step in range(21))
    streams = [Stream(0.0, moments, 200, 21) for _ in range(4)]
    row = decode_row(engine, limits, run_of(engine, streams, 20.0, 19.0), depth=200, parts=2)
    read = 1000 + 4 * (210 * 2 + 64 * 2)  # weights, and per stream both layers at half way
    assert (row.streams, row.depth, row.rate) == (4, 200, 4.0)
    assert row.read_rate == read / 1.0
    assert row.of_memory == read / limits.memory_rate
    assert (row.floor.seconds, row.floor.bound_by) == (read / limits.weights_rate, "memory")
    assert row.reached == row.floor.seconds / 1.0
    assert row.overhead == pytest.approx(0.05)
    assert row.itl.max == row.tpot.p50 == 1.0


def test_a_whole_report(start: Start, executor: FakeExecutor) -> None:
    engine, said = start(slots=4, prefix_cache=False), []
    report = measure(engine, LOADS, said.append)
    assert [(row.streams, row.tokens) for row in report.prompts] == [(1, 40), (3, 40)]
    assert [(row.depth, row.streams) for row in report.decodes] == [
        (0, 1),
        (0, 3),
        (70, 1),
        (70, 3),
    ]
    assert "decoding, 3 at once at depth 70" in said
    computed = engine.snapshot().computed_prompt_tokens
    assert computed == 40 * (1 + 2 * (1 + 3)) + (1 + 70) * (1 + 3)
    data = json.loads(json.dumps(report.as_dict()))
    assert data["limits"]["isa"] == "paper"
    assert data["work"]["weight_bytes"] == WORK.weight_bytes
    assert data["loads"] == {
        "streams": [1, 3],
        "depths": [0, 70],
        "prompt_tokens": 40,
        "new_tokens": 4,
        "rounds": 2,
    }
    assert data["formulas"] == FORMULAS
    for row in (*data["prompt"], *data["decode"]):
        assert row["tokens_per_second"] > 0
        assert row["bound_by"] in {"memory", "compute"}
        assert row["floor_seconds"] > 0
        assert 0 <= row["overhead_share"] <= 1
    assert {"cpu", "cores", "memory_bytes", "system"} <= data["machine"].keys()


def test_what_does_not_fit_is_refused_before_anything_runs(
    start: Start, executor: FakeExecutor
) -> None:
    with pytest.raises(ConfigError, match="do not fit the context"):
        measure(start(), replace(LOADS, depths=[510]), lambda _: None)
    assert executor.steps == 0
