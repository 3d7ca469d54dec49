"""`heddle bench`: its figures from known readings, and the command itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fake_executor import FakeExecutor
from fake_model import fake_model
from heddle.cli import run
from heddle.cli.bench import PromptSource
from heddle.cli.measure import FORMULAS, Spread, Timeline, figures
from heddle.config import EngineConfig
from heddle.engine import Engine

if TYPE_CHECKING:
    import pytest


def test_figures_of_a_known_round() -> None:
    one = Timeline(sent=10.0, tokens=[11.0, 12.0, 13.0])
    other = Timeline(sent=10.0, tokens=[12.0, 14.0, 15.0])
    row = figures([[one, other]], prompt_tokens=100)
    assert row.streams == 2
    assert row.prompt_rate == 2 * 100 / (12.0 - 10.0)
    assert row.decode_rate == 3 / (15.0 - 12.0)  # at 13, 14 and 15
    assert row.ttft == Spread(p50=1.0, p99=2.0, max=2.0)
    assert row.tpot == Spread(p50=1.0, p99=1.5, max=1.5)
    assert row.itl == Spread(p50=1.0, p99=2.0, max=2.0)


def test_rounds_are_pooled() -> None:
    quick = [Timeline(sent=0.0, tokens=[1.0, 2.0])]
    slow = [Timeline(sent=0.0, tokens=[3.0, 6.0])]
    row = figures([quick, slow], prompt_tokens=8)
    assert row.streams == 1
    assert row.prompt_rate == 16 / 4
    assert row.decode_rate == 2 / 4
    assert row.itl == Spread(p50=1.0, p99=3.0, max=3.0)


def test_percentiles_are_durations_that_occurred() -> None:
    spread = Spread.of([float(number) for number in range(200, 0, -1)])
    assert spread == Spread(p50=100.0, p99=198.0, max=200.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


def test_the_command_in_json(
    loaded: list[tuple[str, EngineConfig]],
    executor: FakeExecutor,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--streams", "1,3", "--prompt-tokens", "40", "--new-tokens", "6", "--rounds", "2"]
    assert run(["bench", "some.gguf", *arguments, "--json", "--slots", "4"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"] == "fake"
    assert (report["prompt_tokens"], report["new_tokens"], report["rounds"]) == (40, 6, 2)
    assert report["formulas"] == FORMULAS
    assert [row["streams"] for row in report["results"]] == [1, 3]
    for row in report["results"]:
        assert row["prompt_tokens_per_second"] > 0
        assert row["decode_tokens_per_second"] > 0
        for name in ("ttft_seconds", "tpot_seconds", "itl_seconds"):
            assert 0 < row[name]["p50"] <= row[name]["p99"] <= row[name]["max"]
    assert loaded[0][0] == "some.gguf"
    computed = [tokens for step in executor.plans for _, start, tokens in step if start < 40]
    rounds = 1 + 2 * 1 + 2 * 3
    # With 32 letters, prompts begin alike now and then.
    assert 38 * rounds < sum(computed) <= 40 * rounds


def test_the_command_as_a_table(
    loaded: list[tuple[str, EngineConfig]], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--streams", "2", "--new-tokens", "4", "--rounds", "1", "--prompt-tokens", "9"]
    assert run(["bench", *arguments]) == 0
    out = capsys.readouterr().out
    assert "9 prompt tokens, 4 new tokens" in out
    for name, formula in FORMULAS.items():
        assert f"{name} = {formula}" in out
    assert "…" not in out, "the table fits a terminal of 80 columns"
    assert len(loaded) == 1


def test_no_two_prompts_are_alike() -> None:
    with Engine(fake_model(FakeExecutor()), EngineConfig()) as engine:
        source = PromptSource(engine, 30)
        prompts = [source.next() for _ in range(50)]
    assert len({tuple(prompt) for prompt in prompts}) == 50
    assert all(0 not in prompt for prompt in prompts), "the end token is no text"


def test_more_streams_than_fit_is_said(
    loaded: list[tuple[str, EngineConfig]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "--streams", "5", "--slots", "1", "--queue", "1"]) == 2
    assert "slots and queue hold, 2" in capsys.readouterr().err
    assert not loaded, "that is known before a model is loaded"
