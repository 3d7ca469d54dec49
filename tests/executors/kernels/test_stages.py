"""Instructions that follow one another item by item: fewer waits, and the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from programs import F32, ISA_LEVELS, NO_BIAS, Bench, as_bytes

from heddle.weights.tensor_types import TensorType
from tensor_blocks import random_matrix

WIDTH = 64
Q8_0 = TensorType.Q8_0


class Mlp(Bench):
    """down(silu(gate(x)) * up(x)), of random matrices that are always the same.

    Attributes:
        result: the buffer of the result.
        gating: barriers of gate, up, and what becomes of both.
    """

    def __init__(self, isa: str, kind: TensorType, hidden: int, tokens: int, parts: str) -> None:
        super().__init__(isa, tokens, threads=2)
        rng, program = np.random.default_rng(5), self.program
        x = self.table(rng.normal(size=(tokens, WIDTH)).astype(np.float32))
        matrices = [
            self.matrix(int(kind), random_matrix(rng, kind, rows, columns), rows, columns, NO_BIAS)
            for rows, columns in ((hidden, WIDTH), (hidden, WIDTH), (WIDTH, hidden))
        ]
        buffers = {name: program.buffer(hidden, per_row=False) for name in ("gate", "up")}
        out = program.buffer(hidden, per_row=False)
        self.result = program.buffer(WIDTH, per_row=False)
        if kind == Q8_0:
            program.quantise(x)
        before = program.barriers
        of = dict(zip(buffers, matrices, strict=False))
        for names in parts.split(", "):
            program.matmul(x, [(of[name], buffers[name]) for name in names.split()], False)
        program.gated(buffers["gate"], buffers["up"], "silu", out, kind == Q8_0)
        self.gating = program.barriers - before
        program.matmul(out, [(matrices[2], self.result)], False)


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("kind", [Q8_0, TensorType.F32])
@pytest.mark.parametrize("parts", ["gate up", "up gate"])
def test_gate_and_up_are_gated_by_columns(isa, kind, parts):
    """In steps of up to 16 rows; a longer step gates whole rows."""
    for hidden in (32, 416):
        for tokens in (1, 2, 16, 17, 40):
            apart = Mlp(isa, kind, hidden, tokens, "gate, up")
            together = Mlp(isa, kind, hidden, tokens, parts)
            assert (apart.gating, together.gating) == (3, 1)
            expected = apart.run(tokens, apart.result)
            assert np.abs(expected).max() > 0
            np.testing.assert_array_equal(together.run(tokens, together.result), expected)


def test_the_gated_rows_may_take_the_place_of_the_input():
    """Models whose MLP is as wide as their stream use the input's buffer again."""
    bench = Bench("auto", 12, threads=2)
    rng, program = np.random.default_rng(4), bench.program
    x, matrix = bench.table(np.ones((12, WIDTH), np.float32)), np.zeros((WIDTH, WIDTH), np.float32)
    matrix[:, -1] = rng.normal(size=WIDTH)
    gate, up = (program.buffer(WIDTH, per_row=False) for _ in range(2))
    parts = [
        (bench.matrix(F32, as_bytes(matrix), WIDTH, WIDTH, NO_BIAS), out) for out in (gate, up)
    ]
    before = program.barriers
    program.matmul(x, parts, False)
    program.gated(gate, up, "silu", x, False)
    assert program.barriers - before == 2
    expected = matrix[:, -1] ** 2 / (1 + np.exp(-matrix[:, -1]))
    np.testing.assert_allclose(bench.run(12, x), np.tile(expected, (12, 1)), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "hidden", "parts", "barriers"),
    [
        (TensorType.F32, 48, "gate up", 2),  # no whole blocks of columns
        (Q8_0, 64, "gate, up", 3),  # another matmul is the last one before
        (Q8_0, 64, "up, gate", 3),
    ],
)
def test_other_products_are_gated_by_rows(kind, hidden, parts, barriers):
    assert Mlp("portable", kind, hidden, 3, parts).gating == barriers


def rows_of(isa, tokens, width, *, waits):
    """Norm, norm of heads and rotation of rows; with waits, another instruction is in between."""
    bench = Bench(isa, tokens, threads=2)
    program, rng = bench.program, np.random.default_rng(3)
    x = bench.table(rng.normal(size=(tokens, width)).astype(np.float32))
    out, other = (program.buffer(width, per_row=False) for _ in range(2))
    square = as_bytes(np.eye(width, dtype=np.float32))
    matrix = bench.matrix(F32, square, width, width, NO_BIAS)
    weight = rng.normal(size=width).astype(np.float32)
    before = program.barriers
    for step in (
        lambda: program.norm(x, weight, 1e-5, out, False),
        lambda: program.norm_heads(out, weight[: width // 4], 1e-5, 4),
        lambda: program.scale(out, 0.7),
        lambda: program.add(out, x, out),
    ):
        if waits:
            program.matmul(x, [(matrix, other)], False)
        step()
    return bench.run(tokens, out), program.barriers - before


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("tokens", [1, 2, 3, 50])
def test_work_on_rows_needs_no_wait(isa, tokens):
    rows, none = rows_of(isa, tokens, WIDTH, waits=False)
    expected, all_of_them = rows_of(isa, tokens, WIDTH, waits=True)
    assert (none, all_of_them) == (0, 8)  # the embedding before is of rows, too
    np.testing.assert_array_equal(rows, expected)
