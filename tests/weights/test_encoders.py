"""The native encoders: floats to quantised blocks."""

from __future__ import annotations

from dataclasses import dataclass

import gguf.quants
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from heddle import _native
from heddle.weights.mix import TARGETS
from heddle.weights.tensor_types import TensorType, dequantize

TYPES = [kind for kind in TensorType if _native.has_encoder(int(kind))]
COLUMNS = 1536
EQUAL = np.empty(0, np.float32)
IMPORTANCE = np.random.default_rng(8).lognormal(0, 1.5, COLUMNS).astype(np.float32)


def matrix(heavy_tails: bool, rows: int = 64) -> np.ndarray:
    """Values like those of a trained model: (rows, COLUMNS)."""
    rng = np.random.default_rng(7)
    shape = (64, COLUMNS)
    drawn = rng.standard_t(4, shape) if heavy_tails else rng.standard_normal(shape)
    return (drawn * 0.02).astype(np.float32)[:rows]


def encode(
    kind: TensorType,
    values: np.ndarray,
    importance: np.ndarray = EQUAL,
    stored: TensorType = TensorType.F32,
    isa: str = "auto",
    threads: int = 1,
) -> np.ndarray:
    """File bytes of a matrix (rows, columns); checks that all rows are finite."""
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    runtime, (rows, columns) = _native.Runtime(threads, isa), values.shape
    encoded, non_finite = _native.quantise(
        runtime, int(kind), raw, int(stored), rows, columns, importance
    )
    assert non_finite == -1
    return encoded


def error(kind: TensorType, values: np.ndarray, importance: np.ndarray = EQUAL) -> float:
    """Root of the mean square error, weighted by importance."""
    found = dequantize(encode(kind, values, importance), kind, values.shape).astype(np.float64)
    weights = importance if importance.size else 1.0
    return float(np.sqrt(np.mean((found - values) ** 2 * weights)))


@dataclass(frozen=True)
class Published:
    """Errors of llama.cpp's quantiser (xllamacpp 2026.10.11549) for the matrices of this file."""

    normal: float
    normal_with_importance: float
    heavy: float
    heavy_with_importance: float


LLAMA_CPP = {
    TensorType.Q4_0: Published(0.001719, 0.002467, 0.003277, 0.004981),
    TensorType.Q5_0: Published(0.0008529, 0.001222, 0.001625, 0.002475),
    TensorType.Q5_1: Published(0.000755, 0.0009259, 0.001271, 0.001594),
    TensorType.Q8_0: Published(0.0001073, 0.0001833, 0.0002045, 0.0003498),
    TensorType.Q4_K: Published(0.001427, 0.001941, 0.002432, 0.003412),
    TensorType.Q5_K: Published(0.0007239, 0.001015, 0.001234, 0.00181),
    TensorType.Q6_K: Published(0.0003546, 0.0005056, 0.0006403, 0.0009531),
    TensorType.MXFP4: Published(0.002278, 0.00389, 0.003712, 0.006269),
}


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_the_error_is_at_most_that_of_llama_cpp(kind: TensorType) -> None:
    published, normal, heavy = LLAMA_CPP[kind], matrix(False), matrix(True)
    assert error(kind, normal) <= 1.002 * published.normal
    assert error(kind, heavy) <= 1.002 * published.heavy
    assert error(kind, normal, IMPORTANCE) <= 1.002 * published.normal_with_importance
    assert error(kind, heavy, IMPORTANCE) <= 1.002 * published.heavy_with_importance


@pytest.mark.parametrize("name", ["Q4_0", "Q5_0", "Q5_1", "Q8_0", "MXFP4"])
def test_the_error_is_at_most_that_of_the_gguf_package(name: str) -> None:
    kind, values = TensorType[name], matrix(True, rows=8)
    theirs = GGMLQuantizationType(int(kind))
    blocks = gguf.quants.quantize(values, theirs)
    expected = np.sqrt(np.mean((gguf.quants.dequantize(blocks, theirs) - values) ** 2))
    assert error(kind, values) <= 1.002 * expected


def test_every_type_that_a_user_may_ask_for_has_an_encoder() -> None:
    assert set(TARGETS.values()) <= set(TYPES)
    assert not _native.has_encoder(int(TensorType.F16))


@pytest.mark.parametrize("isa", _native.isa_levels())
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_all_levels_and_thread_counts_give_the_same_bytes(kind: TensorType, isa: str) -> None:
    values = matrix(True, rows=5)[:, :768]
    weights = IMPORTANCE[:768]
    expected = encode(kind, values, weights, isa="portable")
    assert np.array_equal(encode(kind, values, weights, isa=isa, threads=2), expected)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_odd_blocks_keep_their_values(kind: TensorType) -> None:
    """Zeros, one value alone, constants of both signs, tiny values."""
    blocks = np.zeros((6, 256), np.float32)
    blocks[1, 37] = -0.75
    blocks[2] = 0.5
    blocks[3] = -0.5
    blocks[4] = 1e-30
    blocks[5, ::2] = 1.5
    found = dequantize(encode(kind, blocks), kind, blocks.shape)
    assert np.isfinite(found).all()
    assert np.abs(found - blocks).max() <= 0.04


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_a_row_that_is_not_finite_is_reported_and_stays_so(kind: TensorType, value: float) -> None:
    values = matrix(False, rows=3)[:, :512].copy()
    values[1, 300] = value
    encoded, row = _native.quantise(
        _native.Runtime(1, "auto"), int(kind), values.view(np.uint8).reshape(-1), 0, 3, 512, EQUAL
    )
    assert row == 1
    found = dequantize(encoded, kind, values.shape)
    assert np.isfinite(found[[0, 2]]).all()
    assert not np.isfinite(found[1]).all()


@pytest.mark.parametrize("stored", [TensorType.F16, TensorType.BF16])
def test_half_precision_is_read_as_its_values(stored: TensorType) -> None:
    values = matrix(False, rows=2)
    if stored is TensorType.F16:
        half = values.astype(np.float16)
    else:
        half = (values.view(np.uint32) >> 16).astype(np.uint16)
    exact = dequantize(half.view(np.uint8).reshape(-1), stored, values.shape)
    found = encode(TensorType.Q4_K, half, stored=stored)
    assert np.array_equal(found, encode(TensorType.Q4_K, exact))


def test_what_cannot_be_quantised_is_refused() -> None:
    runtime, row = _native.Runtime(1, "auto"), np.zeros(256 * 4, np.uint8)
    with pytest.raises(ValueError, match="type 0 cannot be quantised to type 10"):
        _native.quantise(runtime, int(TensorType.Q2_K), row, 0, 1, 256, EQUAL)
    with pytest.raises(ValueError, match="255 columns are not whole blocks"):
        _native.quantise(runtime, int(TensorType.Q4_0), row[: 255 * 4], 0, 1, 255, EQUAL)
    with pytest.raises(ValueError, match=r"importance is \(columns,\)"):
        _native.quantise(runtime, int(TensorType.Q4_0), row, 0, 1, 256, IMPORTANCE)
