"""From a name to an engine, on the default model."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from gguf_writer import write_gguf
from heddle import LLM, ConfigError, Engine, EngineConfig, FinishReason, SamplingParams
from heddle.config import DEFAULT_MODEL
from heddle.errors import ModelFileError, ModelSourceError
from heddle.executors.cpu.executor import CpuExecutor

if TYPE_CHECKING:
    from pathlib import Path

MEMORY_OF_A_LOAD = """
import sys
from pathlib import Path
from heddle import Engine
with Engine.load(sys.argv[1]) as engine:
    print(Path("/proc/self/status").read_text(), Path("/proc/self/smaps").read_text())
"""

GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.mark.model
def test_a_model_loaded_by_alias_reports_its_name(model_path: Path) -> None:
    with Engine.load(config=EngineConfig(slots=1, context=256)) as engine:
        info = engine.model.info
        assert info.id == DEFAULT_MODEL
        assert (info.path, info.file_bytes) == (model_path, model_path.stat().st_size)
        assert (info.architecture, info.quantisation) == ("llama", "Q4_1")
        assert (info.parameters, info.vocabulary) == (134_515_008, 49_152)
        assert info.context == engine.context == 256


@pytest.mark.model
def test_a_model_loaded_by_path_generates(model_path: Path) -> None:
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


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="does not exist"):
        Engine.load(tmp_path / "none.gguf")


def test_a_file_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("a text")
    with pytest.raises(ModelFileError):
        Engine.load(path)


# --- progress and memory -------------------------------------------------------------------------


class Told:
    """A `Progress` that records its calls."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int | None, bool]] = []
        self.updates: list[int] = []
        self.finished = 0

    def note(self, text: str) -> None:
        raise AssertionError(text)

    def start(self, label: str, total: int | None, *, quick: bool = False) -> None:
        self.started.append((label, total, quick))

    def update(self, done: int) -> None:
        self.updates.append(done)

    def finish(self) -> None:
        self.finished += 1


@pytest.mark.model
def test_progress_counts_tensors_up_to_the_total(model_path: Path) -> None:
    told = Told()
    Engine.load(model_path, EngineConfig(slots=1, context=64), progress=told).close()
    [(label, total, quick)] = told.started
    assert (label, quick, told.finished) == (f"loading {model_path.stem}", True, 1)
    assert total is not None
    assert 0.95 < total / model_path.stat().st_size < 1
    assert len(told.updates) > 200
    assert all(before <= after for before, after in pairwise(told.updates))
    assert told.updates[-1] == total
    assert told.updates[-2] > 0.99 * total


def test_progress_ends_when_loading_fails(tmp_path: Path) -> None:
    told = Told()
    path = write_gguf(tmp_path / "empty.gguf", {"general.architecture": "llama"})
    with pytest.raises(ModelFileError):
        Engine.load(path, progress=told)
    assert (len(told.started), told.finished) == (1, 1)


@pytest.mark.model
def test_held_bytes_include_the_tokenizer_and_its_data_for_grammars(model_path: Path) -> None:
    with Engine.load(model_path, EngineConfig(slots=1, context=64)) as engine:
        executor = engine.model.executor
        assert isinstance(executor, CpuExecutor)
        beside = executor.held_bytes - executor.memory.bytes - executor.weight_bytes
        assert beside >= 2000 * engine.model.info.vocabulary


@pytest.mark.model
def test_loading_needs_less_than_twice_the_model_in_memory(model_path: Path) -> None:
    command = [sys.executable, "-c", MEMORY_OF_A_LOAD, str(model_path)]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    peak, final = (int(re.search(rf"{field}:\s+(\d+)", report)[1]) for field in ("VmHWM", "VmRSS"))
    assert str(model_path) not in report, "a file that is mapped kills the process once truncated"
    assert peak < 1.15 * final
