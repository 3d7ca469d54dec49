"""Norm, rope, gated activation and quantisation: near float64, bit-equal across levels."""

from __future__ import annotations

import numpy as np
import pytest
from programs import F32, ISA_LEVELS, Bench, as_bytes

from heddle.executors.cpu.ropes import RopeTables, rotations
from heddle.extensions.reference.ops import ReferenceOps
from heddle.models.ops import RopeSpec

WIDTHS = (1, 15, 16, 17, 576, 1000)


def of_every_level(build, tokens):
    """The same program at every level; asserts that all give the same bits."""
    results = []
    for isa in ISA_LEVELS:
        bench = Bench(isa, tokens, threads=2)
        results.append(bench.run(tokens, build(bench)))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    return results[0]


@pytest.mark.parametrize("width", WIDTHS)
def test_norm(width):
    rng = np.random.default_rng(width)
    x = rng.normal(0, 3, (5, width)).astype(np.float32)
    weight = rng.normal(1, 0.1, width).astype(np.float32)

    def build(bench):
        out = bench.program.buffer(width, per_row=False)
        bench.program.norm(bench.table(x), weight, 1e-5, out, False)
        return out

    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(of_every_level(build, 5), expected, rtol=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm(width):
    rng = np.random.default_rng(width)
    x = rng.normal(2, 3, (5, width)).astype(np.float32)
    weight = rng.normal(1, 0.1, width).astype(np.float32)
    bias = rng.normal(0, 1, width).astype(np.float32)

    def build(bench):
        out = bench.program.buffer(width, per_row=False)
        bench.program.layer_norm(bench.table(x), weight, bias, 1e-5, out, False)
        return out

    wide = x.astype(np.float64)
    wide -= wide.mean(axis=1, keepdims=True)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias
    found = of_every_level(build, 5)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", WIDTHS)
def test_gated_silu(width):
    rng = np.random.default_rng(width)
    gate = rng.normal(0, 10, (5, width)).astype(np.float32)
    gate[0, 0], gate[1, 0] = 200.0, -200.0  # beyond exp's range on both sides
    up = rng.normal(0, 1, (5, width)).astype(np.float32)

    def build(bench):
        out = bench.program.buffer(width, per_row=False)
        bench.program.gated(bench.table(gate), bench.table(up), "silu", out, False)
        return out

    wide = gate.astype(np.float64)
    expected = wide / (1 + np.exp(-wide)) * up
    np.testing.assert_allclose(of_every_level(build, 5), expected, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("width", WIDTHS)
def test_gated_gelu(width):
    rng = np.random.default_rng(width)
    gate = rng.normal(0, 3, (5, width)).astype(np.float32)
    gate[0, 0], gate[1, 0] = 50.0, -50.0
    up = rng.normal(0, 1, (5, width)).astype(np.float32)

    def build(bench):
        out = bench.program.buffer(width, per_row=False)
        bench.program.gated(bench.table(gate), bench.table(up), "gelu", out, False)
        return out

    wide = gate.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    expected = 0.5 * wide * (1 + np.tanh(inner)) * up
    np.testing.assert_allclose(of_every_level(build, 5), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("activation", "most"), [("silu_to_7", 7), ("silu_to_16", 16)])
def test_silu_and_its_factor_are_limited(activation, most):
    rng = np.random.default_rng(7)
    gate, up = (rng.normal(0, 20, (5, 37)).astype(np.float32) for _ in range(2))
    gate[0, 1], up[1, 0], up[1, 1] = np.nan, -np.inf, np.nan

    def build(bench):
        out = bench.program.buffer(37, per_row=False)
        bench.program.gated(bench.table(gate), bench.table(up), activation, out, False)
        return out

    wide = gate.astype(np.float64)
    expected = np.minimum(wide / (1 + np.exp(-wide)), most) * np.clip(up, -most, most)
    found = of_every_level(build, 5)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-30)


def test_norm_of_heads_and_scale():
    rng = np.random.default_rng(8)
    x = rng.normal(0, 3, (5, 4 * 48)).astype(np.float32)
    weight = rng.normal(1, 0.1, 48).astype(np.float32)

    def build(bench):
        buffer = bench.table(x)
        bench.program.scale(buffer, 2.5)
        bench.program.norm_heads(buffer, weight, 1e-6, 4)
        return buffer

    wide = 2.5 * x.reshape(5, 4, 48).astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(of_every_level(build, 5), expected.reshape(5, -1), rtol=2e-6)


@pytest.mark.parametrize("first", [0, 5, 19])
def test_columns_are_copied(first):
    x = np.random.default_rng(4).normal(0, 1, (5, 32)).astype(np.float32)

    def build(bench):
        source, out = bench.table(x), bench.program.buffer(13, per_row=False)
        bench.program.take_columns(source, first, out)
        bench.program.scale(source, 0.0)
        return out

    assert np.array_equal(of_every_level(build, 5), x[:, first : first + 13])


def test_zeros_follow_the_columns_of_a_head_that_has_fewer():
    x = np.random.default_rng(4).normal(0, 1, (5, 32)).astype(np.float32)

    def build(bench):
        source, out = bench.table(x), bench.program.buffer(4 * 11, per_row=False)
        bench.program.take_columns(source, 0, out, 4)
        return out

    found = of_every_level(build, 5).reshape(5, 4, 11)
    assert np.array_equal(found[..., :8], x.reshape(5, 4, 8))
    assert not found[..., 8:].any()


@pytest.mark.parametrize("first", [-1, 20])
def test_columns_that_the_input_lacks_are_refused(first):
    bench = Bench("portable", 1)
    source = bench.table(np.zeros((1, 32), np.float32))
    out = bench.program.buffer(13, per_row=False)
    with pytest.raises(ValueError, match="has not the columns"):
        bench.program.take_columns(source, first, out)


def test_columns_are_joined_to_those_of_an_input():
    x = np.random.default_rng(4).normal(0, 1, (5, 32)).astype(np.float32)
    given = np.random.default_rng(5).normal(0, 1, (4, 13)).astype(np.float32)

    def build(bench):
        source, rest = bench.table(x), bench.program.buffer(13, per_row=False)
        bench.program.write(rest, given)
        out = bench.program.buffer(45, per_row=False)
        bench.program.join(source, rest, out)
        bench.program.scale(source, 0.0)
        return out

    expected = np.concatenate([x, np.concatenate([given, np.zeros((1, 13))])], axis=1)
    assert np.array_equal(of_every_level(build, 5), expected.astype(np.float32))


@pytest.mark.parametrize("width", [44, 46])
def test_columns_that_do_not_fit_the_output_are_refused(width):
    bench = Bench("portable", 1)
    x, y = bench.program.buffer(32, per_row=False), bench.program.buffer(13, per_row=False)
    with pytest.raises(ValueError, match="has not the columns of both"):
        bench.program.join(x, y, bench.program.buffer(width, per_row=False))


@pytest.mark.parametrize(("rows", "width"), [(10_000, 13), (1, 12)])
def test_rows_that_do_not_fit_a_buffer_are_refused(rows, width):
    bench = Bench("portable", 1)
    buffer = bench.program.buffer(13, per_row=False)
    with pytest.raises(ValueError, match="buffer"):
        bench.program.write(buffer, np.zeros((rows, width), np.float32))


@pytest.mark.parametrize(
    ("heads", "width", "sums"),
    [(1, 50, 1), (1, 7, 3), (4, 33, 4), (3, 16, 2), (17, 1, 1), (600, 1, 2)],
)
def test_heads_are_mixed_by_factors_of_their_row(heads, width, sums):
    rng = np.random.default_rng(heads)
    x = rng.normal(0, 3, (5, heads * width)).astype(np.float32)
    factors = rng.normal(0, 1, (5, sums * heads)).astype(np.float32)

    def build(bench):
        out = bench.program.buffer(sums * width, per_row=False)
        bench.program.mix_heads(bench.table(x), bench.table(factors), heads, out)
        return out

    wide, by_sum = x.reshape(5, heads, width).astype(np.float64), factors.reshape(5, sums, heads)
    expected = (by_sum[..., None] * wide[:, None]).sum(axis=2).reshape(5, -1)
    np.testing.assert_allclose(of_every_level(build, 5), expected, rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(
        ReferenceOps([]).mix_heads(x, factors, heads), expected, rtol=1e-5, atol=2e-5
    )


def test_heads_and_factors_that_do_not_fit_are_refused():
    program = Bench("portable", 5).program
    x, rows = program.buffer(12, per_row=False), program.buffer(12, per_row=True)
    factors, out = program.buffer(6, per_row=False), program.buffer(8, per_row=False)
    program.mix_heads(x, factors, 3, out)
    for wrong in [(x, factors, 0, out), (x, factors, 5, out), (x, factors, 2, out)]:
        with pytest.raises(ValueError, match="have not the width of their buffers"):
            program.mix_heads(*wrong)
    for wrong in [(rows, factors, 3, out), (x, factors, 3, program.buffer(8, per_row=True))]:
        with pytest.raises(ValueError, match="not those of their factors"):
            program.mix_heads(*wrong)


def test_tokens_that_a_smaller_table_lacks_take_its_first_row():
    """Gemma 3n's table of inputs by layer lacks the tokens of pictures and sounds."""
    large, small = np.arange(10.0).reshape(5, 2), 20 + np.arange(6.0).reshape(3, 2)
    bench = Bench("portable", 5)
    bench.table(large.astype(np.float32))
    found = bench.run(5, bench.table(small.astype(np.float32)))
    np.testing.assert_array_equal(found, small[[0, 1, 2, 0, 0]])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim", [16, 32])
def test_rope(interleaved, dim):
    rng = np.random.default_rng(3)
    tokens, heads, head_dim = 9, 3, 32
    x = rng.normal(0, 1, (tokens, heads * head_dim)).astype(np.float32)
    spec = RopeSpec(dim, 10_000.0, interleaved, factors=(2.0,) * (dim // 2))

    def build(bench):
        ropes, buffer = RopeTables(bench.program, tokens), bench.table(x)
        bench.program.rope(buffer, ropes.of(spec), heads)
        ropes.reach(tokens)
        return buffer

    pair = np.arange(dim // 2)
    angle = np.arange(tokens)[:, None] * (10_000.0 ** (-2 * pair / dim) / 2)
    first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + dim // 2)
    expected = x.reshape(tokens, heads, head_dim).astype(np.float64)
    a, b = expected[..., first].copy(), expected[..., second].copy()
    cosine, sine = np.cos(angle)[:, None], np.sin(angle)[:, None]
    expected[..., first], expected[..., second] = a * cosine - b * sine, a * sine + b * cosine
    result = of_every_level(build, tokens)
    np.testing.assert_allclose(result, expected.reshape(tokens, -1), atol=1e-6)


def test_rotations_of_any_positions():
    cosine, sine = rotations(RopeSpec(4, 100.0, interleaved=False, scale=2.0), 1000, 2050)
    angle = np.arange(1000, 2050)[:, None] * np.array([1.0, 0.1])
    np.testing.assert_allclose(cosine, 2 * np.cos(angle), atol=1e-6)
    np.testing.assert_allclose(sine, 2 * np.sin(angle), atol=1e-6)


def test_rope_tables_grow_as_far_as_steps_reach():
    bench, tokens = Bench("auto", 2100), 2100
    x = np.random.default_rng(1).normal(0, 1, (tokens, 16)).astype(np.float32)
    ropes = RopeTables(bench.program, tokens)
    specs = [RopeSpec(16, base, interleaved=False) for base in (100.0, 10_000.0)]
    buffer = bench.table(x)
    for spec in (*specs, specs[0]):
        bench.program.rope(buffer, ropes.of(spec), 1)
    with pytest.raises(ValueError, match="bad position"):
        bench.run(1, buffer)
    ropes.reach(1)
    first = bench.run(1024, buffer)
    with pytest.raises(ValueError, match="bad position"):
        bench.run(1025, buffer)
    ropes.reach(1025)
    ropes.reach(3)
    np.testing.assert_array_equal(bench.run(2048, buffer)[:1024], first)
    ropes.reach(1_000_000)
    complete = bench.run(tokens, buffer)
    position = 2099
    expected = x[position].astype(np.float64)
    for spec in (*specs, specs[0]):
        angle = position * spec.base ** (-np.arange(8) / 8)
        a, b = expected[:8].copy(), expected[8:].copy()
        expected[:8] = a * np.cos(angle) - b * np.sin(angle)
        expected[8:] = a * np.sin(angle) + b * np.cos(angle)
    np.testing.assert_allclose(complete[position], expected, atol=1e-5)


def test_rotations_that_do_not_fit_a_rope_table_are_refused():
    program = Bench("auto", 4).program
    table = program.rope_table(16, False, 4)
    for rows, pairs in ((5, 8), (4, 7), (4, 9)):
        values = np.ones((rows, pairs), np.float32)
        with pytest.raises(ValueError, match="no room for these rotations"):
            program.extend_rope(table, values, values)
    values = np.ones((3, 8), np.float32)
    with pytest.raises(ValueError, match="as many sines as cosines"):
        program.extend_rope(table, values, values[:2])
    program.extend_rope(table, values, values)
    with pytest.raises(ValueError, match="no room for these rotations"):
        program.extend_rope(table, values[:2], values[:2])
    for other in (-1, 1):
        with pytest.raises(IndexError):
            program.extend_rope(other, values, values)
    for dim, positions in ((0, 4), (15, 4), (16, 0)):
        with pytest.raises(ValueError, match="an even dim, and positions"):
            program.rope_table(dim, False, positions)


@pytest.mark.parametrize("width", [3, 64])
def test_soft_cap(width):
    """Small and large values keep their relative precision; infinities become the cap."""
    magnitudes = np.geomspace(1e-6, 1e4, width - 2)
    x = np.float32([[*magnitudes, np.inf, -np.inf], [*-magnitudes, np.nan, 0]])

    def build(bench):
        buffer = bench.table(x)
        bench.program.soft_cap(buffer, 30.0)
        return buffer

    result = of_every_level(build, 2)
    np.testing.assert_allclose(result, 30 * np.tanh(x.astype(np.float64) / 30), rtol=1e-6)


def test_a_step_with_bad_indices_is_refused():
    bench = Bench("auto", 4)
    bench.table(np.zeros((2, 16), np.float32))
    one = np.zeros(1, np.int32)
    spans, none = np.empty((0, 5), np.int32), np.empty(0, np.int32)
    for ids in ([2], [-1], [0] * 5, []):
        values = np.array(ids, np.int32)
        with pytest.raises(ValueError, match="bad token"):
            bench.program.begin(values, np.zeros_like(values), spans, none, none, [])
    with pytest.raises(ValueError, match="bad row"):
        bench.program.begin(one, one, spans, none, np.array([1], np.int32), [])
    with pytest.raises(ValueError, match="page table"):
        bench.program.begin(one, one, np.array([[0, 1, 32, 0, 0]], np.int32), one, none, [])
    with pytest.raises(ValueError, match="bad page"):
        bench.program.begin(one, one, np.array([[0, 1, 0, 0, 0]], np.int32), one + 1, none, [])


def test_instructions_that_would_leave_their_buffers_are_refused():
    bench = Bench("auto", 4)
    program, values = bench.program, np.zeros((16, 16), np.float32)
    tokens, rows = bench.table(values), program.buffer(16, per_row=True)
    more = [program.buffer(16, per_row=per_row) for per_row in (False, True)]
    matrix = bench.matrix(F32, as_bytes(values), 16, 16, np.empty(0, np.float32))
    table = program.rope_table(16, True, 4)
    for layer in (-1, 1):
        with pytest.raises(ValueError, match=f"no layer {layer}"):
            program.store_kv(tokens, tokens, layer)
        with pytest.raises(ValueError, match=f"no layer {layer}"):
            program.attend(tokens, layer, 1, 1.0, 0, more[0], False)
    for instruction in (
        lambda: program.embed(matrix, rows),
        lambda: program.store_kv(tokens, rows, 0),
        lambda: program.attend(rows, 0, 1, 1.0, 0, more[1], False),
        lambda: program.rope(rows, table, 1),
        lambda: program.take_rows(rows, more[1]),
    ):
        with pytest.raises(ValueError, match=f"buffer {rows} is not one of tokens"):
            instruction()
    for source, target in ((tokens, rows), (rows, tokens)):
        with pytest.raises(ValueError, match="does not fit"):
            program.matmul(source, [(matrix, target)], False)
