"""Model files that somebody truncates or overwrites while they are read, loaded or served."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gguf_writer import Tensor, write_gguf
from heddle import Engine, EngineConfig, SamplingParams
from heddle.errors import ModelFileError
from heddle.executors.cpu import load as cpu
from heddle.loading.fingerprint import pages_fingerprint
from heddle.step import Binding, Chunk, StepPlan
from heddle.weights.gguf import file as gguf
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.gguf.file import GGUFFile
from models.tiny.base import CONTEXT, TOKENS
from models.tiny.llama import TinyLlama

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from heddle.executors.cpu.executor import CpuExecutor

MODEL = TinyLlama("untied", heads=4, kv_heads=2, head_dim=16, tied=False)
CONFIG = EngineConfig(slots=1, threads=1, context=CONTEXT, kv_cache=1 << 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    MODEL.write(tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite(path: Path) -> None:
    """Write other weights of the same size to the same path, with another time."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size - 64)
        file.write(np.ones(16, np.float32).tobytes())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def test_a_truncated_tensor_is_named(path: Path) -> None:
    with GGUFFile.open(path) as file:
        last = max(file.tensors.values(), key=lambda tensor: tensor.offset)
        truncate(path)
        with pytest.raises(ModelFileError, match="truncated while it was read") as error:
            file.data(last.name)
    assert error.value.field == last.name


@pytest.mark.parametrize("change", [truncate, overwrite])
def test_a_file_that_changes_during_loading_is_refused(
    path: Path, change: Callable[[Path], None]
) -> None:
    changed = []

    def progress(packed: int) -> None:
        if not changed:
            changed.append(packed)
            change(path)

    with (
        GGUFCheckpoint.open(path) as checkpoint,
        pytest.raises(ModelFileError, match=r"changed while|truncated while"),
    ):
        cpu.load(checkpoint, CONFIG, progress)
    assert changed


@pytest.mark.parametrize("change", [truncate, overwrite])
def test_a_loaded_model_does_not_depend_on_its_file(
    path: Path, change: Callable[[Path], None]
) -> None:
    with GGUFCheckpoint.open(path) as checkpoint:
        executor = cpu.load(checkpoint, CONFIG)
    before = logits(executor)
    change(path)
    np.testing.assert_array_equal(logits(executor), before)


def logits(executor: CpuExecutor) -> np.ndarray:
    params = SamplingParams(temperature=0, seed=1)
    chunk = Chunk(0, 0, TOKENS, [0], sample=True)
    return executor.logits(StepPlan((Binding(0, params, TOKENS, ()),), (chunk,)))


@pytest.mark.model
@pytest.mark.parametrize(
    ("change", "state"), [(None, "unchanged"), (overwrite, "changed"), (os.unlink, "missing")]
)
def test_a_model_detects_that_its_file_has_changed(
    model_path: Path, tmp_path: Path, change: Callable[[Path], None] | None, state: str
) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(model_path.read_bytes())
    with Engine.load(copy, EngineConfig(slots=1, context=64)) as engine:
        if change is None:
            assert len(pages_fingerprint(engine.model)) == 32
        else:
            change(copy)
            with pytest.raises((ModelFileError, OSError)):
                pages_fingerprint(engine.model)  # it would be the fingerprint of other weights
        assert engine.model.file_state() == state


def test_a_header_longer_than_the_first_read_is_read_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = {"a.list": [f"piece {i}" for i in range(200)], "a.text": "x" * 5_000, "a.number": 7}
    path = write_gguf(tmp_path / "a.gguf", metadata, [Tensor.of("t", np.ones(4, np.float32))])
    monkeypatch.setattr(gguf, "_FIRST_READ", 16)
    with GGUFFile.open(path) as file:
        assert list(file.metadata["a.list"]) == metadata["a.list"]  # type: ignore[call-overload]
        assert (file.metadata["a.text"], file.metadata["a.number"]) == ("x" * 5_000, 7)
        assert file.data("t").view(np.float32).tolist() == [1] * 4


def test_a_header_beyond_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "a.gguf", {"a.text": "x" * 5_000})
    monkeypatch.setattr(gguf, "_FIRST_READ", 16)
    monkeypatch.setattr(gguf, "_LARGEST_HEADER", 1_000)
    with pytest.raises(ModelFileError, match="longer than 1000 bytes"):
        GGUFFile.open(path)
