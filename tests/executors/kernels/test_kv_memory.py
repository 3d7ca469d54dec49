"""Memory for pages of keys and values: mapped, provided a little ahead of use and no further."""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from resource import getpagesize

import numpy as np
import pytest

from heddle import _native
from patience import PATIENCE

MEGABYTE = 1 << 20
AHEAD = 128 * MEGABYTE  # as native/fault_ahead.cpp has it


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux provides memory ahead")
def test_memory_is_provided_ahead_and_only_so_far() -> None:
    """In a process of its own: what other tests have left may go meanwhile."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(measure).result()


def measure() -> None:
    before = resident()
    cache = _native.KvCache("f16", 30, 3, 64, 1000)  # 737 MB
    deadline = time.monotonic() + PATIENCE
    while resident() - before < 0.9 * AHEAD or growing():
        assert time.monotonic() < deadline, f"{(resident() - before) / MEGABYTE:.0f} MB"
    assert resident() - before < 1.5 * AHEAD
    del cache
    assert resident() - before < 0.5 * AHEAD


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4"])
def test_a_page_is_copied_read_and_written_to_its_last_byte(kv_type: str) -> None:
    cache = _native.KvCache(kv_type, 2, 3, 32, 4)
    rng = np.random.default_rng(1)
    contents = [rng.integers(0, 256, cache.page_bytes, dtype=np.uint8) for _ in range(4)]
    for page, content in enumerate(contents):
        cache.write(page, content)
    cache.copy(1, 2)
    contents[2] = contents[1]
    for page, content in enumerate(contents):
        found = np.empty(cache.page_bytes, np.uint8)
        cache.read(page, found)
        np.testing.assert_array_equal(found, content)


def resident() -> int:
    """Bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


def growing() -> bool:
    """Whether memory comes within a fifth of a second; a slow machine may wrongly say no."""
    first, end = resident(), time.monotonic() + 0.2
    while time.monotonic() < end:
        if resident() != first:
            return True
    return False
