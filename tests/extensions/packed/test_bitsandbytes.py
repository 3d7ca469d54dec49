"""Folders of bitsandbytes are read as the values that it computes, to the bit.

The writers follow `bitsandbytes/functional.py` and `backends/default/ops.py`; no code of Heddle's
is used.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from extensions.packed.packed_folder import Packed, Storable, write_mixed, write_packed
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.packed.values import rounded
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import TensorType, dequantize
from models.tiny.llama import TinyLlama

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL = TinyLlama("bnb", heads=4, kv_heads=2, head_dim=16, tied=True, width=64, ffn_width=128)
FOUR = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}
EIGHT = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}
NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
FP4 = np.array([0, 0.0052, 2 / 3, 1, 1 / 3, 0.5, 1 / 6, 0.25], np.float32)
MAPS = {"nf4": NF4, "fp4": np.concatenate([FP4, -FP4])}


def to_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values rounded to a dtype, in float32. BF16 by the definition: the nearest of two."""
    if dtype != "bfloat16":
        return values.astype(dtype).astype(np.float32)
    below = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    above = (below.view(np.uint32) + 0x10000).view(np.float32)
    down, up = np.abs(values - below), np.abs(above - values)
    is_odd = (below.view(np.uint32) >> 16 & 1).astype(bool)
    return np.where((up < down) | ((up == down) & is_odd), above, below)


def four_bits(
    matrix: np.ndarray, kind: str = "nf4", block: int = 64, nested: int = 0, dtype: str = "bfloat16"
) -> Packed:
    random, (rows, columns) = np.random.RandomState(block + nested), matrix.shape
    codes = random.randint(0, 16, rows * columns).astype(np.uint8)
    blocks = -(-codes.size // block)
    state: dict[str, object] = {
        **{"quant_type": kind, "blocksize": block, "dtype": dtype},
        "shape": [rows, columns],
    }
    parts: dict[str, Storable] = {"quant_map": MAPS[kind]}
    if nested:
        bytes_ = random.randint(0, 256, blocks).astype(np.uint8)
        levels = np.sort(random.uniform(-1, 1, 256)).astype(np.float32)
        largest = random.uniform(0.001, 0.002, -(-blocks // nested)).astype(np.float32)
        offset = 0.0371234567890123
        scales = levels[bytes_] * largest[np.arange(blocks) // nested] + np.float32(offset)
        parts |= {"absmax": bytes_, "nested_absmax": largest, "nested_quant_map": levels}
        state |= {"nested_blocksize": nested, "nested_dtype": "float32", "nested_offset": offset}
    else:
        scales = parts["absmax"] = random.uniform(0.01, 0.1, blocks).astype(np.float32)
    text = json.dumps(state).encode()
    parts[f"quant_state.bitsandbytes__{kind}"] = np.frombuffer(text, np.uint8)
    values = MAPS[kind][codes] * scales[np.arange(codes.size) // block]
    pairs = (codes[::2] << 4 | codes[1::2]).reshape(-1, 1)
    stored = {"weight": pairs, **{f"weight.{name}": one for name, one in parts.items()}}
    return stored, to_dtype(values, dtype).reshape(rows, columns)


def int8(matrix: np.ndarray) -> Packed:
    largest = np.abs(matrix).max(1)
    codes = np.rint(matrix / largest[:, None] * 127).astype(np.int8)
    products = codes.astype(np.float32) * largest[:, None]
    values = products * np.float32(7.874015718698502e-3)
    form = np.zeros((), np.uint8)
    return {"weight": codes, "SCB": largest, "weight_format": form}, values


@pytest.mark.parametrize(
    ("settings", "packer", "kind"),
    [
        (FOUR, four_bits, TensorType.BF16),
        (FOUR, partial(four_bits, nested=256), TensorType.BF16),
        (FOUR, partial(four_bits, nested=7, block=128), TensorType.BF16),
        (FOUR, partial(four_bits, nested=256, dtype="float16"), TensorType.F16),
        (FOUR, partial(four_bits, dtype="float32"), TensorType.F32),
        (FOUR, partial(four_bits, block=1 << 22, nested=1 << 22), TensorType.BF16),
        (FOUR, partial(four_bits, kind="fp4", block=96), TensorType.BF16),
        (EIGHT, int8, TensorType.F32),
    ],
)
def test_values_to_the_bit(
    settings: object, packer: Callable[[np.ndarray], Packed], kind: TensorType, tmp_path: Path
) -> None:
    """In whole and in parts. Blocks of 96 values run on from row to row."""
    meant = write_packed(MODEL, tmp_path, settings, packer)
    with HuggingFaceCheckpoint.open(tmp_path) as checkpoint:
        by_label = {tensor.label: tensor for tensor in checkpoint.tensors.values()}
        for label, values in meant.items():
            tensor = by_label[label]
            assert tensor.type is kind
            raw = checkpoint.read(tensor.name)
            assert np.array_equal(dequantize(raw, kind, tensor.shape), values), label
            assert np.array_equal(checkpoint.read(tensor.name, 300, 900), raw[300:1200])


@pytest.mark.parametrize(
    "change",
    [{"load_in_4bit": False}, {"load_in_8bit": True}, {"load_in_4bit": 1}, {"load_in_4bit": None}],
)
def test_settings_that_name_neither_or_both_are_refused(
    change: dict[str, object], tmp_path: Path
) -> None:
    write_packed(MODEL, tmp_path, FOUR | change, four_bits)
    with pytest.raises(UnsupportedModelError, match=r"load_in_4bit .* is not supported"):
        HuggingFaceCheckpoint.open(tmp_path)


UP = "model.layers.0.mlp.up_proj.weight"
STATE = f"{UP}.quant_state.bitsandbytes__nf4"


def state(**change: object) -> dict[str, Storable | None]:
    """The state of a matrix, with changes."""
    parts, _ = four_bits(np.ones((128, 64), np.float32), nested=256)
    own = parts["weight.quant_state.bitsandbytes__nf4"]
    assert isinstance(own, np.ndarray)
    text = json.dumps({**json.loads(own.tobytes()), **change}).encode()
    return {STATE: np.frombuffer(text, np.uint8)}


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ({STATE: np.frombuffer(b"[1", np.uint8)}, f"{STATE} is not JSON"),
        ({STATE: np.frombuffer(b"[" * 3000, np.uint8)}, f"{STATE} is not JSON"),
        ({STATE: np.frombuffer(b"[1]", np.uint8)}, f"{STATE} must hold a JSON object"),
        ({STATE: np.full(5000, 32, np.uint8)}, f"{STATE} has 5000 bytes, more than"),
        (state(shape=[1 << 39, 64]), f"tensor {UP} has shape"),
        (state(shape=[128]), rf"{STATE} names shape \[128\]"),
        (state(shape=[-128, -64]), rf"{STATE} names shape \[-128, -64\]"),
        (state(shape=[128, 63]), rf"{STATE} names shape \[128, 63\]"),
        (state(shape=None), f"{STATE} names shape None"),
        (state(blocksize=0), rf"{STATE} names blocksize \[0\]"),
        (state(blocksize=10**18), rf"{STATE} names blocksize \[1000000000000000000\]"),
        (state(blocksize=True), rf"{STATE} names blocksize \[True\]"),
        (state(blocksize=32), f"{UP}.nested_absmax has shape|{UP}.absmax has shape"),
        (state(nested_blocksize="x"), f"{STATE} names nested_blocksize"),
        (state(nested_offset=None), f"{STATE} names nested_offset None"),
        (state(dtype="int8"), f"{STATE} names .* dtype 'int8'"),
        (state(dtype=[]), f"{STATE} names .* dtype"),
        ({f"{UP}.absmax": None}, f"tensor {UP}.absmax is missing"),
        ({f"{UP}.absmax": np.ones(128, np.float32)}, f"{UP}.absmax has dtype F32"),
        ({f"{UP}.quant_map": np.ones(15, np.float32)}, f"{UP}.quant_map has shape"),
        ({f"{UP}.nested_quant_map": np.ones(16, np.float32)}, f"{UP}.nested_quant_map has shape"),
        ({UP: np.ones((1, 4096), np.uint8)}, f"tensor {UP} has shape"),
        ({UP: np.ones((4096, 1), np.int8)}, f"tensor {UP} has dtype I8"),
    ],
)
def test_damaged_parts_are_refused_by_name(
    damage: dict[str, Storable | None], problem: str, tmp_path: Path
) -> None:
    MODEL.write_folder(tmp_path, quantization_config=FOUR)
    tensors: dict[str, Storable] = {}
    for name, values in MODEL.state().items():
        if "layers" in name and values.ndim == 2:
            parts, _ = four_bits(values, nested=256)
            stem = name.removesuffix(".weight")
            tensors |= {f"{stem}.{part}": one for part, one in parts.items()}
        else:
            tensors[name] = values
    changed = {name: one for name, one in (tensors | damage).items() if one is not None}
    write_mixed(tmp_path / "model.safetensors", changed)
    with pytest.raises(ModelFileError, match=problem):
        HuggingFaceCheckpoint.open(tmp_path)


def test_halfway_values_are_rounded_to_even() -> None:
    """As IEEE 754 rounds. A NaN stays one, whatever its bits are."""
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7FFFFFFF, 0xFF800001], np.uint32)
    found = rounded(TensorType.BF16, bits.view(np.float32)[None]).view("<u2")[0]
    assert found[:3].tolist() == [0x3F80, 0x3F82, 0x3F81]
    assert np.isnan((found[3:].astype(np.uint32) << 16).view(np.float32)).all()
