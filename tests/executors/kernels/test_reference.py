"""The reference ops against their formulas, written out one element at a time in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_writer import Tensor, write_gguf
from heddle.errors import ModelFileError
from heddle.extensions.reference.kv_types import (
    as_codes,
    as_kept,
    codes_of,
    rotated,
    sums_of_codes,
)
from heddle.extensions.reference.ops import (
    ReferenceLoader,
    ReferenceOps,
    SequenceCache,
    SequenceChunk,
    Weight,
)
from heddle.models.ops import AttentionSpec, RopeSpec
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from pathlib import Path

OPS = ReferenceOps([])


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_embed_and_take_rows_pick_rows() -> None:
    table = floats(5, 3)
    picked = OPS.embed(Weight(table), np.array([4, 0, 4]))
    assert np.array_equal(picked, table[[4, 0, 4]])
    assert np.array_equal(OPS.take_rows(picked, np.array([1])), table[[0]])


def test_linear_multiplies_by_the_transpose_and_adds_the_bias() -> None:
    x, w, bias = floats(2, 3), floats(4, 3, seed=1), floats(4, seed=2)
    for carried in (None, bias):
        expected = [
            [math.fsum(x[t] * w[n]) + (0 if carried is None else carried[n]) for n in range(4)]
            for t in range(2)
        ]
        result = OPS.linear(x, Weight(w, carried))
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_norm_divides_by_the_root_mean_square() -> None:
    x, w = floats(2, 8), floats(8, seed=1)
    root = np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 0.5)
    result = OPS.norm(x, Weight(w), 0.5)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, x / root * w, rtol=1e-6)


def test_norm_of_heads_takes_each_by_itself() -> None:
    x, w = floats(2, 24), Weight(floats(8, seed=1))
    result = OPS.norm_heads(x, w, 0.5, heads=3)
    for head in range(3):
        columns = slice(8 * head, 8 * head + 8)
        assert np.array_equal(result[:, columns], OPS.norm(x[:, columns], w, 0.5))


def test_scale_multiplies() -> None:
    result = OPS.scale(floats(2, 3), math.sqrt(640))
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, floats(2, 3) * 25.298221281347036, rtol=1e-6)


def test_gated_is_silu_times_up_without_overflow() -> None:
    gate = np.array([[-200, -1, 0, 1, 200]], np.float32)
    up = np.array([[1, 2, 3, 4, 5]], np.float32)
    expected = [0, -2 / (1 + math.e), 0, 4 / (1 + math.exp(-1)), 1000]
    np.testing.assert_allclose(OPS.gated(gate, up, "silu")[0], expected, rtol=1e-6, atol=1e-30)


def test_gated_is_gelu_times_up() -> None:
    gate, up = np.array([[-200, -1, -0.1, 0, 1, 200]], np.float32), np.full((1, 6), 2, np.float32)
    normal = [x / 2 * (1 + math.erf(x / math.sqrt(2))) for x in gate[0]]
    result = OPS.gated(gate, up, "gelu")
    assert result.dtype == np.float32
    np.testing.assert_allclose(result[0], 2 * np.array(normal), atol=1e-3)  # the form with tanh
    at_one = 1 + math.tanh(math.sqrt(2 / math.pi) * 1.044715)
    assert result[0, 4] == pytest.approx(at_one, rel=1e-6)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("factors", [(), (1.0, 2.0, 8.0)])
def test_rope_turns_each_pair_by_its_angle(interleaved: bool, factors: tuple[float, ...]) -> None:
    heads, head_dim, dim, base = 2, 8, 6, 100.0
    positions = np.array([0, 1, 5, 4000])
    x = floats(4, heads * head_dim)
    result = OPS.rope(x, positions, RopeSpec(dim, base, interleaved, factors), heads)
    assert result.dtype == np.float32
    expected = x.astype(np.float64).reshape(4, heads, head_dim)
    for t, position in enumerate(positions):
        for i in range(dim // 2):
            angle = position * base ** (-2 * i / dim) / (factors[i] if factors else 1)
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + dim // 2)
            turned = (expected[t, :, a] + 1j * expected[t, :, b]) * np.exp(1j * angle)
            expected[t, :, a], expected[t, :, b] = turned.real, turned.imag
    np.testing.assert_allclose(result, expected.reshape(4, -1), rtol=1e-5, atol=1e-6)


SPEC = AttentionSpec(heads=4, kv_heads=2, head_dim=8, scale=0.3)


def projections(tokens: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q_width, kv_width = SPEC.heads * SPEC.head_dim, SPEC.kv_heads * SPEC.head_dim
    q = floats(tokens, q_width, seed=seed)
    return q, floats(tokens, kv_width, seed=seed + 1), floats(tokens, kv_width, seed=seed + 2)


def alone(q: np.ndarray, k: np.ndarray, v: np.ndarray, spec: AttentionSpec = SPEC) -> np.ndarray:
    return ReferenceOps([SequenceChunk(SequenceCache(), 0, range(len(q)))]).attend(q, k, v, 0, spec)


@pytest.mark.parametrize("window", [0, 1, 3, 5, 9])
def test_attention_is_a_causal_softmax_over_shared_heads(window: int) -> None:
    q, k, v = projections(5)
    expected = np.zeros(q.shape)
    for t in range(5):
        for head in range(4):
            columns = slice(head // 2 * 8, head // 2 * 8 + 8)
            query = q[t, head * 8 : head * 8 + 8].astype(np.float64)
            seen = [s for s in range(t + 1) if not window or t - s < window]
            mass = np.exp([0.3 * (query @ k[s, columns]) for s in seen])
            mixed = sum(m * v[s, columns] for s, m in zip(seen, mass, strict=True)) / mass.sum()
            expected[t, head * 8 : head * 8 + 8] = mixed
    result = alone(q, k, v, replace(SPEC, window=window))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [0, 1, 2])
def test_attention_to_both_sides_with_a_cap_and_sinks(window: int) -> None:
    q, k, v = projections(5)
    sinks = np.array([-1, 0, 0.5, 2], np.float32)
    expected = np.zeros(q.shape)
    for t in range(5):
        for head in range(4):
            columns = slice(head // 2 * 8, head // 2 * 8 + 8)
            query = q[t, head * 8 : head * 8 + 8].astype(np.float64)
            seen = [s for s in range(5) if not window or abs(t - s) < window]
            scores = [1.5 * math.tanh(0.3 * (query @ k[s, columns]) / 1.5) for s in seen]
            mass = np.exp([*scores, sinks[head]])
            parts = (m * v[s, columns] for s, m in zip(seen, mass[:-1], strict=True))
            expected[t, head * 8 : head * 8 + 8] = sum(parts) / mass.sum()
    spec = replace(SPEC, window=window, soft_cap=1.5, causal=False)
    ops = ReferenceOps([SequenceChunk(SequenceCache(), 0, range(5))])
    result = ops.attend(q, k, v, 0, spec, Weight(sinks))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_soft_cap_bends_values_towards_the_cap() -> None:
    result = OPS.soft_cap(np.array([[0.1, -1e3, 15]], np.float32), 30.0)
    np.testing.assert_allclose(result, [[0.1, -30, 30 * math.tanh(0.5)]], rtol=1e-5)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 8))
def test_sequences_in_one_batch_see_only_themselves_in_any_chunks(
    chunks: list[int], window: int
) -> None:
    """One sequence in chunks, each time next to the next tokens of another that goes one by one."""
    total, spec = sum(chunks), replace(SPEC, window=window)
    first, second = projections(total), projections(len(chunks), seed=9)
    caches, rows = (SequenceCache(), SequenceCache()), ([], [])
    start = 0
    for turn, count in enumerate(chunks):
        runs = [SequenceChunk(caches[1], turn, [0]), SequenceChunk(caches[0], start, [0] * count)]
        both = (
            np.concatenate([other[turn : turn + 1], own[start : start + count]])
            for own, other in zip(first, second, strict=True)
        )
        mixed = ReferenceOps(runs).attend(*both, 0, spec)  # type: ignore[call-arg]
        rows[1].append(mixed[:1])
        rows[0].append(mixed[1:])
        start += count
    for parts, whole in zip(rows, (first, second), strict=True):
        np.testing.assert_allclose(np.concatenate(parts), alone(*whole, spec), rtol=1e-5, atol=1e-6)


def test_going_back_drops_what_came_after() -> None:
    q, k, v = projections(6)
    cache = SequenceCache()
    ReferenceOps([SequenceChunk(cache, 0, range(6))]).attend(q, k, v, 0, SPEC)
    again = projections(2, seed=5)
    mixed = ReferenceOps([SequenceChunk(cache, 3, range(2))]).attend(*again, 0, SPEC)
    whole = (np.concatenate([old[:3], new]) for old, new in zip((q, k, v), again, strict=True))
    np.testing.assert_allclose(mixed, alone(*whole)[3:], rtol=1e-5, atol=1e-6)


def test_q8_0_keeps_whole_numbers_of_127ths() -> None:
    x = floats(3, 4 * 32) * np.float32(1000)
    x[0, :32], x[1, 32:64] = 0, 1e-42
    blocks, kept = x.reshape(-1, 32), as_kept(x, "q8_0").reshape(-1, 32)
    step = np.abs(blocks).max(axis=1, keepdims=True) / 127
    # Half a step, and the rounding of the scale: half of 2**-10 of up to 127 steps, or, where it
    # is subnormal, of 2**-24.
    rounding = np.maximum(step * 2.0**-11, 2.0**-25)
    assert (np.abs(kept - blocks) <= step * 0.5001 + 127 * rounding).all()
    assert (kept[0] == 0).all()
    scales = step.astype(np.float16).astype(np.float32)
    codes = kept[scales[:, 0] > 0] / scales[scales[:, 0] > 0]
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-4)
    assert np.abs(codes).max() == 127


def test_q4_keeps_the_nearest_of_sixteen_levels() -> None:
    """To half the distance of two levels. The largest element of a block is an end."""
    x = floats(3, 4 * 32) * np.float32(1000)
    x[0, :32], x[1, 32:64] = 0, 1e-42
    blocks, kept = x.reshape(-1, 32), as_kept(x, "q4").reshape(-1, 32)
    half_step = np.abs(blocks).max(axis=1, keepdims=True) / 16
    assert (np.abs(kept - blocks) <= half_step * (1 + 16 * 2.0**-11) + 1e-6).all()
    assert (kept[0] == 0).all()
    scales = half_step.astype(np.float16).astype(np.float32)
    codes = kept[scales[:, 0] > 0] / scales[scales[:, 0] > 0]
    assert set(np.unique(codes)) == set(range(-15, 16, 2))
    largest = np.abs(blocks).argmax(axis=1)[scales[:, 0] > 0]
    assert (np.abs(codes[np.arange(len(codes)), largest]) == 15).all()


@pytest.mark.parametrize(("head_dim", "size"), [(32, 32), (96, 32), (128, 128), (192, 64)])
def test_a_rotation_is_a_hadamard_matrix(head_dim: int, size: int) -> None:
    """Symmetric and orthonormal, in each block of the largest power of two."""
    matrix = rotated(np.eye(head_dim, dtype=np.float32), head_dim)
    signs = np.array([[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)])
    expected = np.kron(np.eye(head_dim // size), signs) / np.sqrt(size)
    np.testing.assert_allclose(matrix, expected, atol=1e-6)
    x = floats(5, 2 * head_dim)
    np.testing.assert_allclose(rotated(rotated(x, head_dim), head_dim), x, atol=1e-5)
    joined = rotated(x, head_dim)[:, head_dim:]
    assert np.array_equal(joined, rotated(x[:, head_dim:], head_dim))


def test_q8_0_is_what_a_file_of_that_type_means() -> None:
    """Ties go to even; the codes and scales of a GGUF block give the same values back."""
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = [127, 0.5, 1.5, -0.5, -2.5, 63.499]
    codes = np.array([127, 0, 2, 0, -2, 63] + [0] * 26, np.int8)
    raw = np.concatenate([np.array([1], np.float16).view(np.uint8), codes.view(np.uint8)])
    assert np.array_equal(as_kept(x, "q8_0"), dequantize(raw, TensorType.Q8_0, (1, 32)))


def test_kv_types() -> None:
    x = floats(2, 32)
    assert as_kept(x, "f32") is x
    assert np.array_equal(as_kept(x, "f16"), x.astype(np.float16))
    with pytest.raises(ValueError, match="no KV cache is of type q4_0"):
        as_kept(x, "q4_0")


def test_a_cache_keeps_what_its_type_can() -> None:
    spec = replace(SPEC, head_dim=32)
    q, k, v = floats(5, 4 * 32), floats(5, 2 * 32, seed=1), floats(5, 2 * 32, seed=2)
    ops = ReferenceOps([SequenceChunk(SequenceCache("q8_0", decodes=True), 0, range(5))])
    expected = alone(q, as_kept(k, "q8_0"), as_kept(v, "q8_0"), spec)
    assert np.array_equal(ops.attend(q, k, v, 0, spec), expected)


def test_what_is_kept_gives_its_codes_and_scales_back() -> None:
    """Also scales that are subnormal in float16, and zero."""
    x = floats(3, 4 * 32)
    x[0, :32], x[1, 32:64], x[2, :32] = 0, x[1, 32:64] * 1e-5, x[2, :32] * 1e-9
    codes, scales = codes_of(x)
    scales = scales.astype(np.float16).astype(np.float32)
    again = codes_of(as_kept(x, "q8_0"))
    assert np.array_equal(again[0], np.where(scales > 0, codes, 0))
    assert np.array_equal(again[1], scales)


def test_weights_become_codes_page_by_page() -> None:
    """The scale of a page's codes is that of its largest weight, whatever other pages have."""
    weights, values = np.zeros((1, 40), np.float32), np.full((40, 32), 2, np.float32)
    weights[0, [0, 1, 32, 39]] = [1, 0.001, 0.002, 0.0012]
    (found,) = sums_of_codes(weights, values)
    expected = 2 * (1 + 0.002 * (1 + 76 / 127))
    np.testing.assert_allclose(found, np.full(32, expected), rtol=1e-6)


@pytest.mark.parametrize("kv_type", ["q8_0", "q4"])
def test_queries_and_weights_become_codes_where_a_cache_multiplies_codes(kv_type: str) -> None:
    spec = replace(SPEC, head_dim=32)
    q, k, v = floats(40, 4 * 32), floats(40, 2 * 32, seed=1), floats(40, 2 * 32, seed=2)
    ops = ReferenceOps([SequenceChunk(SequenceCache(kv_type), 0, range(40))])
    found = ops.attend(q, k, v, 0, spec)
    if kv_type == "q4":
        q, k, v, found = (rotated(x, 32) for x in (q, k, v, found))
    found = found.reshape(40, 4, 32)
    queries = as_codes(q).reshape(40, 4, 32)
    keys, values = (as_kept(x, kv_type).reshape(40, 2, 32) for x in (k, v))
    for token in (0, 31, 39):
        for head in range(4):
            scores = keys[: token + 1, head // 2] @ queries[token, head] * 0.3
            weights = np.exp(scores - scores.max())[None]
            weights, seen = weights / weights.sum(), values[: token + 1, head // 2]
            (expected,) = sums_of_codes(weights, seen, kv_type)
            np.testing.assert_allclose(found[token, head], expected, rtol=1e-4, atol=1e-5)


def test_layers_keep_their_own_keys_and_values() -> None:
    cache = SequenceCache()
    ops = ReferenceOps([SequenceChunk(cache, 0, range(3))])
    inputs = projections(3), projections(3, seed=7)
    results = [ops.attend(*layer_inputs, layer, SPEC) for layer, layer_inputs in enumerate(inputs)]
    for result, layer_inputs in zip(results, inputs, strict=True):
        assert np.array_equal(result, alone(*layer_inputs))


def test_a_batch_lays_runs_end_to_end() -> None:
    runs = [SequenceChunk(SequenceCache(), 7, [3, 4]), SequenceChunk(SequenceCache(), 0, [5])]
    batch = ReferenceOps(runs).batch()
    assert batch.tokens.tolist() == [3, 4, 5]
    assert batch.positions.tolist() == [7, 8, 0]
    assert batch.rows.tolist() == [0, 1, 2]


@pytest.fixture
def checkpoint(tmp_path: Path) -> GGUFCheckpoint:
    tensors = [
        Tensor.of("matrix.weight", floats(2, 32)),
        Tensor.of("matrix.bias", np.array([1, 2], np.float16)),
        Tensor.of("vector.weight", np.array([1, 2], np.float16)),
        Tensor("quantised.weight", bytes([0, 0x3C] + [1] * 32), (1, 32), TensorType.Q8_0),
    ]
    metadata = {"general.architecture": "llama"}
    return GGUFCheckpoint.open(write_gguf(tmp_path / "file.gguf", metadata, tensors))


def test_loader_dequantises_once_and_carries_the_bias(checkpoint: GGUFCheckpoint) -> None:
    loader = ReferenceLoader(checkpoint)
    assert loader.has("matrix")
    assert not loader.has("other")
    linear, table = loader.linear("matrix", 2, 32), loader.embedding("matrix", 2, 32)
    assert np.array_equal(linear.values, floats(2, 32))
    assert linear.bias is not None
    assert linear.bias.tolist() == [1, 2]
    assert table.values is linear.values
    assert table.bias is None
    assert loader.constants("vector", 2) == (1.0, 2.0)
    assert loader.vector("vector", 2).values.dtype == np.float32
    quantised = loader.linear("quantised", 1, 32)
    assert quantised.values.tolist() == [[1.0] * 32]
    assert quantised.bias is None


def test_loader_names_the_tensor_at_fault(checkpoint: GGUFCheckpoint) -> None:
    loader = ReferenceLoader(checkpoint)
    with pytest.raises(ModelFileError, match=r"tensor absent\.weight is missing") as missing:
        loader.vector("absent", 2)
    assert missing.value.field == "absent.weight"
    wrong = r"tensor matrix\.weight has shape \(2, 32\); the hyperparameters require \(32, 2\)"
    with pytest.raises(ModelFileError, match=wrong):
        loader.linear("matrix", 32, 2)
    with pytest.raises(ModelFileError, match=r"tensor blk\.3\.attn_q\.weight is missing"):
        loader.linear("layers.3.attention.q", 2, 32)


@pytest.mark.parametrize(("activation", "most"), [("silu_to_7", 7), ("silu_to_16", 16)])
def test_silu_and_its_factor_are_limited(activation: str, most: int) -> None:
    gate, up = np.array([[50, 2, -3]], np.float32), np.array([[-50, 5, 50]], np.float32)
    silu = np.minimum(gate / (1 + np.exp(-gate)), most)
    expected = silu * np.clip(up, -most, most)
    np.testing.assert_allclose(OPS.gated(gate, up, activation), expected, rtol=1e-6)


def test_zeros_follow_the_columns_of_a_head_that_has_fewer() -> None:
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 8)
    assert OPS.take_columns(x, 0, 3, 4).tolist() == [[1, 2, 0, 3, 4, 0, 5, 6, 0, 7, 8, 0]]


def test_each_head_has_a_gate() -> None:
    x, gate = np.ones((1, 4), np.float32), np.array([[0, 100]], np.float32)
    np.testing.assert_allclose(OPS.gate_rows(x, gate), [[0.5, 0.5, 1, 1]], rtol=1e-6)
    assert OPS.gate_rows(x, gate, "identity").tolist() == [[0, 0, 100, 100]]
