"""From a name to an engine, on the default model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from heddle import LLM, ConfigError, Engine, EngineConfig, FinishReason, SamplingParams
from heddle.config import DEFAULT_MODEL
from heddle.errors import ModelFileError, ModelSourceError

if TYPE_CHECKING:
    from pathlib import Path

GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.mark.model
def test_a_model_found_by_its_alias_says_what_it_is(model_path: Path) -> None:
    with Engine.load(config=EngineConfig(slots=1, context=256)) as engine:
        info = engine.model.info
        assert info.id == DEFAULT_MODEL
        assert (info.path, info.file_bytes) == (model_path, model_path.stat().st_size)
        assert (info.architecture, info.quantisation) == ("llama", "Q4_1")
        assert (info.parameters, info.vocabulary) == (134_515_008, 49_152)
        assert info.context == engine.context == 256


@pytest.mark.model
def test_a_model_found_by_its_path_answers(model_path: Path) -> None:
    with LLM(model_path, EngineConfig(slots=2)) as model:
        assert model.engine.model.info.id == model_path.stem
        greeting = [{"role": "user", "content": "Say hello in French."}]
        prompt = model.engine.model.tokenizer.decode(
            model.engine.model.chat_prompt(greeting), skip_special=False
        )
        assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
        answer = model.chat(greeting, GREEDY)
        assert answer.finish is FinishReason.STOP
        assert "Bonjour" in answer.text
        assert "<|" not in answer.text
        outputs = model.generate(["The sea is"] * 5, GREEDY)
        assert len({output.text for output in outputs}) == 1


@pytest.mark.model
def test_a_context_beyond_the_model_is_refused(model_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        Engine.load(model_path, EngineConfig(context=10_000))
    assert error.value.param == "context"


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="does not exist"):
        Engine.load(tmp_path / "none.gguf")


def test_no_model_file(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("a text")
    with pytest.raises(ModelFileError):
        Engine.load(path)
