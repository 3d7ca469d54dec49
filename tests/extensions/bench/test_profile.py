"""`heddle bench --profile`: the executor's counters, read before and after each load."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from heddle.errors import ConfigError
from heddle.executors.cpu.executor import CpuExecutor
from heddle.extensions.bench.commands.tables import print_profiles
from heddle.extensions.bench.profile import Profile, Profiled, profile
from heddle.extensions.bench.report import Loads

if TYPE_CHECKING:
    from fixtures.benches import Start

LOADS = Loads((1, 2), (0,), prompt_tokens=8, new_tokens=4, rounds=1)


def test_an_executor_without_counters_is_refused(start: Start) -> None:
    with pytest.raises(ConfigError, match=r"--profile: .* no counters"):
        profile(start(), LOADS, lambda _: None)


def test_loads_are_counted_apart_and_counting_ends(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, said = start(), []
    kind = type(engine.model.executor)
    counts = iter(range(100))
    monkeypatch.setattr(kind, "set_profiling", lambda _, on: said.append(on), raising=False)
    monkeypatch.setattr(kind, "take_profile", lambda _: {"matmul": next(counts)}, raising=False)
    found = profile(engine, LOADS, lambda _: None)
    assert [each.load for each in found] == ["prompt x1", "decode x1", "prompt x2", "decode x2"]
    # The odd ones: the even ones are what was there before a load.
    assert [each.seconds["matmul"] for each in found] == [1, 3, 5, 7]
    assert all(each.steps > 0 for each in found)
    assert said == [True, False]
    assert json.loads(json.dumps([each.as_dict() for each in found]))[0]["load"] == "prompt x1"


def test_the_cpu_executor_has_counters() -> None:
    assert issubclass(CpuExecutor, Profiled)


def test_the_table_has_the_longest_kind_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_profiles([Profile("decode x1", 2, {"norm": 0.001, "matmul": 0.003})])
    shown = capsys.readouterr().out
    assert shown.index("matmul") < shown.index("norm")
    assert "75.0%" in shown
