"""A model runs with its matrices in any tensor type."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from test_logits import last_logits

from gguf_writer import Tensor, write_gguf
from heddle.config import EngineConfig
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.executors.cpu.load import load
from heddle.extensions.reference.model import ReferenceModel
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.tensor_types import TensorType
from models.tiny.base import TOKENS
from models.tiny.llama import TinyLlama
from tensor_blocks import random_matrix

if TYPE_CHECKING:
    from pathlib import Path

WIDE = TinyLlama(
    "wide", heads=4, kv_heads=2, head_dim=64, tied=False, layers=1, width=256, ffn_width=256
)


def write_model(path: Path, kind: TensorType) -> GGUFCheckpoint:
    """All matrices are random blocks, except those of queries and keys.

    With random blocks, scores would be so large that the least error of activations changes
    the attention weights.
    """
    rng = np.random.default_rng(3)

    def stored(tensor: Tensor) -> Tensor:
        if len(tensor.shape) == 1 or "attn_q" in tensor.name or "attn_k" in tensor.name:
            return tensor
        return replace(tensor, data=random_matrix(rng, kind, *tensor.shape).tobytes(), type=kind)

    tensors = [stored(tensor) for tensor in WIDE.tensors()]
    return GGUFCheckpoint.open(write_gguf(path / "typed.gguf", WIDE.metadata(), tensors))


IN_GGUF = [kind for kind in TensorType.supported() if kind.is_in_gguf]


@pytest.mark.parametrize("kind", IN_GGUF, ids=lambda kind: kind.name)
def test_the_executor_agrees_with_the_reference(kind: TensorType, tmp_path: Path) -> None:
    """They differ by the error of int8 activations, a few hundredths."""
    file = write_model(tmp_path, kind)
    executor = load(file, EngineConfig(slots=1, threads=2, context=len(TOKENS)))
    logits = last_logits(executor, TOKENS, range(1, len(TOKENS) + 1))
    expected = ReferenceModel(file).logits(TOKENS)
    distance = np.sqrt(np.mean((logits - expected) ** 2) / np.mean(expected**2))
    assert distance < 0.05
    executor.close()


def test_an_unsupported_type_is_named_with_its_tensor(tmp_path: Path) -> None:
    rows = Tensor.random("blk.0.ffn_up.weight", TensorType.Q8_K, (256, 256), seed=1)
    tensors = [rows if tensor.name == rows.name else tensor for tensor in WIDE.tensors()]
    file = GGUFCheckpoint.open(write_gguf(tmp_path / "grid.gguf", WIDE.metadata(), tensors))
    message = r"tensor blk.0.ffn_up.weight of type Q8_K is not supported; supported: .* F8_E4M3\."
    with pytest.raises(UnsupportedModelError, match=message):
        load(file, EngineConfig(slots=1, threads=1))


@pytest.mark.parametrize("kind", [TensorType.TQ2_0, TensorType.MXFP4], ids=lambda kind: kind.name)
def test_a_nan_scale_is_refused(kind: TensorType, tmp_path: Path) -> None:
    at, scale = (64, b"\x00\x7e") if kind is TensorType.TQ2_0 else (0, b"\xff")
    data = bytearray(random_matrix(np.random.default_rng(4), kind, 256, 256).tobytes())
    block = 256 // kind.block_elements * kind.block_bytes * 77  # of row 77
    data[block + at : block + at + len(scale)] = scale
    bad = Tensor("blk.0.ffn_up.weight", bytes(data), (256, 256), kind)
    tensors = [bad if tensor.name == bad.name else tensor for tensor in WIDE.tensors()]
    file = GGUFCheckpoint.open(write_gguf(tmp_path / "bad.gguf", WIDE.metadata(), tensors))
    with pytest.raises(ModelFileError, match=r"blk.0.ffn_up.weight has infinite or NaN .*row 77"):
        load(file, EngineConfig(slots=1, threads=1))
