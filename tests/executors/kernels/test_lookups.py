"""Rows of lookup tables by token, position and segment, and means of sequences."""

from __future__ import annotations

import numpy as np
import pytest
from programs import F32, ISA_LEVELS, NO_BIAS, NOTHING, Bench, as_bytes, ints

from heddle.extensions.reference.ops import ReferenceOps, SequenceCache, SequenceChunk, Weight

TABLE = np.random.default_rng(1).normal(size=(9, 16)).astype(np.float32)
SEPARATOR = 3
TEXTS = [[5, 3, 3, 7, 3, 8], [3], [1, 2, 8]]
"""Three sequences of one step. Segments of the first: 0, 0, 1, 2, 2, 3."""
OPS = ReferenceOps([SequenceChunk(SequenceCache(), 0, text) for text in TEXTS])


def run(bench: Bench, buffer: int) -> np.ndarray:
    """The buffer after a step with all texts."""
    ids = [token for text in TEXTS for token in text]
    positions = [place for text in TEXTS for place in range(len(text))]
    firsts = np.cumsum([0, *map(len, TEXTS)])
    spans = [(first, len(text), 0, 0, 0) for first, text in zip(firsts, TEXTS, strict=False)]
    arrays = ints(ids), ints(positions), np.array(spans, np.int32), ints([0])
    bench.program.begin(*arrays, NOTHING, []).finish()
    return bench.program.copy(buffer, len(ids))


def bench_with_table(isa: str, threads: int = 2) -> tuple[Bench, object, int]:
    bench = Bench(isa, 10, threads)
    matrix = bench.matrix(F32, as_bytes(TABLE), *TABLE.shape, NO_BIAS)
    return bench, matrix, bench.program.buffer(16, per_row=False)


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("first", [0, 2])
def test_rows_by_position(isa: str, first: int) -> None:
    bench, matrix, out = bench_with_table(isa)
    bench.table(np.zeros((10, 16), np.float32))
    bench.program.embed(matrix, out, True, first)  # type: ignore[arg-type]
    expected = OPS.embed(Weight(TABLE), OPS.batch().positions, first)
    np.testing.assert_array_equal(run(bench, out), expected)


def test_a_position_beyond_the_table_is_refused() -> None:
    bench, matrix, out = bench_with_table("portable")
    bench.table(np.zeros((10, 16), np.float32))
    bench.program.embed(matrix, out, True, 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bad position"):
        run(bench, out)
    with pytest.raises(ValueError, match="has not so many rows"):
        bench.program.embed(matrix, out, True, 9)  # type: ignore[arg-type]


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_rows_by_segment(isa: str, rows: int) -> None:
    bench, _, out = bench_with_table(isa)
    table = TABLE[:rows]
    bench.table(np.zeros((10, 16), np.float32))
    matrix = bench.matrix(F32, as_bytes(table), rows, 16, NO_BIAS)
    bench.program.embed_segments(matrix, SEPARATOR, out)
    segments = np.minimum([0, 0, 1, 2, 2, 3, 0, 0, 0, 0], rows - 1)
    np.testing.assert_array_equal(run(bench, out), table[segments])
    expected = OPS.embed_segments(Weight(table), OPS.batch().tokens, SEPARATOR)
    np.testing.assert_array_equal(expected, table[segments])


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_rows_of_the_tokens_before(isa: str) -> None:
    bench, _, out = bench_with_table(isa)
    bench.table(np.zeros((10, 16), np.float32))
    table = TABLE[:7]  # which has no row for token 7
    matrix = bench.matrix(F32, as_bytes(table), 7, 16, NO_BIAS)
    bench.program.embed_previous(matrix, 6, out)
    before = [6, 5, 3, 3, 0, 3, 6, 6, 1, 2]
    np.testing.assert_array_equal(run(bench, out), table[before])
    expected = OPS.embed_previous(Weight(table), OPS.batch().tokens, 6)
    np.testing.assert_array_equal(expected, table[before])


@pytest.mark.parametrize("start", [-1, 9])
def test_a_start_beyond_the_table_is_refused(start: int) -> None:
    bench, matrix, out = bench_with_table("portable")
    with pytest.raises(ValueError, match="has not so many rows"):
        bench.program.embed_previous(matrix, start, out)  # type: ignore[arg-type]


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_means_of_sequences(isa: str) -> None:
    bench, _, out = bench_with_table(isa)
    bench.program.mean_rows(bench.table(TABLE), out)
    rows = OPS.embed(Weight(TABLE), OPS.batch().tokens)
    found = run(bench, out)
    np.testing.assert_array_equal(found, OPS.mean_rows(rows))
    np.testing.assert_allclose(found[0], rows[:6].mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("operation", ["embed_segments", "embed_previous", "mean_rows"])
def test_a_part_of_a_sequence_is_refused(operation: str) -> None:
    """Segments, tokens before and means need all tokens of a sequence."""
    bench, matrix, out = bench_with_table("portable")
    source = bench.table(TABLE)
    if operation == "mean_rows":
        bench.program.mean_rows(source, out)
    else:
        getattr(bench.program, operation)(matrix, SEPARATOR, out)
    span = np.array([[0, 1, 5, 0, 0]], np.int32)
    with pytest.raises(ValueError, match="not of a whole sequence"):
        bench.program.begin(ints([1]), ints([5]), span, ints([0]), NOTHING, []).finish()
