"""Adapters (LoRA): their changes join each product, and only in the sequences that have them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiny_files import PROMPT, SMALL, tiny_file

from adapters import random_changes
from heddle import _native
from heddle.errors import UnsupportedModelError
from heddle.executors.adapting import AdaptingExecutor
from heddle.executors.cpu.load import load
from heddle.step import AdapterUse, Chunk, StepPlan
from heddle.weights.low_rank import LowRank
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from heddle.executors.cpu.executor import CpuExecutor

CONFIG = replace(SMALL, slots=8, kv_cache=1 << 22)


def logits(executor: CpuExecutor, *sequences: tuple[int, list[int], Sequence[AdapterUse]]) -> Any:
    """Last logits (sequences, vocabulary) of one step with whole sequences, each in its slot."""
    chunks = [
        Chunk(slot, 0, tokens, [2 * slot, 2 * slot + 1], True, adapters=adapters)
        for slot, tokens, adapters in sequences
    ]
    return executor.logits(StepPlan((), tuple(chunks)))


@pytest.mark.parametrize("isa", _native.isa_levels())
@pytest.mark.parametrize("quantize", ["none", "q8_0"])
def test_company_changes_no_bit(isa: str, quantize: str, tmp_path: Path) -> None:
    config = replace(CONFIG, isa=isa, quantize=quantize, threads=2)
    executor = load(tiny_file(tmp_path), config)
    one, other, rounded = (
        executor.make_adapter(random_changes(executor, seed, rank, kind))
        for seed, rank, kind in (
            (1, 4, TensorType.F32),
            (2, 20, TensorType.F16),
            (2, 20, TensorType.I8),
        )
    )
    rows: list[tuple[int, list[int], Sequence[AdapterUse]]] = [
        (0, PROMPT, ()),
        (1, PROMPT, [AdapterUse(one)]),
        (2, PROMPT[:1], [AdapterUse(one)]),
        (3, PROMPT, [AdapterUse(other, 0.5)]),
        (4, PROMPT, [AdapterUse(one), AdapterUse(other, 0.5)]),
        (5, PROMPT[:3], ()),
        (6, PROMPT[3:5], [AdapterUse(other)]),
        (7, PROMPT[3:5], [AdapterUse(rounded)]),
    ]
    alone = [logits(executor, row)[0] for row in rows]
    assert len({found.tobytes() for found in alone}) == len(rows), "each differs"
    assert np.array_equal(logits(executor, *rows), alone)
    assert np.array_equal(logits(executor, *rows[::-1]), alone[::-1])
    executor.close()


def test_chunks_change_no_bit(tmp_path: Path) -> None:
    executor = load(tiny_file(tmp_path), CONFIG)
    uses = [AdapterUse(executor.make_adapter(random_changes(executor, 1)))]
    whole = logits(executor, (0, PROMPT, uses))
    for start, end in ((0, 1), (1, 34), (34, len(PROMPT))):
        chunk = Chunk(3, start, PROMPT[start:end], [6, 7], True, adapters=uses)
        last = executor.logits(StepPlan((), (chunk,)))
    assert np.array_equal(last, whole)
    executor.close()


@pytest.mark.parametrize("kind", [TensorType.F32, TensorType.I8])
def test_all_levels_compute_the_same_bits(kind: TensorType, tmp_path: Path) -> None:
    def found(isa: str, threads: int) -> bytes:
        config = replace(CONFIG, isa=isa, threads=threads, quantize="q4_0")
        executor = load(tiny_file(tmp_path), config)
        uses = [AdapterUse(executor.make_adapter(random_changes(executor, 3, 7, kind)))]
        rows = logits(executor, (0, PROMPT, uses), (1, PROMPT[:2], uses))
        executor.close()
        return rows.tobytes()

    assert len({found(isa, threads) for isa in _native.isa_levels() for threads in (1, 3)}) == 1


def test_integers_have_a_scale_for_each_row_of_a_and_column_of_b(tmp_path: Path) -> None:
    """Each of a rank's rows and columns has values of another size, and one has none."""
    executor = load(tiny_file(tmp_path), CONFIG)
    sizes = np.array([1, 1e-4, 300, 0], np.float32)
    changes = {
        name: replace(one, a=one.a * sizes[:, None], b=one.b / np.maximum(sizes, 1e-4))
        for name, one in random_changes(executor, 1, len(sizes)).items()
    }
    rounded = {name: replace(one, type=TensorType.I8) for name, one in changes.items()}
    adapters = executor.make_adapter(changes), executor.make_adapter(rounded)
    uses = [(), *([AdapterUse(one)] for one in adapters)]
    rows = [(slot, PROMPT, each) for slot, each in enumerate(uses)]
    none, exact, near = logits(executor, *rows)
    assert 0 < np.abs(near - exact).max() < 0.05 * np.abs(exact - none).max()
    assert adapters[1].bytes < 0.3 * adapters[0].bytes
    executor.close()


def test_a_matrix_that_no_product_reads_is_refused(device: str, tmp_path: Path) -> None:
    from devices import load_on

    executor = load_on(device, tiny_file(tmp_path), SMALL)
    if not isinstance(executor, AdaptingExecutor):
        pytest.skip(f"{device} has no adapters")
    change = LowRank(np.ones((1, 4), np.float32), np.ones((4, 1), np.float32), 1, TensorType.F32)
    with pytest.raises(UnsupportedModelError, match=r"layers\.0\.nothing"):
        executor.make_adapter({"layers.0.nothing": change})


def test_an_adapter_of_another_program_is_refused(tmp_path: Path) -> None:
    one, other = (load(tiny_file(tmp_path), CONFIG) for _ in range(2))
    adapter = one.make_adapter(random_changes(one, 1))
    with pytest.raises(ValueError, match="adapter, which is of another program"):
        logits(other, (0, PROMPT, [AdapterUse(adapter)]))


def test_a_change_of_another_shape_is_refused(tmp_path: Path) -> None:
    executor = load(tiny_file(tmp_path), CONFIG)
    name, change = next(iter(random_changes(executor, 1).items()))
    with pytest.raises(ValueError, match="does not fit"):
        executor.make_adapter({name: replace(change, a=change.a[:, 1:])})
