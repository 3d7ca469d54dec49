"""What native steps read of pictures: rows, places, runs; and steps that are computed in pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import ISA_LEVELS, NO_SPANS, NOTHING, Bench, as_bytes, ints

from heddle import _native
from heddle.executors.cpu.ropes import rotations
from heddle.models.ops import RopeSpec
from heddle.state import PAGE_TOKENS
from heddle.weights.tensor_types import TensorType

every_level = pytest.mark.parametrize("isa", ISA_LEVELS)


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- rows of pictures ----------------------------------------------------------------------------


@pytest.mark.parametrize("adds", [False, True])
@every_level
def test_rows_stand_where_their_tokens_are(isa, adds):
    x, seen = numbers(1, 7, 16), numbers(2, 3, 40)
    bench = Bench(isa, 7, threads=2)
    buffer = bench.table(x)
    bench.program.see(buffer, 16, adds)
    ids = ints(range(7))
    rows = [(1, seen[:2]), (5, np.ascontiguousarray(seen[2:]))]
    bench.program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, [], seen=rows).finish()
    expected = x.copy()
    for row, of in ((1, 0), (2, 1), (5, 2)):
        expected[row] = seen[of, 16:32] + (x[row] if adds else 0)
    np.testing.assert_array_equal(bench.program.copy(buffer, 7), expected)


@pytest.mark.parametrize(
    ("row", "shape"), [(-1, (2, 16)), (6, (2, 16)), (0, (8, 16)), (0, (2, 15))]
)
def test_rows_that_do_not_fit_are_refused(row, shape):
    bench = Bench("auto", 7)
    bench.program.see(bench.table(numbers(1, 7, 16)), 0, False)
    ids = ints(range(7))
    with pytest.raises(ValueError, match="rows of a picture"):
        rows = [(row, numbers(2, *shape))]
        bench.program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, [], seen=rows)


# --- places --------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@every_level
def test_each_pair_turns_by_the_place_of_its_axis(isa, interleaved):
    axes = (0, 2, 1, 1)
    spec = RopeSpec(8, 100.0, interleaved, axes=axes)
    x, places = numbers(1, 5, 16), np.random.default_rng(3).integers(0, 9, (5, 3), np.int32)
    bench = Bench(isa, 5)
    table = bench.program.rope_table(8, interleaved, 9)
    cosine, sine = rotations(spec, 0, 9)
    bench.program.extend_rope(table, cosine, sine)
    buffer = bench.table(x)
    bench.program.rope(buffer, table, 2, 0, axes)
    ids = ints(range(5))
    bench.program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, [], places=places).finish()
    pairs = np.arange(4)
    cos, sin = (of[places[:, axes], pairs][:, None] for of in (cosine, sine))
    first, second = (2 * pairs, 2 * pairs + 1) if interleaved else (pairs, pairs + 4)
    expected = x.reshape(5, 2, 8).copy()
    a, b = expected[..., first].copy(), expected[..., second].copy()
    expected[..., first], expected[..., second] = a * cos - b * sin, a * sin + b * cos
    found = bench.program.copy(buffer, 5)
    np.testing.assert_allclose(found, expected.reshape(5, 16), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("places", [None, [[0, 0]] * 5, [[0, 0, 9]] * 5, [[0, -1, 0]] * 5])
def test_places_that_do_not_fit_are_refused(places):
    bench = Bench("auto", 5)
    table = bench.program.rope_table(8, False, 9)
    bench.program.extend_rope(table, *rotations(RopeSpec(8, 100.0, False), 0, 9))
    bench.program.rope(bench.table(numbers(1, 5, 16)), table, 2, 0, (0, 1, 2, 2))
    ids = ints(range(5))
    given = None if places is None else np.array(places, np.int32)
    with pytest.raises(ValueError, match="place"):
        bench.program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, [], places=given)


@pytest.mark.parametrize("axes", [(0, 1), (0, 1, -1, 0)])
def test_axes_that_do_not_fit_a_rotation_are_refused(axes):
    bench = Bench("auto", 5)
    table = bench.program.rope_table(8, False, 9)
    with pytest.raises(ValueError, match="an axis for each pair"):
        bench.program.rope(bench.table(numbers(1, 5, 16)), table, 2, 0, axes)


# --- runs ----------------------------------------------------------------------------------------


def attention_to_runs(isa, q, k, v, runs, kind, *, causal, chunks=None, threads=1):
    """Attention of one head of 16 elements. `runs` are (T, kinds, 2)."""
    tokens = len(q)
    pages = -(-tokens // PAGE_TOKENS)
    bench = Bench(isa, tokens, threads, _native.KvCache("f16", 1, 1, 16, pages))
    sources = [bench.table(values) for values in (q, k, v)]
    out = bench.program.buffer(16, per_row=False)
    bench.program.store_kv(sources[1], sources[2], 0)
    bench.program.attend(sources[0], 0, 1, 0.25, 0, out, False, causal=causal, runs=kind)
    found, done = [], 0
    for count in chunks or [tokens]:
        ids, span = ints(range(done, done + count)), np.array([[0, count, done, 0, 0]], np.int32)
        of_chunk = np.ascontiguousarray(runs[done : done + count].reshape(count, -1))
        where = ints(range(pages))
        bench.program.begin(ids, ids, span, where, NOTHING, [], runs=of_chunk).finish()
        found.append(bench.program.copy(out, count))
        done += count
    return np.concatenate(found)


def expected_attention(q, k, v, runs, *, causal):
    k, v = (x.astype(np.float16).astype(np.float64) for x in (k, v))
    scores = q.astype(np.float64) @ k.T * 0.25
    at = np.arange(len(q))
    within = (at >= runs[:, :1]) & (at < runs[:, 1:])
    scores[~(within | (causal & (at <= at[:, None])))] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v


def runs_of(ends):
    """(T, 2), from where each run ends."""
    begins = [0, *ends[:-1]]
    return np.concatenate(
        [np.full((end - begin, 2), (begin, end)) for begin, end in zip(begins, ends, strict=True)]
    )


@st.composite
def cut_tokens(draw):
    """Ends of runs."""
    lengths = draw(st.lists(st.integers(1, 70), min_size=1, max_size=8))
    return [int(end) for end in np.cumsum(lengths)]


@settings(max_examples=25, deadline=None)
@given(ends=cut_tokens(), causal=st.booleans(), threads=st.integers(1, 3))
def test_tokens_see_their_runs(ends, causal, threads):
    runs, tokens = runs_of(ends), ends[-1]
    q, k, v = (numbers(seed, tokens, 16) for seed in (1, 2, 3))
    kinds = np.stack([np.tile([0, tokens], (tokens, 1)), runs], axis=1).astype(np.int32)
    found = [
        attention_to_runs(isa, q, k, v, kinds, 2, causal=causal, threads=threads)
        for isa in ISA_LEVELS
    ]
    expected = expected_attention(q, k, v, runs, causal=causal)
    np.testing.assert_allclose(found[0], expected, rtol=1e-3, atol=1e-3)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@settings(max_examples=25, deadline=None)
@given(ends=cut_tokens(), data=st.data())
def test_chunks_that_end_with_runs_give_the_same_bits(ends, data):
    runs = runs_of(ends)[:, None].astype(np.int32)
    cuts = {*data.draw(st.sets(st.sampled_from(ends))), ends[-1]}
    chunks = [int(one) for one in np.diff([0, *sorted(cuts)])]
    q, k, v = (numbers(seed, ends[-1], 16) for seed in (1, 2, 3))
    whole = attention_to_runs("auto", q, k, v, runs, 1, causal=True)
    found = attention_to_runs("auto", q, k, v, runs, 1, causal=True, chunks=chunks)
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize(
    "runs",
    [
        [[0, 3], [0, 3], [0, 4]],  # past the step
        [[0, 1], [0, 1], [2, 3]],  # does not hold its token
        [[0, 3], [1, 2], [2, 3]],  # ends before the one before it
        [[-1, 3], [0, 3], [0, 3]],
    ],
)
def test_runs_that_do_not_fit_are_refused(runs):
    q = numbers(1, 3, 16)
    given = np.array(runs, np.int32)[:, None]
    with pytest.raises(ValueError, match="run"):
        attention_to_runs("auto", q, q, q, given, 1, causal=True)


def test_more_kinds_of_runs_than_a_step_brings_are_refused():
    q = numbers(1, 3, 16)
    given = np.tile(np.array([0, 3], np.int32), (3, 1, 1))
    with pytest.raises(ValueError, match="kinds"):
        attention_to_runs("auto", q, q, q, given, 2, causal=False)


# --- pieces --------------------------------------------------------------------------------------


def test_pieces_of_a_step_give_the_bits_of_the_whole():
    x, w = numbers(1, 40, 64), numbers(2, 64, 64)

    def program():
        bench = Bench("auto", 40, threads=2)
        source, out = bench.table(x), bench.program.buffer(64, per_row=False)
        no_bias = np.empty(0, np.float32)
        matrix = bench.matrix(int(TensorType.F32), as_bytes(w), 64, 64, no_bias)
        bench.program.matmul(source, [(matrix, out)], False)
        bench.program.add(out, source, source)
        rows = bench.program.buffer(4 * 64, per_row=True)
        bench.program.take_rows(source, rows)
        bench.program.pool(rows)
        return bench

    def run(bench, sums, **piece):
        ids = ints(range(40))
        pooled = [(4 * row, 1, one) for row, one in enumerate(sums)]
        bench.program.begin(
            ids, ids, NO_SPANS, NOTHING, NOTHING, [], pooled=pooled, **piece
        ).finish()

    whole, pieces = np.zeros((10, 256)), np.zeros((10, 256))
    run(program(), whole)
    bench = program()
    stages = bench.program.token_stages
    assert stages >= 2
    for stage in range(stages):
        for part in range(3):
            run(bench, [], piece=(stage, stage + 1), part=(part, 3))
    run(bench, pieces, piece=(stages, -1))
    np.testing.assert_array_equal(pieces, whole)
    np.testing.assert_allclose(whole, (x @ w.T + x).reshape(10, 256), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("piece", "part"),
    [((2, 1), (0, 1)), ((0, 99), (0, 1)), ((0, 1), (1, 1)), ((0, 1), (-1, 2)), ((0, -1), (0, 2))],
)
def test_pieces_that_are_none_are_refused(piece, part):
    bench = Bench("auto", 5)
    source = bench.table(numbers(1, 5, 16))
    rows = bench.program.buffer(16, per_row=True)
    bench.program.take_rows(source, rows)
    ids = ints(range(5))
    with pytest.raises(ValueError, match=r"stages|part"):
        bench.program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, [], piece=piece, part=part)


def test_a_wanted_row_needs_the_rows_after_it():
    bench = Bench("auto", 6)
    source = bench.table(numbers(1, 6, 16))
    bench.program.take_rows(source, bench.program.buffer(64, per_row=True))
    ids = ints(range(6))
    with pytest.raises(ValueError, match="row"):
        bench.program.begin(ids, ids, NO_SPANS, NOTHING, ints([3]), [])
