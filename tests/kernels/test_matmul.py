"""Native matmuls against float64, and against themselves: one result whatever computes it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import ISA_LEVELS, as_bytes, matmul

from heddle.weights.gguf import TensorType
from heddle.weights.quants import dequantize

QUANTISED = {TensorType.Q4_0: 18, TensorType.Q4_1: 20, TensorType.Q8_0: 34}
FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)


def random_matrix(rng, type, rows, columns):
    """File bytes of a matrix with weights of a trained model's size."""
    values = rng.normal(0, 0.05, (rows, columns)).astype(np.float32)
    if type is TensorType.F32:
        return as_bytes(values)
    if type is TensorType.F16:
        return as_bytes(values.astype(np.float16))
    if type is TensorType.BF16:
        return as_bytes((values.view(np.uint32) >> 16).astype(np.uint16))
    blocks = rng.integers(0, 256, (rows * columns // 32, QUANTISED[type]), dtype=np.uint8)
    halves = 2 if type is TensorType.Q4_1 else 1
    scales = rng.normal(0, 0.02, (len(blocks), halves)).astype(np.float16)
    blocks[:, : 2 * halves] = scales.view(np.uint8)
    return blocks.ravel()


def quantised_activations(x):
    """What the int8 activations of x stand for, in float64."""
    blocks = x.reshape(len(x), -1, 32)
    peak = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), peak, where=peak > 0, out=np.zeros_like(peak))
    codes = np.rint(blocks * inverse)
    return (codes.astype(np.float64) * (peak / np.float32(127))).reshape(x.shape)


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("type", [*QUANTISED, *FLOATS])
def test_matches_float64(isa, type):
    rng = np.random.default_rng(1)
    rows, columns, tokens = 49, 160, 7
    raw = random_matrix(rng, type, rows, columns)
    x = rng.normal(0, 1, (tokens, columns)).astype(np.float32)
    bias = rng.normal(0, 1, rows).astype(np.float32)
    onto = rng.normal(0, 1, (tokens, rows)).astype(np.float32)
    weights = dequantize(raw, type, (rows, columns)).astype(np.float64)
    read = quantised_activations(x) if type in QUANTISED else x.astype(np.float64)
    expected = onto + read @ weights.T + bias
    result = matmul(isa, int(type), raw, rows, x, bias=bias, onto=onto)
    np.testing.assert_allclose(result, expected, rtol=2e-6, atol=2e-6)


@settings(deadline=None, max_examples=40)
@given(
    type=st.sampled_from([*QUANTISED, *FLOATS]),
    tokens=st.integers(1, 70),
    rows=st.integers(1, 70),
    blocks=st.integers(1, 5),
    odd=st.integers(0, 31),
    seed=st.integers(0, 2**32 - 1),
)
def test_one_result_whatever_computes_it(type, tokens, rows, blocks, odd, seed):
    """Bit-equal at every instruction level, in every tile of tokens, at any thread count."""
    rng = np.random.default_rng(seed)
    columns = blocks * 32 + (odd if type in FLOATS else 0)
    raw = random_matrix(rng, type, rows, columns)
    x = rng.normal(0, 1, (tokens, columns)).astype(np.float32)
    alone = np.concatenate(
        [matmul(ISA_LEVELS[-1], int(type), raw, rows, x[i : i + 1]) for i in range(0, tokens, 5)]
    )
    for isa in ISA_LEVELS:
        for threads in (1, 3):
            together = matmul(isa, int(type), raw, rows, x, threads=threads)
            np.testing.assert_array_equal(together[::5], alone)


def test_extreme_codes_do_not_overflow():
    """All codes and activations at their largest: int16 partial sums must hold."""
    for type, width in QUANTISED.items():
        block = np.full(width, 0xFF, np.uint8)
        if type is TensorType.Q8_0:
            block[:] = 0x80  # -128
        halves = 2 if type is TensorType.Q4_1 else 1
        block[: 2 * halves] = np.ones(halves, np.float16).view(np.uint8)
        raw = np.tile(block, 16 * 2)
        for sign in (1, -1):
            x = np.full((5, 64), sign * 127.0, np.float32)
            weights = dequantize(raw, type, (16, 64)).astype(np.float64)
            for isa in ISA_LEVELS:
                result = matmul(isa, int(type), raw, 16, x)
                np.testing.assert_array_equal(result, x.astype(np.float64) @ weights.T)


def test_wrong_sizes_are_refused():
    x = np.ones((1, 32), np.float32)
    with pytest.raises(ValueError, match="size of its shape"):
        matmul("portable", int(TensorType.Q4_0), np.zeros(17, np.uint8), 1, x)
    with pytest.raises(ValueError, match="no kernel"):
        matmul("portable", int(TensorType.Q2_K), np.zeros(18, np.uint8), 1, x)
