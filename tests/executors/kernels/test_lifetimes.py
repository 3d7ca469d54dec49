"""Native objects own what they use: Python may drop its references in any order."""

from __future__ import annotations

import gc
import sys
import threading
import time

import numpy as np
import pytest
from programs import F32, ISA_LEVELS, NO_BIAS, NO_SPANS, NOTHING, as_bytes, ints

from heddle import _native
from patience import PATIENCE

TOKENS, WIDTH = 4, 64


def matrix(runtime: _native.Runtime, values: np.ndarray) -> _native.Matrix:
    rows, columns = values.shape
    return _native.Matrix(_native.Arena(), runtime, F32, as_bytes(values), rows, columns, NO_BIAS)


def test_a_program_keeps_its_matrices_and_caches() -> None:
    """The lists and tuples that they came in are emptied or dropped, then the objects."""
    runtime = _native.Runtime(2, ISA_LEVELS[0])
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal((n, WIDTH), dtype=np.float32) for n in (TOKENS, 96))
    caches = [_native.KvCache("f16", 1, 1, 16, 1)]
    program = _native.Program(runtime, caches, TOKENS, TOKENS)
    table, weights = matrix(runtime, x), matrix(runtime, w)
    parts = [(weights, program.buffer(96, per_row=False))]
    source = program.buffer(WIDTH, per_row=False)
    held = [sys.getrefcount(each) for each in (table, weights)]
    program.embed(table, source)
    program.matmul(source, parts, False)
    assert [sys.getrefcount(each) for each in (table, weights)] == [n + 1 for n in held]

    out = parts.pop()[1]
    caches.clear()
    del table, weights, runtime
    gc.collect()
    _ = [np.full(1 << 12, np.nan, np.float32) for _ in range(100)]  # where freed objects were
    ids = ints(range(TOKENS))
    assert program.begin(ids, ids, NO_SPANS, NOTHING, NOTHING, []).finish() == ([], [])
    np.testing.assert_allclose(program.copy(out, TOKENS), x @ w.T, rtol=1e-4, atol=1e-4)


def test_a_step_keeps_the_samplers_that_it_began_with() -> None:
    runtime = _native.Runtime(2, ISA_LEVELS[0])
    program = _native.Program(runtime, [_native.KvCache("f16", 1, 1, 16, 1)], TOKENS, TOKENS)
    states, logits = (program.buffer(WIDTH, per_row=per_row) for per_row in (False, True))
    values = np.eye(TOKENS, WIDTH, dtype=np.float32)
    program.embed(matrix(runtime, values), states)
    program.take_rows(states, logits)
    program.sample(logits)
    params = _native.SamplerParams({"temperature": 0.0}, [])
    samplers = [_native.Sampler(params) for _ in range(TOKENS)]
    ids = ints(range(TOKENS))
    first = samplers[0]
    held = sys.getrefcount(first)
    step = program.begin(ids, ids, NO_SPANS, NOTHING, ids, samplers, may_sample=False)
    samplers.clear()
    assert sys.getrefcount(first) == held, "the step holds it in place of the list"
    finished = step.finish()
    assert finished is not None
    assert [pick[0] for (pick,) in finished[0]] == [0, 1, 2, 3]


@pytest.mark.parametrize("method", ["read", "write"])
def test_a_page_is_copied_without_the_interpreter_lock(method: str) -> None:
    """Threads are switched only where one lets go of the lock, which here the copy alone does."""
    cache = _native.KvCache("f16", 64, 8, 64, 1)  # 4 MB
    page = np.zeros(cache.page_bytes, np.uint8)
    ran: list[None] = []
    waiting = threading.Lock()
    waiting.acquire()

    def run() -> None:
        with waiting:
            ran.append(None)

    other = threading.Thread(target=run)
    other.start()
    interval = sys.getswitchinterval()
    deadline = time.monotonic() + PATIENCE
    try:
        sys.setswitchinterval(10 * PATIENCE)
        waiting.release()
        while not ran:
            assert time.monotonic() < deadline, "no other thread ran"
            getattr(cache, method)(0, page)
    finally:
        sys.setswitchinterval(interval)
        other.join()
