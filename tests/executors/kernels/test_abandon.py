"""A step that is abandoned ends without a result, and so does every later one."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from programs import F32, ISA_LEVELS, NO_SPANS, NOTHING, Bench, as_bytes, ints

from heddle import _native

TOKENS = 1100
"""More than a matmul computes without a look at whether it is abandoned."""


def bench(threads: int) -> tuple[Bench, int]:
    """A program of two matmuls, and the buffer that it fills last."""
    values = np.random.default_rng(1).standard_normal((TOKENS, 64), dtype=np.float32)
    weights = np.random.default_rng(2).standard_normal((64, 64), dtype=np.float32)
    bench = Bench(ISA_LEVELS[0], TOKENS, threads)
    buffer = bench.table(values)
    for _ in range(2):
        out = bench.program.buffer(64, per_row=False)
        matrix = bench.matrix(F32, as_bytes(weights), 64, 64, np.empty(0, np.float32))
        bench.program.matmul(buffer, [(matrix, out)], False)
        buffer = out
    return bench, buffer


@pytest.mark.parametrize("threads", [1, 4])
def test_what_has_not_begun_stays_undone(threads: int) -> None:
    whole, buffer = bench(threads)
    ids = ints(range(TOKENS))
    assert whole.program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, []).finish() == ([], [])
    done = whole.program.copy(buffer, TOKENS)
    assert np.count_nonzero(done) == done.size

    # The calling thread abandons the step before it joins in; one thread computes nothing.
    cut, buffer = bench(threads)
    step = cut.program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, [])
    cut.program.abandon()
    assert step.finish() is None
    if threads == 1:
        assert not np.count_nonzero(cut.program.copy(buffer, TOKENS))
    assert cut.program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, []).finish() is None


def test_any_thread_may_abandon_a_step_at_any_time() -> None:
    """Steps follow one another until another thread says stop; sanitizers watch."""
    running, _ = bench(threads=3)
    ids = ints(range(TOKENS))
    begun = threading.Event()

    def abandon() -> None:
        begun.wait()
        running.program.abandon()

    other = threading.Thread(target=abandon)
    other.start()
    steps = 0
    while running.program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, []).finish() is not None:
        steps += 1
        begun.set()
    other.join()
    assert steps >= 1


def test_a_program_that_was_not_abandoned_goes_on_beside_one_that_was() -> None:
    """Two programs of one runtime: the pool of threads drains and serves the other."""
    values = np.ones((4, 32), np.float32)
    bench = Bench(ISA_LEVELS[0], 4, threads=2)
    table, abandoned = bench.table(values), bench.program
    bench.program = _native.Program(bench.runtime, (bench.cache,), 4, 4)
    buffer = bench.table(values)
    abandoned.abandon()
    ids = ints(range(4))
    assert abandoned.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, []).finish() is None
    assert not np.count_nonzero(abandoned.copy(table, 4))
    assert np.array_equal(bench.run(4, buffer), values)


@pytest.mark.parametrize("threads", [1, 3])
def test_steps_of_one_runtime_follow_one_another(threads: int) -> None:
    first, buffer = bench(threads)
    program = first.program
    ids = ints(range(TOKENS))
    step = program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, [])
    with pytest.raises(RuntimeError, match="another step has not been finished"):
        program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, [])
    with pytest.raises(RuntimeError, match="the threads have another task"):
        first.runtime.read_rate(1 << 20, 0.0)
    assert step.finish() == ([], [])
    with pytest.raises(ValueError, match="finished before"):
        step.finish()
    assert np.count_nonzero(program.copy(buffer, TOKENS)) == TOKENS * 64


@pytest.mark.parametrize("threads", [1, 3])
def test_a_step_that_is_dropped_is_computed_to_its_end(threads: int) -> None:
    dropped, buffer = bench(threads)
    ids = ints(range(TOKENS))
    dropped.program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, [])
    assert np.count_nonzero(dropped.program.copy(buffer, TOKENS)) == TOKENS * 64
    assert dropped.program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, []).finish() == ([], [])
