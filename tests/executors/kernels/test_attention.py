"""Native attention against float64, and one result in any chunking, level and thread count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import ISA_LEVELS, Bench, attention

from heddle import _native
from heddle.extensions.reference.kv_types import (
    LARGEST_CODE,
    as_codes,
    as_kept,
    rotated,
    sums_of_codes,
)
from heddle.models.ops import Slopes
from heddle.state import PAGE_TOKENS

every_type = pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4"])


def assert_close(result, expected, kv_type):
    """Equal but for rounding. With codes, a weight near the middle between two codes may get the
    other in float64, which changes 32 elements by at most a 127th of a value. (All of a head, if
    it is rotated.)"""
    wrong = np.abs(result - expected) > 1e-5 + 1e-4 * np.abs(expected)
    assert wrong.mean() <= (0 if kv_type == "f16" else 0.02)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=0.03)


def expected_attention(
    q,
    k,
    v,
    kv_type,
    kv_heads,
    head_dim,
    scale,
    window=0,
    causal=True,
    soft_cap=0.0,
    sinks=None,
    bias=None,
    first=0,
):
    """Attention in float64 over keys and values as the cache keeps them."""
    tokens, group = len(q), q.shape[1] // head_dim // kv_heads
    if kv_type == "q4":
        q, k, v = (rotated(x, head_dim) for x in (q, k, v))
    queries = (
        (as_codes(q) if kv_type in LARGEST_CODE else q)
        .reshape(tokens, kv_heads, group, head_dim)
        .astype(np.float64)
    )
    keys, values = (
        as_kept(x, kv_type).reshape(tokens, kv_heads, head_dim).astype(np.float64) for x in (k, v)
    )
    scores = np.einsum("qhgd,khd->hgqk", queries, keys) * scale
    if soft_cap:
        scores = soft_cap * np.tanh(scores / soft_cap)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    if bias is not None:
        terms = bias.of(-distance.ravel()).reshape(kv_heads, group, tokens, tokens)
        scores += terms
    if not causal:
        distance = np.abs(distance)
    scores[..., (distance < 0) | (distance >= (window or tokens))] = -np.inf
    sink = np.full(kv_heads * group, -np.inf) if sinks is None else sinks.astype(np.float64)
    sink = sink.reshape(kv_heads, group, 1, 1)
    peak = np.maximum(scores.max(axis=-1, keepdims=True), sink)
    weights = np.exp(scores - peak)
    weights /= weights.sum(axis=-1, keepdims=True) + np.exp(sink - peak)
    if kv_type in LARGEST_CODE:
        before = (first % PAGE_TOKENS, 0)  # positions of the first page that nobody sees
        padded = np.pad(weights, (*[(0, 0)] * 3, before))
        values = np.pad(values, (before, (0, 0), (0, 0)))
        heads = [(head, i) for head in range(kv_heads) for i in range(group)]
        sums = [sums_of_codes(padded[head, i], values[:, head], kv_type) for head, i in heads]
        found = np.concatenate(sums, axis=-1)
        return rotated(found, head_dim) if kv_type == "q4" else found
    return np.einsum("hgqk,khd->qhgd", weights, values).reshape(tokens, -1)


def random_inputs(rng, tokens, kv_heads, group, head_dim):
    q = rng.normal(0, 2, (tokens, kv_heads * group * head_dim)).astype(np.float32)
    k = rng.normal(0, 2, (tokens, kv_heads * head_dim)).astype(np.float32)
    v = rng.normal(0, 1, (tokens, kv_heads * head_dim)).astype(np.float32)
    return q, k, v


F16_SHAPES = [(3, 3, 64), (1, 1, 16), (2, 9, 80), (1, 6, 128)]
CODED_SHAPES = [(3, 3, 64), (1, 1, 32), (2, 9, 96), (1, 6, 128)]
SHAPES = [("f16", *shape) for shape in F16_SHAPES]
SHAPES += [(kv_type, *shape) for kv_type in LARGEST_CODE for shape in CODED_SHAPES]


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 100])
@pytest.mark.parametrize(("kv_type", "kv_heads", "group", "head_dim"), SHAPES)
def test_matches_float64(isa, tokens, kv_type, kv_heads, group, head_dim):
    q, k, v = random_inputs(np.random.default_rng(tokens), tokens, kv_heads, group, head_dim)
    sizes = {"kv_heads": kv_heads, "head_dim": head_dim, "scale": head_dim**-0.5}
    for window in (0, 1, 5, 33, 64):
        result = attention(isa, q, k, v, kv_type, **sizes, chunks=[tokens], window=window)
        expected = expected_attention(q, k, v, kv_type, *sizes.values(), window)  # type: ignore[call-arg]
        assert_close(result, expected, kv_type)


@every_type
@settings(deadline=None, max_examples=30)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_one_result_in_any_chunking(data, seed, kv_type):
    kv_heads, group = data.draw(st.sampled_from([(1, 1), (1, 4), (3, 3), (2, 8)]))
    chunks = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    tokens = sum(chunks)
    head_dim = data.draw(st.sampled_from([32, 64]))
    q, k, v = random_inputs(np.random.default_rng(seed), tokens, kv_heads, group, head_dim)
    window = data.draw(st.sampled_from([0, 1, 3, 32, 50]))
    sizes = {"kv_heads": kv_heads, "head_dim": head_dim, "scale": 0.2, "window": window}
    whole = attention(ISA_LEVELS[-1], q, k, v, kv_type, **sizes, chunks=[tokens])
    for isa in ISA_LEVELS:
        for threads in (1, 3):
            cut = attention(isa, q, k, v, kv_type, **sizes, chunks=chunks, threads=threads)
            np.testing.assert_array_equal(cut, whole)


@every_type
@pytest.mark.parametrize("window", [0, 1, 100, 300])
@pytest.mark.parametrize("group", [3, 9])
def test_splits_of_a_long_context_change_nothing(group, window, kv_type):
    """Single tokens beyond the first split go to several threads."""
    tokens = 800
    q, k, v = random_inputs(np.random.default_rng(window), tokens, 1, group, 32)
    sizes = {"kv_heads": 1, "head_dim": 32, "scale": 0.2, "window": window}
    whole = attention("auto", q, k, v, kv_type, **sizes, chunks=[tokens])
    expected = expected_attention(q, k, v, kv_type, *sizes.values())
    assert_close(whole, expected, kv_type)
    for isa, threads in [("portable", 1), ("auto", 1), ("auto", 4)]:
        chunks = [250, *[1] * 20, 235, *[1] * 20, 255, *[1] * 20]
        cut = attention(isa, q, k, v, kv_type, **sizes, chunks=chunks, threads=threads)
        np.testing.assert_array_equal(cut, whole)


@every_type
def test_more_queries_than_a_split_holds_change_nothing(kv_type):
    """More than 48 query heads of one key head: one thread computes each of them whole."""
    tokens = 280
    q, k, v = random_inputs(np.random.default_rng(1), tokens, 1, 50, 32)
    sizes = {"kv_heads": 1, "head_dim": 32, "scale": 0.2}
    whole = attention("auto", q, k, v, kv_type, **sizes, chunks=[tokens])
    expected = expected_attention(q, k, v, kv_type, *sizes.values())
    assert_close(whole, expected, kv_type)
    cut = attention("auto", q, k, v, kv_type, **sizes, chunks=[270, *[1] * 10], threads=4)
    np.testing.assert_array_equal(cut, whole)


VARIANTS = [
    {"soft_cap": 1.5},
    {"sinks": np.float32([-2, 0, 3, 90, 300, -300])},
    {"soft_cap": 4.0, "sinks": np.float32([-1, 0, 1, 2, 3, 4])},
]


@every_type
@pytest.mark.parametrize("variant", VARIANTS, ids=["cap", "sinks", "both"])
@pytest.mark.parametrize("window", [0, 100])
def test_caps_and_sinks(variant, window, kv_type):
    """Against float64, and one result in any chunking, also where splits are merged."""
    tokens = 600
    q, k, v = random_inputs(np.random.default_rng(window), tokens, 2, 3, 32)
    sizes = {"kv_heads": 2, "head_dim": 32, "scale": 0.2, "window": window}
    expected = expected_attention(q, k, v, kv_type, *sizes.values(), **variant)
    whole = attention(ISA_LEVELS[-1], q, k, v, kv_type, **sizes, **variant)
    assert_close(whole, expected, kv_type)
    plain = attention(ISA_LEVELS[-1], q, k, v, kv_type, **sizes)
    assert np.abs(whole - plain).max() > 0.1
    for isa in ISA_LEVELS:
        for threads in (1, 3):
            chunks = [250, *[1] * 10, 275, *[1] * 65]
            options = sizes | variant | {"chunks": chunks, "threads": threads}
            np.testing.assert_array_equal(attention(isa, q, k, v, kv_type, **options), whole)


@every_type
@pytest.mark.parametrize("window", [0, 1, 5, 40, 300])
@pytest.mark.parametrize("tokens", [1, 31, 33, 300])
def test_attention_to_both_sides(window, tokens, kv_type):
    q, k, v = random_inputs(np.random.default_rng(tokens), tokens, 2, 3, 32)
    sizes = {"kv_heads": 2, "head_dim": 32, "scale": 0.2, "window": window, "causal": False}
    expected = expected_attention(q, k, v, kv_type, *sizes.values())
    whole = attention(ISA_LEVELS[-1], q, k, v, kv_type, **sizes)
    assert_close(whole, expected, kv_type)
    for isa in ISA_LEVELS:
        np.testing.assert_array_equal(attention(isa, q, k, v, kv_type, **sizes, threads=3), whole)
    if tokens > 1:
        with pytest.raises(ValueError, match="not of a whole sequence"):
            attention("auto", q, k, v, kv_type, **sizes, chunks=[tokens - 1, 1])


@every_type
@pytest.mark.parametrize("exponent", [-40, -30, -9, -4, 0, 4])
def test_the_first_token_gets_its_value_as_it_is_kept(kv_type, exponent):
    """To the bit, with f16: the native cache keeps what the definition says. With codes, the only
    weight is a code of 127 times a 127th. With q4, the rotation back rounds sums."""
    q, k, v = random_inputs(np.random.default_rng(1), 1, 2, 1, 64)
    v *= np.float32(10.0**exponent)
    v[0, 32:64] = 0
    sizes = {"kv_heads": 2, "head_dim": 64, "scale": 0.1}
    for isa in ISA_LEVELS:
        result = attention(isa, q, k, v, kv_type, **sizes)
        if kv_type == "q4":
            kept = rotated(as_kept(rotated(v, 64), kv_type), 64)
            np.testing.assert_allclose(result, kept, rtol=0, atol=1e-6 * np.abs(kept).max())
            continue
        rounding = 0 if kv_type == "f16" else 2e-7
        np.testing.assert_allclose(result, as_kept(v, kv_type), rtol=rounding)


@pytest.mark.parametrize(("kv_type", "least", "most"), [("q8_0", 0.001, 0.02), ("q4", 0.1, 0.25)])
def test_codes_are_close_to_f16(kv_type, least, most):
    q, k, v = random_inputs(np.random.default_rng(5), 300, 2, 3, 64)
    sizes = {"kv_heads": 2, "head_dim": 64, "scale": 0.125}
    half, coded = (attention("auto", q, k, v, each, **sizes) for each in ("f16", kv_type))
    error = np.sqrt(np.mean((coded - half) ** 2) / np.mean(half**2))
    assert least < error < most


def test_a_rotation_spreads_large_elements_of_q4():
    """A few elements of keys and values are much larger than the others, as in real models."""
    q, k, v = random_inputs(np.random.default_rng(5), 300, 1, 2, 64)
    k[:, 5] *= 20
    v[:, 60] *= 20
    sizes = {"kv_heads": 1, "head_dim": 64}
    half, coded = (attention("auto", q, k, v, each, **sizes, scale=0.02) for each in ("f16", "q4"))
    plain = [as_kept(x, "q4") for x in (k, v)]
    unrotated = attention("auto", q, *plain, "f16", **sizes, scale=0.02)
    small = np.arange(128) % 64 != 60
    error, without = (np.mean((x - half)[:, small] ** 2) for x in (coded, unrotated))
    assert error < 0.7 * without


@every_type
@pytest.mark.parametrize("where", ["k", "v"])
def test_what_is_not_a_number_is_not_hidden(kv_type, where):
    """Nor does it reach the tokens before it."""
    q, k, v = random_inputs(np.random.default_rng(2), 40, 1, 2, 32)
    sizes = {"kv_heads": 1, "head_dim": 32, "scale": 0.2}
    sound = attention("auto", q, k, v, kv_type, **sizes)
    (k if where == "k" else v)[35, 3] = np.nan
    for isa in ISA_LEVELS:
        result = attention(isa, q, k, v, kv_type, **sizes)
        np.testing.assert_array_equal(result[:35], sound[:35])
        assert np.isnan(result[35:]).any(axis=1).all()


def test_heads_that_a_cache_cannot_hold():
    for kv_type, head_dim in [("f16", 8), ("q8_0", 48), ("q4", 48), ("f16", 1040), ("q4", 1056)]:
        with pytest.raises(ValueError, match=f"head_dim must be a multiple of .*, not {head_dim}"):
            _native.KvCache(kv_type, 1, 1, head_dim, 1)
    with pytest.raises(ValueError, match="no KV cache is of type q4_0"):
        _native.KvCache("q4_0", 1, 1, 32, 1)
    with pytest.raises(ValueError, match="latents are not stored in q4"):
        _native.KvCache("q4", 1, 1, 32, 1, has_values=False)


def test_pages_take_a_scale_for_32_codes():
    half, eight, four = (_native.KvCache(each, 3, 2, 64, 1) for each in ("f16", "q8_0", "q4"))
    assert half.page_bytes == 3 * 2 * 64 * 2 * 2 * PAGE_TOKENS
    assert eight.page_bytes * 64 == half.page_bytes * 34
    assert four.page_bytes * 64 == half.page_bytes * 18


def test_huge_scores_stay_finite():
    """Online softmax must not overflow where scores are hundreds apart."""
    rng = np.random.default_rng(0)
    q, k, v = random_inputs(rng, 70, 1, 2, 16)
    result = attention("auto", q * 100, k * 100, v, kv_heads=1, head_dim=16, scale=1.0)
    assert np.isfinite(result).all()
    assert np.abs(result).max() <= np.abs(v).max() * 1.001


@every_type
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, 100])
def test_a_bias_by_distance(causal, window, kv_type):
    """Against float64, and one result in any chunking, also where splits are merged."""
    tokens, bias = 600, Slopes.of_heads(6)
    q, k, v = random_inputs(np.random.default_rng(window), tokens, 2, 3, 32)
    sizes = {"kv_heads": 2, "head_dim": 32, "scale": 0.2, "window": window}
    expected = expected_attention(q, k, v, kv_type, *sizes.values(), causal, bias=bias)  # type: ignore[call-arg]
    whole = attention(ISA_LEVELS[-1], q, k, v, kv_type, **sizes, causal=causal, bias=bias)
    assert_close(whole, expected, kv_type)
    plain = attention(ISA_LEVELS[-1], q, k, v, kv_type, **sizes, causal=causal)
    assert np.abs(whole - plain).max() > 0.1
    chunks = [250, *[1] * 10, 275, *[1] * 65] if causal else [600]
    for isa in ISA_LEVELS:
        for threads in (1, 3):
            options = sizes | {"causal": causal, "chunks": chunks, "threads": threads}
            cut = attention(isa, q, k, v, kv_type, **options, bias=bias)
            np.testing.assert_array_equal(cut, whole)


@every_type
@pytest.mark.parametrize("window", [1, 40, 300, 700])
def test_a_token_sees_its_run_of_positions(window, kv_type):
    """Against float64 over each run by itself, and one result in any chunking."""
    tokens = 600
    q, k, v = random_inputs(np.random.default_rng(window), tokens, 2, 3, 32)
    sizes = {"kv_heads": 2, "head_dim": 32, "scale": 0.2}
    runs = [slice(first, first + window) for first in range(0, tokens, window)]
    alone = [
        expected_attention(q[run], k[run], v[run], kv_type, **sizes, first=run.start)
        for run in runs
    ]
    options = sizes | {"window": window, "aligned": True}
    whole = attention(ISA_LEVELS[-1], q, k, v, kv_type, **options)
    assert_close(whole, np.concatenate(alone), kv_type)
    for isa in ISA_LEVELS:
        for threads in (1, 3):
            chunks = {"chunks": [250, *[1] * 10, 275, *[1] * 65], "threads": threads}
            cut = attention(isa, q, k, v, kv_type, **options, **chunks)
            np.testing.assert_array_equal(cut, whole)


@pytest.mark.parametrize(("window", "causal"), [(0, True), (8, False)])
def test_only_causal_windows_can_be_aligned(window, causal):
    q = np.zeros((4, 32), np.float32)
    sizes = {"kv_heads": 1, "head_dim": 32, "scale": 1.0, "window": window, "causal": causal}
    with pytest.raises(ValueError, match="only causal attention to a window can be aligned"):
        attention("portable", q, q, q, **sizes, aligned=True)


def test_slopes_halve_from_head_to_head():
    """Those of 12 heads, no power of 2: the 8 of 8 heads, then every other one of 16 heads."""
    eight = [0.5**i for i in range(1, 9)]
    assert Slopes.of_heads(8).factors == tuple(eight)
    between = [0.5 ** (i + 0.5) for i in range(4)]
    np.testing.assert_allclose(Slopes.of_heads(12).factors, [*eight, *between])
    assert Slopes.of_heads(1).of(np.array([-2, 0, 1])).tolist() == [[-2 / 256, 0, -1 / 256]]


def test_tables_of_biases_are_checked():
    bench = Bench("portable", 4)
    with pytest.raises(ValueError, match="a value for each head and distance"):
        bench.program.position_bias(2, 4, np.zeros(15, np.float32))
    number = bench.program.position_bias(2, 3, np.zeros(10, np.float32))
    source = bench.table(np.zeros((4, 16), np.float32))
    out = bench.program.buffer(16, per_row=False)
    for wrong in (number, number + 1):
        with pytest.raises(ValueError, match="no such bias for each head"):
            bench.program.attend(source, 0, 1, 1.0, 0, out, False, bias=wrong)
    with pytest.raises(ValueError, match="bad position"):
        bench.run(4, source)
