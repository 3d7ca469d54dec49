"""Native attention against float64, and one result in any chunking, level and thread count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import ISA_LEVELS, attention


def expected_attention(q, k, v, kv_heads, head_dim, scale, window=0):
    """Causal attention in float64 over keys and values as stored, in f16."""
    tokens, group = len(q), q.shape[1] // head_dim // kv_heads
    queries = q.reshape(tokens, kv_heads, group, head_dim).astype(np.float64)
    keys = k.astype(np.float16).reshape(tokens, kv_heads, head_dim).astype(np.float64)
    values = v.astype(np.float16).reshape(tokens, kv_heads, head_dim).astype(np.float64)
    scores = np.einsum("qhgd,khd->hgqk", queries, keys) * scale
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    scores[..., (distance < 0) | (distance >= (window or tokens))] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hgqk,khd->qhgd", weights, values).reshape(tokens, -1)


def random_inputs(rng, tokens, kv_heads, group, head_dim):
    q = rng.normal(0, 2, (tokens, kv_heads * group * head_dim)).astype(np.float32)
    k = rng.normal(0, 2, (tokens, kv_heads * head_dim)).astype(np.float32)
    v = rng.normal(0, 1, (tokens, kv_heads * head_dim)).astype(np.float32)
    return q, k, v


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 100])
@pytest.mark.parametrize(("kv_heads", "group", "head_dim"), [(3, 3, 64), (1, 1, 16), (2, 9, 80)])
def test_matches_float64(isa, tokens, kv_heads, group, head_dim):
    q, k, v = random_inputs(np.random.default_rng(tokens), tokens, kv_heads, group, head_dim)
    sizes = {"kv_heads": kv_heads, "head_dim": head_dim, "scale": head_dim**-0.5}
    for window in (0, 1, 5, 33, 64):
        result = attention(isa, q, k, v, **sizes, chunks=[tokens], window=window)
        expected = expected_attention(q, k, v, *sizes.values(), window)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_one_result_in_any_chunking(data, seed):
    kv_heads, group = data.draw(st.sampled_from([(1, 1), (1, 4), (3, 3), (2, 8)]))
    chunks = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    tokens = sum(chunks)
    q, k, v = random_inputs(np.random.default_rng(seed), tokens, kv_heads, group, 32)
    window = data.draw(st.sampled_from([0, 1, 3, 32, 50]))
    sizes = {"kv_heads": kv_heads, "head_dim": 32, "scale": 0.2, "window": window}
    whole = attention(ISA_LEVELS[-1], q, k, v, **sizes, chunks=[tokens])
    for isa in ISA_LEVELS:
        for threads in (1, 3):
            cut = attention(isa, q, k, v, **sizes, chunks=chunks, threads=threads)
            np.testing.assert_array_equal(cut, whole)


@pytest.mark.parametrize("window", [0, 1, 100, 300])
@pytest.mark.parametrize("group", [3, 9])
def test_splits_of_a_long_context_change_nothing(group, window):
    """Single tokens beyond the first split go to several threads; 9 queries are too many to."""
    tokens = 800
    q, k, v = random_inputs(np.random.default_rng(window), tokens, 1, group, 32)
    sizes = {"kv_heads": 1, "head_dim": 32, "scale": 0.2, "window": window}
    whole = attention("auto", q, k, v, **sizes, chunks=[tokens])
    expected = expected_attention(q, k, v, *sizes.values())
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-5)
    for isa, threads in [("portable", 1), ("auto", 1), ("auto", 4)]:
        chunks = [250, *[1] * 20, 235, *[1] * 20, 255, *[1] * 20]
        cut = attention(isa, q, k, v, **sizes, chunks=chunks, threads=threads)
        np.testing.assert_array_equal(cut, whole)


def test_huge_scores_stay_finite():
    """Online softmax must not overflow where scores are hundreds apart."""
    rng = np.random.default_rng(0)
    q, k, v = random_inputs(rng, 70, 1, 2, 16)
    result = attention("auto", q * 100, k * 100, v, kv_heads=1, head_dim=16, scale=1.0, chunks=[70])
    assert np.isfinite(result).all()
    assert np.abs(result).max() <= np.abs(v).max() * 1.001
