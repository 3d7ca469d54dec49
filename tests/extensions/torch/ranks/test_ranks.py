"""Ranks as processes, connected by gloo: equal results, failures with their reason, no process
left."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from configs import configured
from devices import SAMPLING
from heddle.engine.engine import Engine
from heddle.errors import (
    ConfigError,
    EngineClosedError,
    EngineFailedError,
    ModelPoisonedError,
)
from heddle.executors.devices import loader
from heddle.extensions.processes.children import process as children
from heddle.sampling_params import SamplingParams
from heddle.step import Binding, Chunk, StepPlan
from models.rig import Rig
from models.tiny import llama, qwen3, qwen3_5, qwen3_moe
from patience import PATIENCE
from steps import execute

if TYPE_CHECKING:
    from pathlib import Path

    from models.rig import Bits
    from models.tiny.base import TinyModel

pytest.importorskip("torch")

SHORT = SamplingParams(temperature=0, max_tokens=6, logprobs=2, ignore_eos=True)
PROMPTS = [[(7 * i * i + 3 * i) % 31 + 1 for i in range(length)] for length in (70, 9, 40)]
PROMPTS.append([*PROMPTS[0][:50], 5, 6])
CONFIG = configured(
    device="torch", tensor_parallel=2, slots=2, kv_cache=1 << 20, threads=1, rank_timeout=20
)

torch_slow = pytest.mark.torch_slow
pytestmark = pytest.mark.usefixtures("processes")


def rig(model: TinyModel, folder: Path, ranks: int, device: str = "torch", **settings: Any) -> Rig:
    return Rig(
        replace(model, context=1024).checkpoint(folder),
        device=device,
        tensor_parallel=ranks,
        threads=1,
        kv_cache=ranks << 20,
        **settings,
    )


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=torch_slow)])
@pytest.mark.parametrize(
    "model",
    [
        llama.PLAIN,
        pytest.param(qwen3.MODELS[0], marks=torch_slow),
        qwen3_moe.MODELS[0],
        qwen3_5.MODELS[0],
    ],
    ids=str,
)
def test_ranks_give_what_one_gives_and_the_same_bits_in_company(
    model: TinyModel, ranks: int, tmp_path: Path
) -> None:
    """With as many ranks, bits are those of a request alone: in chunks, in company, from a prefix
    in memory or on disk."""
    one = rig(model, tmp_path, 1, slots=1, batch_tokens=512, prefix_cache=False)
    expected = one.one_by_one(PROMPTS, SHORT)
    one.close()
    alone = rig(model, tmp_path, ranks, slots=1, batch_tokens=512, prefix_cache=False)
    bits: list[Bits] = alone.one_by_one(PROMPTS, SHORT)
    alone.close()
    for own, other in zip(expected, bits, strict=True):
        assert [token for token, _, _ in own] == [token for token, _, _ in other]
        np.testing.assert_allclose([o[1] for o in own], [o[1] for o in other], atol=2e-3)
    for _ in range(2):
        beside = rig(model, tmp_path, ranks, slots=3, batch_tokens=33, disk=tmp_path / str(ranks))
        assert beside.run(PROMPTS, SHORT) == bits
        assert beside.run(PROMPTS, SHORT) == bits
        assert max(one or 0 for one in beside.found) >= 32
        beside.close()
    assert beside.tier is not None
    if not beside.executor.memory.fixed:  # prompts are too short for snapshots of states
        assert beside.tier.stats().restored_tokens > 0


@pytest.mark.parametrize("model", [llama.PLAIN, qwen3_5.MODELS[0]], ids=str)
def test_wrong_guesses_change_no_rank(model: TinyModel, tmp_path: Path) -> None:
    """After a wrong guess, all ranks set back the states of recurrences."""
    alone = rig(model, tmp_path, 2, slots=1, prefix_cache=False)
    bits: list[Bits] = alone.one_by_one(PROMPTS, SHORT)
    alone.close()
    guessing = rig(model, tmp_path, 2, slots=3, batch_tokens=33, outputs=bits)
    assert guessing.run(PROMPTS, SHORT) == bits
    assert (guessing.again > 0) == bool(guessing.executor.memory.fixed)
    guessing.close()


@pytest.mark.parametrize("model", [llama.PLAIN, qwen3_5.MODELS[0]], ids=str)
def test_a_step_ahead_changes_no_bits_of_ranks(model: TinyModel, tmp_path: Path) -> None:
    """The other ranks get the tokens from rank 0's device."""
    drawn = replace(SHORT, temperature=0.8, seed=3)
    drawn = replace(drawn, repetition_penalty=1.3, dry_multiplier=0.8, dry_allowed_length=1)
    for params in (SHORT, drawn):
        waiting = rig(model, tmp_path, 2, SAMPLING, slots=3, batch_tokens=33)
        waiting.executor.runs_ahead = False
        bits: list[Bits] = waiting.run(PROMPTS, params)
        assert waiting.steps_ahead == 0
        waiting.close()
        ahead = rig(model, tmp_path, 2, SAMPLING, slots=3, batch_tokens=33)
        assert ahead.run(PROMPTS, params) == bits
        assert ahead.steps_ahead > 0
        ahead.close()
    one = rig(model, tmp_path, 1, SAMPLING, slots=3, batch_tokens=33)
    for own, other in zip(one.run(PROMPTS, drawn), bits, strict=True):
        assert [token for token, _, _ in own] == [token for token, _, _ in other]
    one.close()


def test_ranks_score_prompts_and_make_embeddings(tmp_path: Path) -> None:
    found: list[Any] = []
    for ranks in (1, 2):
        config = configured(CONFIG, tensor_parallel=ranks)
        with Engine.load(llama.PLAIN.write_folder(tmp_path / str(ranks)), config) as engine:
            scored = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
            deltas = list(engine.stream(PROMPTS[1], scored))
            scores = [one.logprob for delta in deltas for one in delta.prompt_logprobs or () if one]
            vector = engine.embed(PROMPTS[1]).vector
            found.append((scores, np.asarray(vector)))
    (scores, vector), (of_two, vector_of_two) = found
    assert len(scores) == len(PROMPTS[1]) - 1
    np.testing.assert_allclose(of_two, scores, atol=2e-3)
    np.testing.assert_allclose(vector_of_two, vector, atol=2e-3)


def one_token(executor: Any) -> Any:
    binding = Binding(0, replace(SHORT, seed=0), [1, 2], [])
    plan = StepPlan((binding,), (Chunk(0, 0, [1, 2], [0], True),))
    return execute(executor, plan).sampled[0]


def test_a_rank_that_is_killed_fails_the_step_with_its_reason(tmp_path, processes):
    executor = loader("torch")(llama.PLAIN.checkpoint(tmp_path), CONFIG)
    one_token(executor)
    processes[0].kill()
    with pytest.raises(EngineFailedError, match=r"rank 1 \(process \d+\) was killed by signal 9"):
        one_token(executor)
    executor.close()


def test_a_rank_that_is_silent_fails_the_step(tmp_path, processes):
    config = configured(CONFIG, rank_timeout=5)
    executor = loader("torch")(llama.PLAIN.checkpoint(tmp_path), config)
    one_token(executor)
    os.kill(processes[0].pid, signal.SIGSTOP)
    with pytest.raises(EngineFailedError, match=r"rank 1 .* has been silent for more than 5 s"):
        one_token(executor)
    executor.close()


def test_a_rank_that_computes_other_values_fails_the_model(tmp_path):
    executor: Any = loader("torch")(llama.PLAIN.checkpoint(tmp_path), CONFIG)
    executor._group.note(b"none")
    with pytest.raises(EngineFailedError, match="rank 1 computed other values than rank 0"):
        for _ in range(1000):
            one_token(executor)
    executor.close()


def test_a_rank_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "program_version", lambda: {"heddle": "0", "torch": "0"})
    with pytest.raises(
        EngineFailedError, match=r"rank 1 runs \{.*\}, and its parent \{'heddle': '0'"
    ):
        loader("torch")(llama.PLAIN.checkpoint(tmp_path), CONFIG)


def test_heads_that_do_not_divide_are_refused_before_a_process_starts(tmp_path, processes):
    model = qwen3.MODELS[1]
    with pytest.raises(ConfigError, match="does not divide the 3 query heads with 1 key heads"):
        loader("torch")(model.checkpoint(tmp_path), CONFIG)
    assert not processes


def test_a_model_is_unloaded_while_its_ranks_compute(tmp_path):
    path = replace(llama.PLAIN, context=4096).write_folder(tmp_path / "tiny")
    engine = Engine.load(path, CONFIG)
    running = engine.stream([1, 2, 3], SamplingParams(max_tokens=4000, ignore_eos=True))
    next(running)
    engine.close()
    with pytest.raises(EngineClosedError):
        list(running)


def test_a_killed_rank_poisons_the_model_and_a_new_load_serves_again(tmp_path, processes):
    path = llama.PLAIN.write_folder(tmp_path / "tiny")
    engine = Engine.load(path, CONFIG)
    processes[0].kill()  # no request runs
    engine.thread._thread.join(PATIENCE)
    with pytest.raises(ModelPoisonedError, match="was killed by signal 9"):
        list(engine.stream([1, 2, 3], SHORT))
    assert engine.health.poison is not None
    assert "rank 1" in engine.health.poison.reason
    engine.close()
    engine = Engine.load(path, CONFIG)
    assert list(engine.stream([1, 2, 3], SHORT))
    engine.close()
