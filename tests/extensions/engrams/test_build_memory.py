"""Counting, merging and writing stay within the memory budget."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engram_writer import FINGERPRINT
from heddle.extensions.engrams.build import Form, write_table
from heddle.extensions.engrams.counting import Counter
from heddle.extensions.engrams.format import Vocabulary
from heddle.extensions.engrams.grouping import Keep, records_of
from heddle.weights.progress import Silent

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = 70_000


@pytest.mark.parametrize("vocabulary", [3_000, 200_000])
def test_the_peak_stays_within_the_budget(tmp_path: Path, vocabulary: int) -> None:
    """The rows of these tokens take several times the budget."""
    budget = 2 << 20
    form = Form(3, 1, Keep(top=16), memory=budget)
    tokens = np.random.default_rng(1).zipf(1.3, TOKENS) % vocabulary
    tracemalloc.start()
    counter = Counter(tmp_path, form.orders, vocabulary, budget)
    for start in range(0, TOKENS, 1000):
        counter.add(tokens[start : start + 1000].tolist())
    records = (
        part
        for order in form.orders
        for part in records_of(counter.rows(order), counter.packing(order), form.keep)
    )
    output = tmp_path / "x.engr"
    write_table(output, tmp_path, records, Vocabulary(vocabulary, FINGERPRINT), form, Silent())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counter.runs > 3 * 4
    assert peak < budget
