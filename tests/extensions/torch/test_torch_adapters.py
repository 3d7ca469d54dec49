"""Adapters (LoRA) on torch: near the CPU's, exact in any company, loaded while steps run."""

# Outcomes are unions; each test knows which member its plan gives.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiny_files import GREEDY, PROMPT, SMALL, tiny_file

from adapters import random_changes
from heddle.errors import (
    ConfigError,
    EngineFailedError,
    OutOfMemoryError,
    UnsupportedModelError,
)
from heddle.executors.cpu.load import load as load_on_cpu
from heddle.step import AdapterUse, Binding, Chunk, Scoring, StepPlan
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.low_rank import Whole
from heddle.weights.tensor_types import TensorType
from models.tiny import FAMILIES
from models.tiny.base import TOKENS
from models.window_pages import windows_of
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from models.tiny.base import TinyModel

torch = pytest.importorskip("torch")
from heddle.extensions.torch import adapters as torch_adapters  # noqa: E402
from heddle.extensions.torch.load import load  # noqa: E402

CONFIG = replace(SMALL, device="torch", slots=8, kv_cache=4 << 20, speculation="off")
Row = tuple[int, "list[int]", "Sequence[AdapterUse]"]


def scored(executor: Any, *rows: Row, start: int = 0) -> list[Any]:
    """Log probabilities after each token of a sequence in its slot, all in one step."""
    chunks = []
    for slot, tokens, uses in rows:
        score = Scoring(0, tokens[start + 1 :], executor.shape.vocabulary)
        pages = [2 * slot, 2 * slot + 1]
        chunks.append(
            Chunk(slot, start, tokens[start:], pages, False, score, adapters=uses,
                  windows=windows_of(executor.memory, start, len(tokens)))
        )  # fmt: skip
    clears = tuple(slot for slot, _, _ in rows) if executor.memory.fixed and not start else ()
    found = execute(executor, StepPlan((), tuple(chunks), clears=clears)).scored
    return [one.scores for one in found]


def values(scores: Any) -> np.ndarray:
    """Log probabilities (tokens, vocabulary) by token id."""
    return np.array([[logprob for _, logprob in sorted(one.top)] for one in scores])


@pytest.mark.parametrize("model", [models[0] for models in FAMILIES.values()], ids=str)
def test_changes_agree_with_the_cpu(model: TinyModel, tmp_path: Path) -> None:
    checkpoint = GGUFCheckpoint.open(model.write(tmp_path / "tiny.gguf"))
    own, cpu = load(checkpoint, CONFIG), load_on_cpu(checkpoint, replace(CONFIG, device="cpu"))
    changes = random_changes(own, 1)
    others = {name for name in cpu.adaptable() if ".experts." in name} | {"embedding"}
    assert own.adaptable().keys() == cpu.adaptable().keys() - others
    found, expected = (
        values(scored(one, (0, TOKENS, [AdapterUse(one.make_adapter(changes))]))[0])
        for one in (own, cpu)
    )
    np.testing.assert_allclose(found, expected, atol=2e-2)
    assert np.abs(found - values(scored(own, (0, TOKENS, ()))[0])).max() > 0.1


@pytest.mark.parametrize("quantize", ["none", "q8_0"])
def test_company_changes_no_bit(quantize: str, tmp_path: Path) -> None:
    executor: Any = load(tiny_file(tmp_path), replace(CONFIG, quantize=quantize))
    one, other = (
        executor.make_adapter(random_changes(executor, seed, rank, kind))
        for seed, rank, kind in ((1, 4, TensorType.F32), (2, 20, TensorType.F16))
    )
    rows: list[Row] = [
        (0, PROMPT, ()),
        (1, PROMPT, [AdapterUse(one)]),
        (2, PROMPT[:2], [AdapterUse(one)]),
        (3, PROMPT, [AdapterUse(other, 0.5)]),
        (4, PROMPT, [AdapterUse(one), AdapterUse(other, 0.5)]),
        (5, PROMPT, [AdapterUse(other, 0.5), AdapterUse(one)]),
        (6, PROMPT[:3], ()),
        (7, PROMPT[3:5], [AdapterUse(other)]),
    ]
    alone = [scored(executor, row)[0] for row in rows]
    kinds = {repr(found) for found in alone}
    assert len(kinds) in {len(rows), len(rows) - 1}, "each differs, perhaps but for the order"
    assert scored(executor, *rows) == alone
    assert scored(executor, *rows[::-1]) == alone[::-1]
    without: Any = load(tiny_file(tmp_path), replace(CONFIG, quantize=quantize))
    assert scored(without, rows[0])[0] == alone[0]


def test_chunks_and_samples_change_no_bit(tmp_path: Path) -> None:
    """The rows that are read are others than those of the step: also the head has changes."""
    executor: Any = load(tiny_file(tmp_path), CONFIG)
    uses = [AdapterUse(executor.make_adapter(random_changes(executor, 1)))]

    def last(cuts: Sequence[int], company: Sequence[Chunk] = ()) -> Any:
        bindings: tuple[Binding, ...] = (Binding(0, replace(GREEDY, logprobs=5), PROMPT, []),)
        for first, end in zip([0, *cuts], [*cuts, len(PROMPT)], strict=True):
            own = Chunk(0, first, PROMPT[first:end], [0, 1], end == len(PROMPT), adapters=uses)
            result, bindings = execute(executor, StepPlan(bindings, (*company, own))), ()
        return result.sampled[-1]

    whole = last([])
    assert last([1, 34]) == whole
    assert last([16], [Chunk(1, 0, PROMPT[:5], [2], False)]) == whole
    plain = StepPlan(
        (Binding(0, replace(GREEDY, logprobs=5), PROMPT, []),),
        (Chunk(0, 0, PROMPT, [0, 1], True),),
    )
    assert execute(executor, plain).sampled[0].top != whole.top


def test_an_adapter_goes_when_nothing_refers_to_it(tmp_path: Path) -> None:
    executor: Any = load(tiny_file(tmp_path), CONFIG)
    changes = random_changes(executor, 1)
    adapter = executor.make_adapter(changes)
    assert adapter.bytes >= sum(one.a.nbytes + one.b.nbytes for one in changes.values())
    chunk = Chunk(0, 0, [1, 2], [0], False, Scoring(0, [2], 4), adapters=[AdapterUse(adapter)])
    executor.submit(StepPlan((), (chunk,)))
    dropped = weakref.ref(adapter)
    del adapter, chunk
    other = executor.make_adapter(changes)
    gc.collect()
    assert dropped() is not None, "a step in flight has it"
    (found,) = executor.collect().scored
    gc.collect()
    assert dropped() is None
    again = Chunk(0, 0, [1, 2], [0], False, Scoring(0, [2], 4), adapters=[AdapterUse(other)])
    assert execute(executor, StepPlan((), (again,))).scored[0].scores == found.scores


def test_changes_that_may_be_rounded_are_bfloat16(tmp_path: Path) -> None:
    executor: Any = load(tiny_file(tmp_path), CONFIG)
    exact, near = (
        executor.make_adapter(random_changes(executor, 1, kind=kind))
        for kind in (TensorType.F32, TensorType.I8)
    )
    assert near.bytes == exact.bytes / 2
    found, expected = (
        values(scored(executor, (0, PROMPT, [AdapterUse(one)]))[0]) for one in (near, exact)
    )
    np.testing.assert_allclose(found, expected, atol=0.1)
    assert not np.array_equal(found, expected)


# --- refusals ------------------------------------------------------------------------------------


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    one, other = (load(tiny_file(tmp_path), CONFIG) for _ in range(2))
    adapter = one.make_adapter(random_changes(one, 1))
    with pytest.raises(EngineFailedError, match="an adapter is of another model"):
        scored(other, (0, PROMPT, [AdapterUse(adapter)]))


@pytest.mark.parametrize("part", ["a", "b"])
def test_a_change_of_another_shape_is_refused(part: str, tmp_path: Path) -> None:
    executor = load(tiny_file(tmp_path), CONFIG)
    name, change = next(iter(random_changes(executor, 1).items()))
    smaller = change.a[:, 1:] if part == "a" else change.b[1:]
    with pytest.raises(ValueError, match="does not fit"):
        executor.make_adapter({name: replace(change, **{part: smaller})})


@pytest.mark.parametrize("kind", ["gains", "whole"])
def test_a_change_of_another_kind_is_refused(kind: str, tmp_path: Path) -> None:
    executor = load(tiny_file(tmp_path), CONFIG)
    name, change = next(iter(random_changes(executor, 1, gains=kind == "gains").items()))
    other = change if kind == "gains" else Whole(change.b @ change.a, change.type)
    with pytest.raises(UnsupportedModelError, match=rf"{name}\. Load the model with --device cpu"):
        executor.make_adapter({name: other})


def test_a_device_without_memory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = load(tiny_file(tmp_path), CONFIG)
    changes = random_changes(executor, 1)

    def fail(*args: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: not enough memory")

    monkeypatch.setattr(torch_adapters, "_matrix", fail)
    with pytest.raises(OutOfMemoryError, match="device cpu has no memory left for the adapter"):
        executor.make_adapter(changes)


def test_a_device_that_favours_a_column_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = load(tiny_file(tmp_path), CONFIG)
    changes = random_changes(executor, 1)

    def fail(*args: object) -> None:
        raise ConfigError("differently by column")

    monkeypatch.setattr(torch_adapters, "check_columns", fail)
    with pytest.raises(ConfigError, match="by column"):
        executor.make_adapter(changes)
