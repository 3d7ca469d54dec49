"""Folders of BitNet are read as the values that `transformers` computes, to the bit.

The writer follows `pack_weights` of `integrations/bitnet.py`; no code of Heddle's is used.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from extensions.packed.packed_folder import Bfloat, Packed, Storable, write_mixed, write_packed
from extensions.packed.test_bitsandbytes import to_dtype
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.reference.model import ReferenceModel
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import TensorType, dequantize
from models.tiny.base import TOKENS
from models.tiny.bitnet import TinyBitNet, ternary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL = TinyBitNet("packed", 4, 2, 16, tied=True, width=256, ffn_width=96)
TYPES = {256: TensorType.TQ2_0, 64: TensorType.F8_E4M3, 96: TensorType.F32}
"""Of matrices with so many columns whose scale 16 bits hold."""
OFFLINE = {
    "quant_method": "bitnet",
    "linear_class": "autobitlinear",
    "quantization_mode": "offline",
    "modules_to_not_convert": ["lm_head"],
}
ONLINE = OFFLINE | {"quantization_mode": "online"}
PLAIN = {"quant_method": "bitnet", "modules_to_not_convert": None}
UP = "model.layers.0.mlp.up_proj"


def packed(matrix: np.ndarray, dtype: str = "bfloat16", divisor: bool = False) -> Packed:
    scale = np.abs(matrix).mean(keepdims=True).reshape(1)
    codes = np.rint(matrix / scale).clip(-1, 1)
    scale = to_dtype(1 / scale if divisor else scale, dtype)
    stored = Bfloat(scale) if dtype == "bfloat16" else scale.astype(dtype)
    quarters = (codes + 1).astype(np.uint8).reshape(4, -1, matrix.shape[1])
    weight = quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6
    values = codes * (np.float32(1) / scale if divisor else scale)
    return {"weight": weight, "weight_scale": stored}, values.astype(np.float32)


def trained(matrix: np.ndarray, dtype: str = "bfloat16") -> Packed:
    """The values are rounded as `WeightQuant.forward` does it."""
    noise = np.random.RandomState(5).randn(*matrix.shape).astype(np.float32) / 40
    noisy = to_dtype(matrix + noise, dtype)
    scale = np.float32(1) / np.float32(np.abs(noisy).mean(dtype=np.float64))
    values = (np.rint(noisy * scale).clip(-1, 1) / scale).astype(np.float32)
    stored = Bfloat(noisy) if dtype == "bfloat16" else noisy.astype(dtype)
    return {"weight": stored}, to_dtype(values, dtype)


@pytest.mark.parametrize(
    ("settings", "packer", "is_half"),
    [
        (OFFLINE, packed, True),
        (OFFLINE, partial(packed, dtype="float16"), True),
        (OFFLINE, partial(packed, dtype="float32"), False),
        (PLAIN, partial(packed, divisor=True), False),
        (ONLINE, trained, True),
        (ONLINE, partial(trained, dtype="float16"), True),
        (ONLINE, partial(trained, dtype="float32"), False),
    ],
)
def test_values_to_the_bit(
    settings: object, packer: Callable[[np.ndarray], Packed], is_half: bool, tmp_path: Path
) -> None:
    meant = write_packed(MODEL, tmp_path, settings, packer)
    with HuggingFaceCheckpoint.open(tmp_path) as checkpoint:
        by_label = {tensor.label: tensor for tensor in checkpoint.tensors.values()}
        for label, values in meant.items():
            tensor = by_label[label]
            kind = TYPES[values.shape[1]]
            kind = TensorType.F8_E4M3 if kind is TensorType.TQ2_0 and not is_half else kind
            assert tensor.type is kind
            raw = checkpoint.read(tensor.name)
            assert np.array_equal(dequantize(raw, kind, tensor.shape), values), label
            assert np.array_equal(checkpoint.read(tensor.name, 300, 900), raw[300:1200])


def test_a_packed_model_computes_as_its_values(tmp_path: Path) -> None:
    """And modules that the settings name stay as they are."""
    (tmp_path / "packed").mkdir()
    write_packed(MODEL, tmp_path / "packed", OFFLINE, packed)
    write_packed(MODEL, tmp_path / "kept", ONLINE | {"modules_to_not_convert": ["model"]}, kept)
    with HuggingFaceCheckpoint.open(tmp_path / "kept") as checkpoint:
        expected = ReferenceModel(checkpoint).logits(TOKENS)
    with HuggingFaceCheckpoint.open(tmp_path / "packed") as checkpoint:
        found = ReferenceModel(checkpoint).logits(TOKENS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def kept(matrix: np.ndarray) -> Packed:
    values = packed(matrix)[1]
    return {"weight": values}, values


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"linear_class": "linear"}, "linear_class 'linear' is not supported"),
        ({"quantization_mode": "both"}, "quantization_mode 'both' is not supported"),
        ({"use_rms_norm": True}, "use_rms_norm True is not supported"),
        (
            {"quantization_mode": "online", "modules_to_not_convert": "lm_head"},
            "modules_to_not_convert 'lm_head' is not supported",
        ),
    ],
)
def test_other_settings_are_refused(
    change: dict[str, object], problem: str, tmp_path: Path
) -> None:
    write_packed(MODEL, tmp_path, OFFLINE | change, packed)
    with pytest.raises(UnsupportedModelError, match=problem):
        HuggingFaceCheckpoint.open(tmp_path)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ({f"{UP}.weight": None}, f"{UP}.weight is missing"),
        ({f"{UP}.weight": np.ones((24, 256), np.int8)}, f"{UP}.weight has dtype I8"),
        ({f"{UP}.weight": np.zeros((0, 256), np.uint8)}, f"{UP}.weight has shape"),
        ({f"{UP}.weight_scale": np.ones(2, np.float32)}, f"{UP}.weight_scale has shape"),
        ({f"{UP}.weight": np.full((24, 256), 0x0C, np.uint8)}, f"{UP}.weight has a code of 3"),
    ],
)
def test_damaged_parts_are_refused_by_name(
    damage: dict[str, Storable | None], problem: str, tmp_path: Path
) -> None:
    MODEL.write_folder(tmp_path, quantization_config=OFFLINE)
    tensors: dict[str, Storable] = {}
    for name, values in MODEL.state().items():
        if "layers" in name and values.ndim == 2:
            stem = name.removesuffix(".weight")
            tensors |= {f"{stem}.{part}": one for part, one in packed(values)[0].items()}
        else:
            tensors[name] = values
    changed = {name: one for name, one in (tensors | damage).items() if one is not None}
    write_mixed(tmp_path / "model.safetensors", changed)
    with pytest.raises(ModelFileError, match=problem), HuggingFaceCheckpoint.open(tmp_path) as read:
        ReferenceModel(read)


def test_a_trained_scale_beyond_16_bits_is_refused(tmp_path: Path) -> None:
    def large(matrix: np.ndarray) -> Packed:
        return {"weight": Bfloat(ternary(matrix) * np.float32(2.0**20))}, matrix

    write_packed(MODEL, tmp_path, ONLINE, large)
    problem = r"the scale .* is not exact in 16 bits"
    with (
        HuggingFaceCheckpoint.open(tmp_path) as checkpoint,
        pytest.raises(UnsupportedModelError, match=problem),
    ):
        ReferenceModel(checkpoint)
