"""Guesses of drafters in an engine, and what callers see of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from configs import configured
from fake_executor import VOCABULARY, FakeExecutor, solo_output
from fake_model import fake_model
from heddle.drafting.lookup import LookupDrafter
from heddle.engine.drafters import batch_drafter_of
from heddle.engine.health import HealthState
from heddle.engine.streaming.blocking import Collector
from heddle.errors import ConfigError, InvalidRequestError
from heddle.extensions.drafters.model import DraftModel
from heddle.extensions.drafters.settings import DrafterSettings
from heddle.extensions.drafters.share import share
from heddle.extensions.engrams.bias import EngramBias
from heddle.extensions.engrams.drafter import EngramDrafter
from heddle.loading.load import load_model
from heddle.sampling_params import SamplingParams
from heddle.state import WindowMemory
from models.tiny.llama import TinyLlama

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fake_executor import Occupant
    from fixtures.engines import Start
    from heddle.config import EngineConfig
    from heddle.loading.loaded_model import LoadedModel
    from heddle.outputs import Output
    from heddle.scheduler.sequence import Sequence as SequenceOf


class Table:
    """Predicts by the last token."""

    def __init__(self, rows: dict[int, list[tuple[int, float]]]) -> None:
        self.rows = rows

    def predict(self, tokens: Sequence[int]) -> list[tuple[int, float]]:
        return self.rows.get(tokens[-1], []) if tokens else []


def test_an_engram_guesses_while_it_is_sure() -> None:
    table = Table({1: [(2, 0.8), (9, 0.2)], 2: [(3, 1.0)], 3: [(4, 0.2), (5, 0.2)]})
    drafter = EngramDrafter(EngramBias(((table, 1.0),), 0.0))
    drafter.append([7] * 20)
    assert drafter.guess(5) == ([], 0)
    drafter.append([1])
    assert drafter.guess(5) == ([2, 3], 12)
    assert drafter.guess(1) == ([2], 12)


def test_an_engram_sees_the_last_tokens_of_the_text() -> None:
    seen: list[list[int]] = []
    table = SimpleNamespace(predict=lambda tokens: seen.append([*tokens]) or [])
    drafter = EngramDrafter(EngramBias(((table, 1.0),), 0.0))
    for tokens in ([1, 2, 3] * 7, [4], [5, 6]):
        drafter.append(tokens)
    drafter.guess(1)
    assert seen == [[3, *[1, 2, 3] * 4, 4, 5, 6]]


def test_tables_count_by_weight_and_equals_go_to_the_lower_token() -> None:
    tables = ((Table({1: [(8, 1.0)]}), 1.0), (Table({1: [(6, 1.0)]}), 1.0), (Table({}), 5.0))
    assert EngramDrafter(EngramBias(tables, 0.0))._likeliest([1]) == (6, 0.5)


def test_a_lookup_guesses_what_followed() -> None:
    drafter = LookupDrafter()
    drafter.append([5, 6, 7, 8])
    assert drafter.guess(3) == ([], 0)
    drafter.append([5, 6])
    assert drafter.guess(3) == ([7, 8, 5], 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (7, "speculation must be auto, off, or an object"),
        ({"drafter": "lookup", "depth": 3}, "speculation must be auto, off, or an object"),
        ({"length": 0}, "speculation.length must be in [1, 31], got 0"),
        ({"length": 99}, "speculation.length must be in [1, 31], got 99"),
    ],
)
def test_wrong_fields_are_named(given: object, said: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        SamplingParams(speculation=given)  # type: ignore[arg-type]
    assert said in error.value.message


class Oracle:
    """Guesses the output that the fake executor gives, as far as it is told."""

    def __init__(self, sequence: SequenceOf, wrong_at: int) -> None:
        prompt = sequence.tokens[: sequence.prompt_tokens]
        self.output = solo_output(prompt, sequence.params, sequence.limit)
        self.output[wrong_at : wrong_at + 1] = [0] * (wrong_at < len(self.output))
        self.said = -sequence.prompt_tokens

    def append(self, tokens: Sequence[int]) -> None:
        self.said += len(tokens)

    def guess(self, most: int) -> tuple[Sequence[int], int]:
        return self.output[self.said : self.said + most], 0


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"oracle": lambda sequence: Oracle(sequence, wrong_at=9)}
    monkeypatch.setattr("heddle.engine.loop.drafters", lambda _: made)


GUESS = {"drafter": "oracle", "length": 4}


@pytest.mark.usefixtures("oracle")
@pytest.mark.parametrize("more", [{}, {"max_tokens": 7}, {"ignore_eos": True, "max_tokens": 60}])
def test_the_output_is_the_same_and_usage_counts_guesses(start: Start, more: dict) -> None:
    engine = start()
    plain = engine.complete("hello", SamplingParams(seed=3, speculation="off", **more))
    guessed = engine.complete("hello", SamplingParams(seed=3, speculation=GUESS, **more))
    assert guessed == plain
    assert plain.usage.drafted_tokens == 0
    assert guessed.usage.drafted_tokens >= guessed.usage.accepted_tokens > 0
    figures = engine.snapshot()
    assert figures.drafted_tokens == guessed.usage.drafted_tokens
    assert figures.accepted_tokens == guessed.usage.accepted_tokens
    assert figures.pages_used == 0


@pytest.mark.usefixtures("oracle")
def test_a_stop_string_inside_a_step_ends_the_output_there(start: Start) -> None:
    engine = start(slots=1)
    free = SamplingParams(seed=3, ignore_eos=True, max_tokens=40, speculation="off")
    text = engine.complete("hello", free).text
    for place in range(1, 9):
        stop = text[place : place + 2]
        stopped = SamplingParams(seed=3, ignore_eos=True, stop=(stop,), speculation=GUESS)
        assert engine.complete("hello", stopped).text == text[: text.index(stop)]
    assert engine.complete("hello", free).text == text


@pytest.mark.usefixtures("oracle")
def test_a_drafter_that_is_not_there_is_refused(start: Start) -> None:
    with pytest.raises(InvalidRequestError, match="'crystal ball'; this model has oracle"):
        start().complete("hello", SamplingParams(speculation="crystal ball"))


# --- a draft model -------------------------------------------------------------------------------


class Forgetful(FakeExecutor):
    """Chooses another token after some histories."""

    def _choose(self, occupant: Occupant, history: Sequence[int]) -> int:
        right = super()._choose(occupant, history)
        return right if len(history) % 5 else (right + 1) % VOCABULARY


@pytest.fixture(params=[False, True], ids=["all positions", "windows"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Forgetful:
    windows = (WindowMemory(40, 64, reach=20),) if request.param else ()
    executor = Forgetful(windows=windows, may_go_back=True)
    made = lambda model, config: DraftModel(executor, config.slots)  # noqa: E731
    monkeypatch.setattr("heddle.engine.loop.batch_drafter_of", made)
    return executor


DRAFT = {"drafter": "model", "length": 3}


def test_a_draft_model_guesses_and_the_output_is_the_same(start: Start, small: Forgetful) -> None:
    engine = start(slots=3)
    prompts = ["hello", "long" * 40, "hello"]

    def run(speculation: object) -> list[Output]:
        params = [
            SamplingParams(seed=s, ignore_eos=True, max_tokens=70, speculation=speculation)  # type: ignore[arg-type]
            for s in range(3)
        ]
        outputs = [Collector() for _ in prompts]
        engine.submit_many(zip(prompts, params, outputs, strict=True))  # so that they overlap
        return [output.wait() for output in outputs]

    plain, guessed = run("off"), run(DRAFT)
    assert guessed == plain
    for output in guessed:
        usage = output.usage
        assert 0.4 * usage.drafted_tokens < usage.accepted_tokens < usage.drafted_tokens
    assert max(len(chunk_sizes) for chunk_sizes in small.plans) > 1, "sequences share its steps"


def test_pages_and_slots_of_the_draft_model_come_back(start: Start, small: Forgetful) -> None:
    engine = start(slots=2)
    for seed in range(6):
        params = SamplingParams(seed=seed, ignore_eos=True, max_tokens=40, speculation=DRAFT)  # type: ignore[arg-type]
        assert engine.complete("hello", params).usage.accepted_tokens > 0
    engine.close()
    assert small.closed


def test_a_draft_model_that_fails_ends_its_guesses_alone(
    start: Start, small: Forgetful, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(step: int) -> None:
        if step == 5:
            raise ZeroDivisionError

    small.before_step = fail
    engine = start()
    plain = SamplingParams(seed=3, ignore_eos=True, max_tokens=60, speculation="off")  # type: ignore[arg-type]
    asked = SamplingParams(seed=3, ignore_eos=True, max_tokens=60, speculation=DRAFT)  # type: ignore[arg-type]
    assert engine.complete("hello", asked) == engine.complete("hello", plain)
    assert engine.health.state is HealthState.OK
    assert "the draft model failed; it makes no more guesses" in caplog.text
    assert engine.complete("hello", asked).usage.drafted_tokens == 0


def test_a_draft_model_with_another_vocabulary_is_refused_or_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    executors: list[FakeExecutor] = []

    def load(source: str, config: EngineConfig) -> LoadedModel:
        assert (source, config.of(DrafterSettings).draft) == ("small", "")
        executors.append(FakeExecutor())
        found = fake_model(executors[-1])
        entries = [(b"x", False)] if differs else list(found.tokenizer.vocabulary_entries())
        monkeypatch.setattr(found.tokenizer, "vocabulary_entries", lambda: iter(entries))
        return found

    monkeypatch.setattr("heddle.extensions.drafters.model.load_model", load)
    model, config = fake_model(FakeExecutor()), configured(draft="small")
    differs = True
    with pytest.raises(ConfigError, match="small does not fit fake, which has another vocabulary"):
        batch_drafter_of(model, config)
    with caplog.at_level("INFO", "heddle"):
        assert batch_drafter_of(model, configured(config, draft_required=False)) is None
    assert "fake runs without the draft model small" in caplog.text
    assert all(executor.closed for executor in executors)
    differs = False
    assert batch_drafter_of(model, configured(config, draft_required=False)) is not None


def test_the_head_is_not_loaded_beside_a_draft_model() -> None:
    unread: Any = None
    assert share(unread, unread, configured(draft="small")).speculation == "off"
    assert share(unread, unread, configured()).speculation == "auto"


def test_model_and_draft_model_share_one_kv_cache(tmp_path: Path) -> None:
    small = TinyLlama("small", heads=2, kv_heads=1, head_dim=16, tied=True, context=512)
    large = replace(small, name="large", layers=7)
    paths = [str(one.write_folder(tmp_path / one.name)) for one in (large, small)]
    config = configured(slots=4, threads=1, kv_cache=200_000, draft=paths[1])
    model = load_model(paths[0], config)
    draft = batch_drafter_of(model, config)
    assert isinstance(draft, DraftModel)
    memories = [model.executor.memory, draft._executor.memory]
    assert sum(memory.bytes for memory in memories) <= config.kv_cache
    assert abs(memories[0].pages - memories[1].pages) <= 3
    assert memories[0].pages > 8
    draft.close()
    model.close()
