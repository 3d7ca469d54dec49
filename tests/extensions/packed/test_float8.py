"""A folder in FP8 computes what a file with the same values in float32 does, to the bit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tiny_files import SMALL

from devices import EXECUTORS, load_on
from extensions.packed.packed_folder import as_fp8_in_blocks, write_packed
from heddle.executors.memory_plan import text_bytes
from heddle.extensions.quantise.quantising import quantise_file
from heddle.step import Chunk, Scoring, StepPlan
from heddle.weights.formats import open_checkpoint
from heddle.weights.mix import Mix
from heddle.weights.tensor_types import TensorType
from models.tiny.base import TOKENS
from models.tiny.qwen3 import TinyQwen3
from models.tiny.qwen3_moe import TinyQwen3Moe
from steps import execute

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = replace(SMALL, kv_cache=4 << 20, batch_tokens=32, speculation="off")
MODELS = [
    TinyQwen3("dense", 4, 2, 32, False, width=64, ffn_width=128),
    TinyQwen3Moe("mixture", 4, 2, 32, False, width=64, experts=5, used=2, expert_width=64),
]
SETTINGS = {"quant_method": "fp8", "weight_block_size": [48, 64]}
KEEP_BYTES = [device for device in EXECUTORS if device != "reference"]
"""Devices that hold weights as stored."""

SAME_OPERATIONS = [device for device in KEEP_BYTES if device != "cuda"]
"""Those whose products of F8_E4M3 and of F32 have the same operations."""


@pytest.fixture(params=MODELS, ids=str)
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """The folder, and a GGUF file of it, which has F32 in place of a type that GGUF lacks."""
    folder, file = tmp_path / "folder", tmp_path / "same.gguf"
    packer = partial(as_fp8_in_blocks, height=48, width=64)
    write_packed(request.param, folder, SETTINGS, packer)
    quantise_file(folder, file, Mix())
    return folder, file


def scores(device: str, path: Path, quantize: str) -> object:
    """Log probabilities of the whole vocabulary after each of some tokens."""
    with open_checkpoint(path) as checkpoint:
        executor = load_on(device, checkpoint, replace(CONFIG, quantize=quantize))
        score = Scoring(0, TOKENS[1:], executor.shape.vocabulary)
        plan = StepPlan((), (Chunk(0, 0, TOKENS[:-1], [0], False, score),))
        (scored,) = execute(executor, plan).scored
        executor.close()
        return scored.scores


@pytest.mark.parametrize("device", SAME_OPERATIONS)
@pytest.mark.parametrize("quantize", ["none", "q8_0"])
def test_fp8_is_as_good_as_float32(paths, device, quantize):
    """As stored, and quantised at load: FP8 counts as floats there."""
    folder, file = paths
    assert scores(device, folder, quantize) == scores(device, file, quantize)


def test_a_gguf_file_of_fp8_has_floats_of_32_bits(paths):
    folder, file = paths
    with open_checkpoint(folder) as old, open_checkpoint(file) as new:
        types = {old.tensors[name].type for name in old.tensors}
        assert TensorType.F8_E4M3 in types
        assert {tensor.type for tensor in new.tensors.values()} == {TensorType.F32}


@pytest.mark.parametrize("device", KEEP_BYTES)
def test_fp8_takes_little_more_than_a_byte_a_weight(paths, device):
    held = []
    for path in paths:
        with open_checkpoint(path) as checkpoint:
            executor = load_on(device, checkpoint, CONFIG)
            text = text_bytes(executor.shape) if device == "cpu" else 0
            held.append(executor.held_bytes - executor.memory.bytes - text)
            executor.close()
    assert held[0] < 0.75 * held[1]  # embedding and output are F32 in both
