"""Memory that the system refuses: an error reaches the caller, and nothing is lost or broken.

Each test runs in a process of its own, whose address space is limited while it asks for more.
"""

from __future__ import annotations

import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from programs import ISA_LEVELS, NO_SPANS, Bench, ints

from heddle import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEGABYTE = 1 << 20
VOCABULARY = 2 * MEGABYTE
"""Tokens of which a sampler that sorts them all needs a list of 16 MB."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/self/statm")


def test_a_sampler_without_memory_fails_its_step_and_no_other() -> None:
    alone(sample_without_memory)


def sample_without_memory() -> None:
    bench = Bench(ISA_LEVELS[0], 2, threads=2)
    program = bench.program
    values = np.random.default_rng(1).random((2, VOCABULARY), np.float32)
    states, logits = bench.table(values), program.buffer(VOCABULARY, per_row=True)
    program.take_rows(states, logits)
    program.sample(logits)
    ids = ints(range(2))

    def picks(params: _native.SamplerParams) -> list[_native.Pick]:
        """Two rows and two threads: either may take both."""
        samplers = [_native.Sampler(params) for _ in ids]
        finished = program.begin(ids, ids, NO_SPANS, ids[:0], ids, samplers).finish()
        assert finished is not None
        return [pick for (pick,) in finished[0]]

    greedy = _native.SamplerParams({"temperature": 0.0}, [])
    sorting = _native.SamplerParams({"top_p": 0.999}, ["top_p"])
    best = values.argmax(axis=1).tolist()
    assert [pick[0] for pick in picks(greedy)] == best
    with address_space(4 * MEGABYTE), pytest.raises(MemoryError):
        picks(sorting)
    assert [pick[0] for pick in picks(greedy)] == best
    assert all(0 <= pick[0] < VOCABULARY for pick in picks(sorting))


def test_a_kv_cache_without_a_thread_gives_its_memory_back() -> None:
    alone(kv_cache_without_thread)


def kv_cache_without_thread() -> None:
    sizes = 30, 3, 64, 1000
    needed = _native.KvCache.bytes_of_page("f16", *sizes[:3]) * sizes[3]
    before = mapped()
    # Room for the pages, and not for the stack of the thread that provides them ahead.
    with address_space(needed + MEGABYTE), pytest.raises(RuntimeError, match="unavailable"):
        _native.KvCache("f16", *sizes)
    assert mapped() - before < needed


def alone(test: Callable[[], None]) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(test).result()


@contextmanager
def address_space(more: int) -> Iterator[None]:
    """Leave this process so many bytes of address space beside those that it has."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped() + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def mapped() -> int:
    """Bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
