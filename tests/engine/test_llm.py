"""The facade: batches in order, chats, errors."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fake_executor import FakeExecutor
from fake_model import fake_model
from heddle import LLM, Engine, EngineConfig, FinishReason, InvalidRequestError, SamplingParams


def llm(executor: FakeExecutor | None = None, template: bool = True, **settings: Any) -> LLM:
    model = fake_model(executor or FakeExecutor(), template=template)
    return LLM(Engine(model, EngineConfig(**settings)))


def params(seed: int = 1, **fields: Any) -> SamplingParams:
    return SamplingParams(seed=seed, **fields)


def test_a_batch_of_any_length_comes_back_in_order() -> None:
    with llm(slots=2, queue=1) as model:
        prompts = ["a" * length for length in range(1, 30)]
        chosen = params(max_tokens=5)
        outputs = model.generate(prompts, chosen)
        assert [output.usage.prompt_tokens for output in outputs] == list(range(1, 30))
        assert outputs == [model.engine.complete(prompt, chosen) for prompt in prompts]


def test_params_for_each_prompt() -> None:
    with llm() as model:
        outputs = model.generate(
            ["ab", [3, 4]], [params(max_tokens=n, ignore_eos=True) for n in (2, 3)]
        )
        assert [output.usage.completion_tokens for output in outputs] == [2, 3]
        with pytest.raises(InvalidRequestError, match="1 entry for 2 prompts"):
            model.generate(["a", "b"], [params()])


def test_prompts_from_a_generator() -> None:
    with llm() as model:
        assert model.generate(iter(["ab", "c"]), params()) == model.generate(["ab", "c"], params())


def test_bytes_are_refused_as_token_ids() -> None:
    with llm() as model, pytest.raises(InvalidRequestError, match="bytes"):
        model.generate([b"\1\2"], params())


def test_one_text_is_a_batch_of_one() -> None:
    with llm() as model:
        assert model.generate("abc", params()) == model.generate(["abc"], params())


def test_a_refused_prompt_cancels_its_batch_and_frees_the_queue() -> None:
    executor = FakeExecutor()
    with llm(executor, slots=1, queue=1) as model:
        executor.gate.clear()
        with pytest.raises(InvalidRequestError):
            model.generate(["abc", [99]], params(ignore_eos=True))
        executor.gate.set()
        model.generate(["abc"], params(max_tokens=2))
        assert model.engine.snapshot().finished[FinishReason.CANCELLED] == 1
        assert [model._places.acquire(blocking=False) for _ in range(3)] == [True, True, False]


def test_chat_renders_the_template() -> None:
    with llm() as model:
        answer = model.chat([{"role": "user", "content": "hi"}], params(max_tokens=6))
        assert answer == model.generate("user- hi.", params(max_tokens=6))[0]


def test_chat_without_a_template_is_refused() -> None:
    with llm(template=False) as model, pytest.raises(InvalidRequestError, match="no chat template"):
        model.chat([{"role": "user", "content": "hi"}])


def test_close_closes_the_engine() -> None:
    executor = FakeExecutor()
    with llm(executor):
        pass
    assert executor.closed


def test_the_progress_bar_counts_finished_prompts(capsys) -> None:
    with llm() as model:
        model.generate(["ab"] * 30, params(max_tokens=2), progress=True)
        assert "30/30" in capsys.readouterr().err
        model.generate(["ab"] * 30, params(max_tokens=2), progress=False)
        model.generate(["ab"] * 30, params(max_tokens=2))  # no terminal
        assert capsys.readouterr().err == ""


def test_only_a_batch_of_several_prompts_shows_a_progress_bar(capsys, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    with llm() as model:
        model.generate(["ab"] * 15, params(max_tokens=2))
        assert capsys.readouterr().err == ""
        model.generate(["ab"] * 16, params(max_tokens=2))
        assert "16/16" in re.sub(r"\x1b\[[0-9;?]*\w", "", capsys.readouterr().err)
