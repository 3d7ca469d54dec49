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
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.low_rank import LowRank, Whole
from heddle.weights.tensor_types import TensorType
from models.tiny.llama import PLAIN
from models.tiny.qwen3_moe import TinyQwen3Moe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from heddle.executors.cpu.executor import CpuExecutor
    from heddle.weights.low_rank import Change
    from models.tiny.base import TinyModel

CONFIG = replace(SMALL, slots=8, kv_cache=1 << 22)
EXPERTS = TinyQwen3Moe("whole blocks", heads=4, kv_heads=2, head_dim=16, tied=True, expert_width=64)
MODELS = pytest.mark.parametrize("model", [PLAIN, EXPERTS], ids=["dense", "experts"])


def model_file(path: Path, model: TinyModel) -> GGUFCheckpoint:
    return GGUFCheckpoint.open(model.write(path / "tiny.gguf"))


def outside(model: TinyModel, seed: int) -> dict[str, Change]:
    """With odd seeds a change of the embedding, and an output matrix of its own; else a table."""
    random = np.random.default_rng(7)
    size = (model.vocabulary, model.width)
    whole = Whole(random.standard_normal(size, np.float32), TensorType.F32)
    if seed % 2 == 0:
        return {"embedding": whole}
    a, b = (random.standard_normal((3, n), np.float32) for n in size)
    return {"embedding": LowRank(a, b.T.copy(), 0.5, TensorType.F32), "output": whole}


def logits(executor: CpuExecutor, *sequences: tuple[int, list[int], Sequence[AdapterUse]]) -> Any:
    """Last logits (sequences, vocabulary) of one step with whole sequences, each in its slot."""
    chunks = [
        Chunk(slot, 0, tokens, [2 * slot, 2 * slot + 1], True, adapters=adapters)
        for slot, tokens, adapters in sequences
    ]
    return executor.logits(StepPlan((), tuple(chunks)))


@MODELS
@pytest.mark.parametrize("isa", _native.isa_levels())
@pytest.mark.parametrize("quantize", ["none", "q8_0"])
def test_company_changes_no_bit(isa: str, quantize: str, model: TinyModel, tmp_path: Path) -> None:
    config = replace(CONFIG, isa=isa, quantize=quantize, threads=2)
    executor = load(model_file(tmp_path, model), config)
    one, other, rounded = (
        executor.make_adapter(
            random_changes(executor, seed, rank, kind, gains=gains) | outside(model, seed)
        )
        for seed, rank, kind, gains in (
            (1, 4, TensorType.F32, False),
            (2, 20, TensorType.F16, True),
            (3, 20, TensorType.I8, True),
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


@MODELS
def test_chunks_change_no_bit(model: TinyModel, tmp_path: Path) -> None:
    executor = load(model_file(tmp_path, model), CONFIG)
    changes = random_changes(executor, 1, gains=True) | outside(model, 1)
    uses = [AdapterUse(executor.make_adapter(changes))]
    whole = logits(executor, (0, PROMPT, uses))
    for start, end in ((0, 1), (1, 34), (34, len(PROMPT))):
        chunk = Chunk(3, start, PROMPT[start:end], [6, 7], True, adapters=uses)
        last = executor.logits(StepPlan((), (chunk,)))
    assert np.array_equal(last, whole)
    executor.close()


@MODELS
@pytest.mark.parametrize("kind", [TensorType.F32, TensorType.I8])
def test_all_levels_compute_the_same_bits(
    kind: TensorType, model: TinyModel, tmp_path: Path
) -> None:
    def found(isa: str, threads: int) -> bytes:
        config = replace(CONFIG, isa=isa, threads=threads, quantize="q4_0")
        executor = load(model_file(tmp_path, model), config)
        changes = random_changes(executor, 3, 7, kind, gains=True) | outside(model, 1)
        uses = [AdapterUse(executor.make_adapter(changes))]
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
    with pytest.raises(ValueError, match="does not fit"):
        executor.make_adapter({name: replace(change, gains=np.ones(1, np.float32))})


def test_gains_of_experts_are_refused(tmp_path: Path) -> None:
    executor = load(model_file(tmp_path, EXPERTS), CONFIG)
    name = "layers.0.mlp.experts.up.1"
    change = random_changes(executor, 1)[name]
    with pytest.raises(ValueError, match="no change of this kind"):
        executor.make_adapter({name: replace(change, gains=np.ones(64, np.float32))})
    executor.close()


def test_an_expert_changes_the_tokens_that_use_it_alone(tmp_path: Path) -> None:
    """All other rows keep their bits."""
    executor = load(model_file(tmp_path, EXPERTS), CONFIG)
    changes = random_changes(executor, 1)
    last = EXPERTS.layers - 1
    few = {name: changes[name] for name in changes if name == f"layers.{last}.mlp.experts.down.2"}
    uses = [AdapterUse(executor.make_adapter(few))]
    rows = [(slot, [token], ()) for slot, token in enumerate(range(8))]
    plain = logits(executor, *rows)
    changed = logits(executor, *((slot, tokens, uses) for slot, tokens, _ in rows))
    same = [np.array_equal(a, b) for a, b in zip(plain, changed, strict=True)]
    assert any(same) and not all(same)
    executor.close()
