"""Dequantisation agrees to the bit with the `gguf` package, on blocks of every kind of number.

GGUF has no F8_E4M3: its values are compared with a table that the tests make themselves. A type
that the package does not decode has an example in its reference.
"""

from __future__ import annotations

import doctest

import gguf.quants
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from heddle.errors import UnsupportedModelError
from heddle.weights import quants
from heddle.weights.tensor_types import TensorType, dequantize
from tensor_blocks import E4M3


def is_known(kind: TensorType) -> bool:
    """Whether the tests can decode the type without Heddle."""
    if kind is TensorType.F8_E4M3:
        return True
    try:
        gguf.quants.dequantize(
            np.zeros((1, kind.block_bytes), np.uint8), GGMLQuantizationType(kind)
        )
    except (NotImplementedError, ValueError):  # ValueError: the package is older than the type
        return False
    return True


KNOWN = [kind for kind in TensorType.supported() if is_known(kind)]
OTHERS = [kind for kind in TensorType.supported() if not is_known(kind)]

# Zeros, the smallest subnormal, a subnormal, the smallest normal, ordinary, largest, inf, nan.
ODD_FLOAT16 = np.array(
    [0.0, -0.0, 6e-8, -3.1e-5, 6.2e-5, 1.0, -0.37, 65504, -65504, np.inf, -np.inf, np.nan],
    np.float16,
)


def random_blocks(kind: TensorType, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, kind.block_bytes), np.uint8)


def theirs(kind: TensorType, blocks: np.ndarray) -> np.ndarray:
    if kind is TensorType.F8_E4M3:
        codes = blocks[:, 4:]
        numbers = np.where((codes & 127) == 127, np.float32(np.nan), E4M3[codes])
        return blocks[:, :4].copy().view(np.float32) * numbers
    values = gguf.quants.dequantize(blocks, GGMLQuantizationType(int(kind)))
    if kind is TensorType.MXFP4:
        values[blocks[:, 0] == 255] = np.nan  # E8M0's NaN, which ggml reads as 2**128
    return values


def assert_agrees(kind: TensorType, blocks: np.ndarray) -> None:
    shape = (len(blocks), kind.block_elements)
    with np.errstate(all="ignore"):
        expected = theirs(kind, blocks)
    found = dequantize(blocks.reshape(-1), kind, shape)
    assert found.dtype == np.float32
    assert found.shape == shape
    # The bits of a NaN are not defined. All other bits are, the sign of zero included.
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(found), nan)
    assert np.array_equal(found.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


@pytest.mark.parametrize("kind", KNOWN, ids=lambda kind: kind.name)
def test_random_blocks_agree_with_gguf(kind: TensorType) -> None:
    assert_agrees(kind, random_blocks(kind, 700, seed=1))


@pytest.mark.parametrize("kind", KNOWN, ids=lambda kind: kind.name)
def test_special_scale_values_agree_with_gguf(kind: TensorType) -> None:
    """Put each pair of special numbers at each pair of bytes, so that all scales get them."""
    pairs = np.stack(np.meshgrid(ODD_FLOAT16, ODD_FLOAT16), axis=-1).reshape(-1, 2)
    raw = pairs.view(np.uint8)
    for start in range(0, max(kind.block_bytes - 3, 1), 2):
        blocks = random_blocks(kind, len(pairs), seed=start)
        width = min(4, kind.block_bytes - start)
        blocks[:, start : start + width] = raw[:, :width]
        assert_agrees(kind, blocks)


@pytest.mark.parametrize("kind", KNOWN, ids=lambda kind: kind.name)
def test_sizes_around_the_decoding_chunk_agree_with_gguf(kind: TensorType) -> None:
    chunk = (1 << 16) // kind.block_elements
    for count in (1, chunk - 1, chunk, chunk + 1):
        assert_agrees(kind, random_blocks(kind, count, seed=count))


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.name)
def test_other_types_have_an_example_that_is_true(kind: TensorType) -> None:
    """Kernels and decoders of other devices are compared with the reference, whoever decodes it."""
    decode = kind.decode
    assert decode is not None
    (example,) = doctest.DocTestFinder().find(decode, globs=vars(quants))
    assert example.examples, f"give {decode.__name__} in weights/quants.py an example"
    assert doctest.DocTestRunner().run(example).failed == 0


def test_the_result_is_a_new_array_of_the_same_shape() -> None:
    raw = np.arange(24, dtype=np.float32).view(np.uint8)
    raw.flags.writeable = False
    values = dequantize(raw, TensorType.F32, (2, 3, 4))
    assert values.shape == (2, 3, 4)
    assert values[1, 2, 3] == 23
    values[0, 0, 0] = 5
    assert not np.shares_memory(values, raw)
    assert dequantize(raw[:4], TensorType.F32, ()).shape == ()


def test_a_hand_made_block_of_the_default_models_type() -> None:
    d, m = np.float16(0.5), np.float16(-2)
    nibbles = bytes(range(16))  # low nibble i, high nibble 0
    block = np.frombuffer(d.tobytes() + m.tobytes() + nibbles, np.uint8)
    values = dequantize(block, TensorType.Q4_1, (32,))
    assert values.tolist() == [0.5 * i - 2 for i in range(16)] + [-2.0] * 16


def test_hand_made_blocks_of_small_floats_and_ternary_values() -> None:
    codes = np.arange(16, dtype=np.uint8)
    block = np.concatenate([[128], codes | codes[::-1] << 4]).astype(np.uint8)  # 2**1
    values = dequantize(block, TensorType.MXFP4, (32,)).tolist()
    magnitudes = [0, 1, 2, 3, 4, 6, 8, 12]
    assert values[:16] == magnitudes + [-x for x in magnitudes]
    assert values[16:] == values[15::-1]
    ternary = bytes([0b10_01_00_01] * 64) + np.float16(0.5).tobytes()
    values = dequantize(np.frombuffer(ternary, np.uint8), TensorType.TQ2_0, (256,))
    assert values.reshape(2, 4, 32)[:, :, 7].tolist() == [[0, -0.5, 0, 0.5]] * 2


def test_a_type_without_decoder_is_refused_by_name() -> None:
    kind = TensorType.Q8_K
    with pytest.raises(UnsupportedModelError, match=r"Q8_K is not supported; supported: .*Q4_1"):
        dequantize(np.zeros(kind.block_bytes, np.uint8), kind, (kind.block_elements,))


@pytest.mark.parametrize(("size", "shape"), [(33, (32,)), (34, (64,)), (34, (16, 2))])
def test_bytes_that_do_not_match_the_shape_are_refused(size: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="are not Q8_0 of shape"):
        dequantize(np.zeros(size, np.uint8), TensorType.Q8_0, shape)
