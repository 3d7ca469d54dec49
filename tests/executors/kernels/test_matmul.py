"""Native matmuls against float64, and against themselves: one result whatever computes it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import ISA_LEVELS, NO_BIAS, Bench, as_bytes, matmul

from heddle import _native
from heddle.weights.tensor_types import TensorType, dequantize
from tensor_blocks import FLOATS, QUANTISED, extreme_block, random_matrix


def quantised_activations(x):
    """The values of x's int8 activations, in float64."""
    blocks = x.reshape(len(x), -1, 32)
    peak = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), peak, where=peak > 0, out=np.zeros_like(peak))
    codes = np.rint(blocks * inverse)
    return (codes.astype(np.float64) * (peak / np.float32(127))).reshape(x.shape)


def test_the_native_table_is_the_one_of_python():
    expected = {
        (kind.name, int(kind), kind.block_elements, kind.block_bytes, not kind.is_float)
        for kind in TensorType.supported()
    }
    expected |= {("I8", int(TensorType.I8), 1, 1, False)}  # of adapters; files may not have it
    found = {(*row[:4], row[5]) for row in _native.tensor_types()}
    assert found == expected
    for kind in TensorType:
        has_kernel = kind.is_supported or kind is TensorType.I8
        assert _native.has_kernel(int(kind)) == has_kernel, kind.name


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("type", [*QUANTISED, *FLOATS])
def test_matches_float64(isa, type):
    rng = np.random.default_rng(1)
    rows, columns, tokens = 49, 512, 7
    raw = random_matrix(rng, type, rows, columns)
    x = rng.normal(0, 1, (tokens, columns)).astype(np.float32)
    bias = rng.normal(0, 1, rows).astype(np.float32)
    onto = rng.normal(0, 1, (tokens, rows)).astype(np.float32)
    weights = dequantize(raw, type, (rows, columns)).astype(np.float64)
    read = quantised_activations(x) if type in QUANTISED else x.astype(np.float64)
    expected = onto + read @ weights.T + bias
    result = matmul(isa, int(type), raw, rows, x, bias=bias, onto=onto)
    # Rounding of float32 sums grows with the terms, not with their sum.
    terms = np.abs(onto) + np.abs(read) @ np.abs(weights).T + np.abs(bias)
    assert (np.abs(result - expected) / terms).max() < 1e-6


@settings(deadline=None, max_examples=100)
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
    columns = blocks * max(32, type.block_elements) + (odd if type.block_elements == 1 else 0)
    raw = random_matrix(rng, type, rows, columns)
    x = rng.normal(0, 1, (tokens, columns)).astype(np.float32)
    alone = np.concatenate(
        [matmul(ISA_LEVELS[-1], int(type), raw, rows, x[i : i + 1]) for i in range(tokens)]
    )
    for isa in ISA_LEVELS:
        for threads in (1, 3):
            together = matmul(isa, int(type), raw, rows, x, threads=threads)
            np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("type", [*QUANTISED, *FLOATS])
def test_every_tile_gives_each_of_its_tokens_the_same_bits(isa, type):
    """Token counts up to the largest tile and one more; every row of the output is compared."""
    rng = np.random.default_rng(11)
    rows, columns = 17, 2 * max(32, type.block_elements)
    raw = random_matrix(rng, type, rows, columns)
    scales = 2.0 ** rng.integers(-3, 4, (13, columns // 32, 1))  # another one for each block
    x = (rng.normal(0, 1, (13, columns // 32, 32)) * scales).reshape(13, -1).astype(np.float32)
    alone = np.concatenate([matmul("portable", int(type), raw, rows, row[None]) for row in x])
    for tokens in range(1, 14):
        together = matmul(isa, int(type), raw, rows, x[:tokens])
        np.testing.assert_array_equal(together, alone[:tokens])


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_more_tokens_than_are_worked_on_at_once(isa):
    """A panel is used on 128 tokens at a time."""
    rng = np.random.default_rng(12)
    weights = rng.normal(0, 1, (17, 40)).astype(np.float32)
    x = rng.normal(0, 1, (260, 40)).astype(np.float32)
    f32 = int(TensorType.F32)
    alone = np.concatenate([matmul("portable", f32, as_bytes(weights), 17, row[None]) for row in x])
    for tokens in (127, 128, 129, 256, 257, 260):
        together = matmul(isa, f32, as_bytes(weights), 17, x[:tokens])
        np.testing.assert_array_equal(together, alone[:tokens])


@pytest.mark.parametrize("type", QUANTISED)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_codes_do_not_overflow(type, byte, sign):
    """All codes and activations at their largest: int16 partial sums must hold."""
    columns = 2 * type.block_elements
    raw = np.tile(extreme_block(type, byte), 16 * 2)
    x = np.full((5, columns), sign * 127.0, np.float32)
    weights = dequantize(raw, type, (16, columns)).astype(np.float64)
    for isa in ISA_LEVELS:
        result = matmul(isa, int(type), raw, 16, x)
        np.testing.assert_allclose(result, x.astype(np.float64) @ weights.T, rtol=1e-6)


@pytest.mark.parametrize(("size", "kept"), [(1e-45, 0), (1e-41, 0), (3e-37, 0), (4e-37, 1)])
def test_activations_too_small_to_scale(size, kept):
    """Where 127 / peak overflows, codes are zero at every level; above, they are the usual ones."""
    rng = np.random.default_rng(7)
    raw = random_matrix(rng, TensorType.Q8_0, 16, 32)
    x = np.full((1, 32), size, np.float32)
    weights = dequantize(raw, TensorType.Q8_0, (16, 32)).astype(np.float64)
    for isa in ISA_LEVELS:
        result = matmul(isa, int(TensorType.Q8_0), raw, 16, x)
        np.testing.assert_allclose(result, kept * (x.astype(np.float64) @ weights.T), rtol=1e-5)


@pytest.mark.parametrize("type", [*QUANTISED, *FLOATS])
def test_embedding_rows_are_the_files(type):
    """They are read from the packed matrix: 35 rows are panels and a piece of one."""
    raw = random_matrix(np.random.default_rng(5), type, 35, 512)
    expected = dequantize(raw, type, (35, 512))
    first = None
    for isa in ISA_LEVELS:
        bench = Bench(isa, 35)
        buffer = bench.program.buffer(512, per_row=False)
        bench.program.embed(bench.matrix(int(type), raw, 35, 512, NO_BIAS), buffer)
        rows = bench.run(35, buffer)
        np.testing.assert_allclose(rows, expected, rtol=1e-6, atol=1e-7)
        first = rows if first is None else first
        np.testing.assert_array_equal(rows, first)


BITS_IN_MEMORY = {
    "IQ1_S": 2.63, "IQ1_M": 3.57, "TQ1_0": 2.07, "IQ2_XXS": 3.32, "IQ2_XS": 3.57, "IQ2_S": 3.57,
    "IQ3_XXS": 4.32, "IQ3_S": 4.32,
}  # fmt: skip
"""Bits of a weight in memory, for types whose grids or digits are unpacked by the loader."""


@pytest.mark.parametrize("type", [*QUANTISED, *FLOATS])
def test_packing_hardly_grows_a_matrix(type):
    raw = random_matrix(np.random.default_rng(6), type, 64, 512)
    for isa in ISA_LEVELS:
        bench = Bench(isa, 1)
        matrix = bench.matrix(int(type), raw, 64, 512, np.empty(0, np.float32))
        most = BITS_IN_MEMORY.get(type.name, 1.04 * 8 * raw.size / (64 * 512))
        assert raw.size <= matrix.bytes <= most * 64 * 512 / 8


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("x", [0.0, 1.0])
def test_a_scale_that_is_no_number_poisons_its_row_alone(isa, x):
    """E8M0 has one NaN, 255. The values of E2M1 that it scales are zeros here."""
    raw = random_matrix(np.random.default_rng(8), TensorType.MXFP4, 19, 64).reshape(19, 2, 17)
    raw[5, 1] = [255, *[0] * 16]
    activations = np.full((3, 64), x, np.float32)
    result = matmul(isa, int(TensorType.MXFP4), raw.ravel(), 19, activations)
    assert (~np.isfinite(result)).nonzero()[1].tolist() == [5, 5, 5]


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_every_e8m0_scale(isa):
    """Rows have the scales 0 to 254; in float32 the least are subnormal, the largest infinite."""
    scales = np.arange(255, dtype=np.uint8)[:, None]
    codes = np.random.default_rng(9).integers(0, 256, (255, 16), np.uint8)
    raw = np.concatenate([scales, codes], axis=1).ravel()
    x = np.zeros((1, 32), np.float32)
    x[0, 3] = 127  # so that codes of activations are themselves
    weights = dequantize(raw, TensorType.MXFP4, (255, 32))
    with np.errstate(over="ignore"):
        expected = weights[:, 3] * np.float32(127)
    result = matmul(isa, int(TensorType.MXFP4), raw, 255, x)
    np.testing.assert_array_equal(result[0], expected)


def test_wrong_sizes_are_refused():
    x = np.ones((1, 32), np.float32)
    with pytest.raises(ValueError, match="size of its shape"):
        matmul("portable", int(TensorType.Q4_0), np.zeros(17, np.uint8), 1, x)
    with pytest.raises(ValueError, match="no kernel"):
        matmul("portable", 9, np.zeros(36, np.uint8), 1, x)  # Q8_1


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_a_weight_that_is_not_finite_is_found_in_any_row(isa):
    """35 rows are panels and a piece of one."""
    bench = Bench(isa, 1)
    values = np.ones((35, 64), np.float32)
    assert bench.matrix(int(TensorType.F32), as_bytes(values), 35, 64, NO_BIAS).non_finite_row == -1
    for row in range(35):
        values[:] = 1
        values[row, 63 - row] = np.nan
        matrix = bench.matrix(int(TensorType.F32), as_bytes(values), 35, 64, NO_BIAS)
        assert matrix.non_finite_row == row


def test_a_file_that_ends_inside_a_matrix_is_refused(tmp_path):
    values = np.ones((35, 64), np.float32)
    path = tmp_path / "weights"
    path.write_bytes(b"head" + values.tobytes())
    bench, size = Bench("auto", 1), values.nbytes
    with path.open("rb") as file:

        def pack(offset):
            raw = _native.FileBytes(file.fileno(), offset, size)
            bench.matrix(int(TensorType.F32), raw, 35, 64, NO_BIAS)

        pack(4)
        with pytest.raises(RuntimeError, match=f"the file ends at byte {size + 4}"):
            pack(5)
