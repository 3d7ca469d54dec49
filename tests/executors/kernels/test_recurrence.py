"""Kernels of recurrences against the reference, whole and in chunks, at every instruction level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from executors.kernels.programs import ISA_LEVELS, NOTHING, Bench, ints
from heddle import _native
from heddle.extensions.reference.ops import ReferenceOps, SequenceCache, SequenceChunk, Weight
from heddle.models.ops import LinearAttentionSpec, StatePlace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

TOKENS = 23
BEFORE = 16  # elements of the state that belong to something else


def in_chunks(
    isa: str,
    count: int,
    build: Callable[[Bench], int],
    chunks: Sequence[tuple[int, int]],
    threads: int = 1,
) -> Floats:
    """The results of all tokens. A chunk is its number of tokens, and how many of the last ones
    are computed a second time, from the state before them."""
    bench = Bench(isa, TOKENS, threads)
    states = _native.FixedStates(3, -(-4 * count // 64) * 64)
    bench.program = _native.Program(bench.runtime, (bench.cache,), TOKENS, TOKENS, states)
    out, found, now, done = build(bench), [], 1, 0

    def run(first: int, tokens: int, state: int, kept: int, again: int) -> Floats:
        ids = ints(range(first, first + tokens))
        span = np.array([[0, tokens, first, 0, 0, state, kept, tokens - again]], np.int32)
        bench.program.begin(ids, ids, span, ints([0]), NOTHING, []).finish()
        return bench.program.copy(out, tokens)

    for tokens, again in chunks:
        kept = 3 - now if again else now
        rows = run(done, tokens, now, kept, again)
        if again:
            last = run(done + tokens - again, again, now, kept, again)
            assert np.array_equal(last, rows[-again:]), "the state before the tokens is still there"
        found.append(rows)
        done, now = done + tokens, kept
    assert done == TOKENS
    return np.concatenate(found)


WHOLE = [(TOKENS, 0)]
CUT = [(1, 0), (1, 1), (9, 1), (2, 0), (1, 1), (4, 3), (3, 3), (TOKENS - 21, 0)]


def of_every_level(count: int, build: Callable[[Bench], int]) -> Floats:
    """The results, which must not depend on level, chunks and threads."""
    first = in_chunks(ISA_LEVELS[0], count, build, WHOLE)
    for isa in ISA_LEVELS:
        for chunks, threads in ((WHOLE, 3), (CUT, 1)):
            assert np.array_equal(in_chunks(isa, count, build, chunks, threads), first)
    return first


def run_of_tokens() -> tuple[SequenceCache, ReferenceOps]:
    cache = SequenceCache()
    return cache, ReferenceOps([SequenceChunk(cache, 0, range(TOKENS))])


@pytest.mark.parametrize("corrects", [True, False])
@pytest.mark.parametrize(
    ("heads", "key_heads", "key_dim", "value_dim", "tiled", "rows", "skips"),
    [
        (1, 1, 4, 1, False, False, False),
        (4, 2, 16, 32, False, False, True),
        (4, 2, 16, 32, True, True, False),
        (2, 2, 20, 24, False, True, True),
        (6, 3, 12, 70, True, False, False),
        (2, 1, 128, 128, False, False, False),
    ],
)
def test_linear_attention(
    corrects: bool,
    heads: int,
    key_heads: int,
    key_dim: int,
    value_dim: int,
    tiled: bool,
    rows: bool,
    skips: bool,
) -> None:
    rng = np.random.default_rng(heads * key_dim + value_dim)
    spec = LinearAttentionSpec(heads, key_heads, key_dim, value_dim, corrects, tiled)
    shape = (TOKENS, key_heads * key_dim)
    q, k = (rng.normal(0, key_dim**-0.5, shape).astype(np.float32) for _ in range(2))
    v = rng.normal(0, 1, (TOKENS, heads * value_dim)).astype(np.float32)
    decays = heads * (key_dim if rows else 1)
    decay = rng.uniform(0.6, 1, (TOKENS, decays)).astype(np.float32)
    strength = rng.uniform(0, 1, (TOKENS, heads)).astype(np.float32)
    skip = rng.normal(0, 1, heads).astype(np.float32) if skips else None
    place = StatePlace(0, BEFORE, spec.state_count)

    def build(bench: Bench) -> int:
        out = bench.program.buffer(heads * value_dim, per_row=False)
        bench.program.linear_attend(
            *(bench.table(values) for values in (q, k, v, decay, strength)),
            heads=heads,
            key_heads=key_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            corrects=corrects,
            tiled=tiled,
            place=place.first,
            skip=skip,
            out=out,
        )
        return out

    _, ops = run_of_tokens()
    weight = None if skip is None else Weight(skip)
    expected = ops.linear_attend(q, k, v, decay, strength, place, spec, weight)
    found = of_every_level(BEFORE + spec.state_count, build)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("channels", "states"), [(1, 1), (16, 4), (40, 16), (300, 5)])
def test_selective_scan(channels: int, states: int) -> None:
    rng = np.random.default_rng(channels + states)
    q, k = (rng.normal(0, 1, (TOKENS, states)).astype(np.float32) for _ in range(2))
    v = rng.normal(0, 1, (TOKENS, channels)).astype(np.float32)
    step = rng.uniform(0, 1, (TOKENS, channels)).astype(np.float32)
    rates = -rng.uniform(0, 2, channels * states).astype(np.float32)
    skip = rng.normal(0, 1, channels).astype(np.float32)
    place = StatePlace(0, BEFORE, channels * states)

    def build(bench: Bench) -> int:
        out = bench.program.buffer(channels, per_row=False)
        bench.program.selective_scan(
            *(bench.table(values) for values in (q, k, v, step)),
            rates=rates,
            skip=skip,
            place=place.first,
            out=out,
        )
        return out

    _, ops = run_of_tokens()
    expected = ops.selective_scan(q, k, v, step, Weight(rates), Weight(skip), place)
    found = of_every_level(BEFORE + place.count, build)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "changes", [{"rates": 63}, {"skip": 15}, {"place": 16}, {"step": 8}, {"q": 8}, {"out": "v"}]
)
def test_a_selective_scan_that_does_not_fit_is_refused(changes: dict[str, int | str]) -> None:
    bench = Bench("portable", 1)
    states = _native.FixedStates(2, 4 * 64)
    bench.program = _native.Program(bench.runtime, (bench.cache,), 1, 1, states)
    widths = {"q": 4, "k": 4, "v": 16, "step": 16, "out": 16}
    width = {name: changes.get(name, own) for name, own in widths.items()}
    buffer = {name: bench.program.buffer(own, False) for name, own in width.items() if own != "v"}
    rates, skip = (np.ones(int(changes.get(name, n))) for name, n in (("rates", 64), ("skip", 16)))
    with pytest.raises(ValueError, match=r"shape|rates|outside"):
        bench.program.selective_scan(
            *(buffer[name] for name in ("q", "k", "v", "step")),
            rates=rates.astype(np.float32),
            skip=skip.astype(np.float32),
            place=int(changes.get("place", 0)),
            out=buffer.get("out", buffer["v"]),
        )


@pytest.mark.parametrize("width", [1, 16, 40, 300])
@pytest.mark.parametrize(
    ("taps", "silu", "biased"), [(2, True, False), (4, True, True), (3, False, True)]
)
def test_convolution(width: int, taps: int, silu: bool, biased: bool) -> None:
    rng = np.random.default_rng(width + taps)
    x = rng.normal(0, 2, (TOKENS, width)).astype(np.float32)
    filters = rng.normal(0, 1, (width, taps)).astype(np.float32)
    bias = rng.normal(0, 1, width).astype(np.float32) if biased else None
    place = StatePlace(0, BEFORE, (taps - 1) * width)

    def build(bench: Bench) -> int:
        out = bench.program.buffer(width, per_row=False)
        bench.program.conv(
            bench.table(x),
            taps=taps,
            filters=np.ascontiguousarray(filters.T).ravel(),
            bias=bias,
            place=place.first,
            silu=silu,
            out=out,
        )
        return out

    _, ops = run_of_tokens()
    activation = "silu" if silu else "identity"
    expected = ops.causal_conv(x, Weight(filters, bias), place, activation)
    found = of_every_level(BEFORE + place.count, build)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("width", "parts"), [(1, 1), (40, 6), (300, 2)])
def test_token_shift(width: int, parts: int) -> None:
    rng = np.random.default_rng(width)
    x = rng.normal(0, 2, (TOKENS, width)).astype(np.float32)
    shares = rng.uniform(0, 1, parts * width).astype(np.float32)
    place = StatePlace(0, BEFORE, width)

    def build(bench: Bench) -> int:
        out = bench.program.buffer(parts * width, per_row=False)
        bench.program.token_shift(bench.table(x), shares, place.first, out)
        return out

    _, ops = run_of_tokens()
    expected = ops.token_shift(x, Weight(shares), parts, place)
    found = of_every_level(BEFORE + width, build)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("heads", "size"), [(1, 16), (3, 48), (2, 64), (1, 144)])
def test_rwkv_attention(heads: int, size: int) -> None:
    """The first key is zeros, which have no direction."""
    rng = np.random.default_rng(heads * size)
    width = heads * size
    r, k, v = (rng.normal(0, 1, (TOKENS, width)).astype(np.float32) for _ in range(3))
    k[0] = 0
    decay, rate = (rng.uniform(low, 1, (TOKENS, width)).astype(np.float32) for low in (0.55, 0))
    vectors = [rng.normal(1, 0.3, width).astype(np.float32) for _ in range(5)]
    place = StatePlace(0, BEFORE, width * size)

    def build(bench: Bench) -> int:
        q1, q2, q3, q4, q5 = (bench.table(values) for values in (r, k, v, decay, rate))
        w1, w2, w3, w4, w5 = vectors
        out = bench.program.buffer(width, per_row=False)
        where = heads, place.first, 64e-5, out
        bench.program.rwkv_attend(q1, q2, q3, q4, q5, w1, w2, w3, w4, w5, *where)
        return out

    _, ops = run_of_tokens()
    weights = tuple(map(Weight, vectors))
    expected = ops.rwkv_attend((r, k, v, decay, rate), weights, place, 64e-5)
    found = of_every_level(BEFORE + place.count, build)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("width", [1, 16, 37])
def test_step_sizes_and_decays(width: int) -> None:
    rng = np.random.default_rng(width)
    x = rng.normal(0, 8, (TOKENS, width)).astype(np.float32)
    x[0, 0], x[1, 0] = 100.0, -100.0
    bias, rates = (rng.normal(0, 1, width).astype(np.float32) for _ in range(2))
    rates = -np.abs(rates)

    def steps(bench: Bench) -> int:
        source = bench.table(x)
        bench.program.step_size(source, bias, 1e-3, 20.0)
        return source

    def decays(bench: Bench) -> int:
        out = bench.program.buffer(width, per_row=False)
        bench.program.decay(steps(bench), rates, out)
        return out

    _, ops = run_of_tokens()
    expected = ops.step_size(x, Weight(bias), 1e-3, 20.0)
    np.testing.assert_allclose(of_every_level(16, steps), expected, rtol=1e-6)
    expected = ops.decay(expected, Weight(rates))
    np.testing.assert_allclose(of_every_level(16, decays), expected, rtol=1e-5, atol=1e-30)


MAPS = ["sigmoid", "squared_relu", "gelu", "gelu_erf", "relu", "silu", "tanh", "xielu_tail"]


@pytest.mark.parametrize("activation", MAPS)
def test_activations(activation: str) -> None:
    x = np.random.default_rng(3).normal(0, 3, (TOKENS, 37)).astype(np.float32)

    def build(bench: Bench) -> int:
        source = bench.table(x)
        bench.program.activate(source, activation)
        return source

    _, ops = run_of_tokens()
    expected = ops.activate(x, activation)
    # The definitions of gelu cancel near zero (1 + tanh), and far below it.
    atol = {"gelu": 2e-7, "gelu_erf": 2e-6, "xielu_tail": 2e-7}.get(activation, 0)
    np.testing.assert_allclose(of_every_level(16, build), expected, rtol=1e-6, atol=atol)


def test_the_tail_of_xielu_keeps_its_digits_near_zero() -> None:
    """The difference exp(x) - 1 - x alone would lose them. Above -1e-6, x itself is subtracted."""
    row = [-90, -1, -0.5, -0.4999, -1e-2, -1e-4, -1e-6, -1e-7, 0, 1e-7, 3]
    x = np.full((TOKENS, len(row)), row, np.float32)

    def build(bench: Bench) -> int:
        source = bench.table(x)
        bench.program.activate(source, "xielu_tail")
        return source

    exact = x.astype(np.float64)
    below = np.float64(np.float32(-1e-6))
    expected = np.expm1(np.minimum(exact, below)) - exact
    expected = np.where(exact > 0, 0, expected)
    np.testing.assert_allclose(of_every_level(16, build), expected, rtol=4e-6, atol=1e-12)


def test_states_outside_of_the_memory_are_refused() -> None:
    bench = Bench("portable", 1)
    states = _native.FixedStates(2, 64)
    bench.program = _native.Program(bench.runtime, (bench.cache,), 1, 1, states)
    source, out = bench.table(np.ones((1, 16), np.float32)), bench.program.buffer(16, False)
    shape = {"taps": 2, "filters": np.ones(32, np.float32), "bias": None, "silu": False}
    with pytest.raises(ValueError, match="outside"):
        bench.program.conv(source, place=16, out=out, **shape)
    bench.program.conv(source, place=0, out=out, **shape)
    for bad in ((-1, 0, 0), (0, 2, 0), (0, 1, 1), (0, 0, 2), (0, 1, -1)):
        span = np.array([[0, 1, 0, 0, 0, *bad]], np.int32)
        with pytest.raises(ValueError, match=r"bad (state|number of certain)"):
            bench.program.begin(ints([0]), ints([0]), span, ints([0]), NOTHING, [])
    with pytest.raises(ValueError, match="no such state"):
        states.copy(0, 2)
    with pytest.raises(ValueError, match="64 bytes"):
        _native.FixedStates(1, 65)
