"""Uploads to torch devices: in chunks, quantised at load, and what files do that change."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_files import SMALL

from extensions.packed.packed_folder import as_fp8, write_packed
from gguf_writer import write_gguf
from heddle.errors import ModelFileError
from heddle.executors.devices import loader
from heddle.extensions.quantise.quantising import quantise_file
from heddle.step import Chunk, Scoring, StepPlan
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.mix import TARGETS, Mix
from models.tiny.base import TOKENS
from models.tiny.llama import PLAIN
from models.tiny.qwen3_moe import TinyQwen3Moe
from steps import execute

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.config import EngineConfig
    from heddle.weights.checkpoint import Checkpoint

torch = pytest.importorskip("torch")
from heddle.extensions.torch import upload  # noqa: E402

CONFIG = replace(SMALL, device="torch", kv_cache=4 << 20, batch_tokens=32, speculation="off")
WIDE = replace(PLAIN, width=64, ffn_width=256)
MIXTURE = TinyQwen3Moe("odd", 3, 1, 32, False, width=64, experts=5, used=2)
load = loader("torch")


def logprobs(checkpoint: Checkpoint, config: EngineConfig = CONFIG) -> object:
    """Those of the whole vocabulary after each of some tokens."""
    executor = load(checkpoint, config)
    score = Scoring(0, TOKENS[1:], executor.shape.vocabulary)
    plan = StepPlan((), (Chunk(0, 0, TOKENS[:-1], [0], False, score),))
    (scored,) = execute(executor, plan).scored
    executor.close()
    return scored.scores


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", [WIDE, MIXTURE], ids=str)
def test_matrices_quantised_at_load_are_those_of_a_quantised_file(model, target, tmp_path):
    """The embedding, the output matrix and narrow rows get other types, routers none."""
    checkpoint = model.checkpoint(tmp_path)
    path = tmp_path / "quantised.gguf"
    quantise_file(tmp_path / "tiny.gguf", path, Mix.named(target))
    quantised = replace(CONFIG, quantize=target)
    found = logprobs(checkpoint, quantised)
    assert found == logprobs(GGUFCheckpoint.open(path))
    assert found != logprobs(checkpoint)
    plain, small = load(checkpoint, CONFIG), load(checkpoint, quantised)
    assert small.held_bytes < 0.6 * plain.held_bytes + 0.5 * small.memory.bytes
    assert small.page_format != plain.page_format


@pytest.fixture(params=["file", "folder", "fp8", "quantised"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Checkpoint, EngineConfig]:
    """A mixture: its experts lie in one piece in the file, and one by one in the folder."""
    if request.param == "fp8":
        model = replace(MIXTURE, expert_width=64)
        write_packed(model, tmp_path / "folder", {"quant_method": "fp8"}, as_fp8)
        return HuggingFaceCheckpoint.open(tmp_path / "folder"), CONFIG
    if request.param == "folder":
        return HuggingFaceCheckpoint.open(MIXTURE.write_folder(tmp_path / "folder")), CONFIG
    quantize = "q8_0" if request.param == "quantised" else "none"
    return MIXTURE.checkpoint(tmp_path), replace(CONFIG, quantize=quantize)


def test_chunks_of_any_size_upload_the_same(case, monkeypatch):
    checkpoint, config = case
    whole = logprobs(checkpoint, config)
    monkeypatch.setattr(upload, "STAGING_BYTES", 1000)
    assert logprobs(checkpoint, config) == whole


def test_stored_tensors_pass_through_one_small_buffer(case, monkeypatch):
    """Nothing reads one of them as a whole, and progress follows each chunk."""
    checkpoint, config = case
    read, made = type(checkpoint).read, []

    def read_and_note(
        self: Checkpoint, name: str, start: int = 0, size: int | None = None
    ) -> object:
        if size is None:
            made.append(name)
        return read(self, name, start, size)

    monkeypatch.setattr(type(checkpoint), "read", read_and_note)
    monkeypatch.setattr(upload, "STAGING_BYTES", 1000)
    calls: list[int] = [0]
    load(checkpoint, config, calls.append)
    assert not [
        name for name in made if checkpoint.tensors[name].has_place or checkpoint.reads_parts(name)
    ]
    assert calls[-1] == sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    steps = {after - before for before, after in pairwise(calls)}
    assert min(steps) > 0
    assert max(steps) <= 1000


def test_threads_read_pieces_to_their_places(case, monkeypatch):
    """Also where a system call returns less than it was asked for."""
    checkpoint, config = case
    expected, pread = logprobs(checkpoint, config), os.pread
    monkeypatch.setattr(upload, "_PIECE", 100)
    monkeypatch.setattr(
        upload.os, "pread", lambda descriptor, size, at: pread(descriptor, min(size, 70), at)
    )
    assert logprobs(checkpoint, config) == expected


def test_a_file_that_ends_before_a_tensor_does_is_named(tmp_path, monkeypatch):
    checkpoint = WIDE.checkpoint(tmp_path)
    monkeypatch.setattr(upload.os, "pread", lambda descriptor, size, offset: b"")
    with pytest.raises(ModelFileError, match=r"token_embd\.weight cannot be read: .* ends at byte"):
        load(checkpoint, CONFIG)


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    checkpoint = WIDE.checkpoint(tmp_path)

    def fail(*args: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(upload.os, "pread", fail)
    with pytest.raises(ModelFileError, match=r"cannot be read: Input/output error"):
        load(checkpoint, CONFIG)


@pytest.mark.parametrize("quantize", ["none", "q8_0"])
def test_a_row_that_is_not_finite_is_named_by_its_place_in_the_tensor(
    quantize, tmp_path, monkeypatch
):
    tensors = {tensor.name: tensor for tensor in WIDE.tensors()}
    name = "blk.1.ffn_up.weight"
    rows = np.frombuffer(tensors[name].data, np.float32).reshape(WIDE.ffn_width, WIDE.width).copy()
    rows[201, 3] = np.inf
    tensors[name] = replace(tensors[name], data=rows.tobytes())
    path = write_gguf(tmp_path / "a.gguf", WIDE.metadata(), [*tensors.values()])
    monkeypatch.setattr(upload, "STAGING_BYTES", 5000)
    config = replace(CONFIG, quantize=quantize)
    with pytest.raises(ModelFileError, match=rf"{name} has infinite or NaN weights \(row 201\)"):
        load(GGUFCheckpoint.open(path), config)
    load(GGUFCheckpoint.open(path), replace(config, allow_nonfinite=True)).close()
