"""Adapters of random changes, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.config import EngineConfig
from heddle.executors.cpu.load import load
from heddle.executors.cpu.weights import TableWeight
from heddle.extensions.lora.reading import read_adapter
from heddle.extensions.reference.ops import (
    ReferenceAdapter,
    ReferenceLoader,
    ReferenceOps,
    SequenceCache,
    SequenceChunk,
)
from heddle.models.build import build
from heddle.step import AdapterUse, Chunk, StepPlan
from heddle.weights.formats import open_checkpoint
from heddle.weights.low_rank import LowRank
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Protocol

    class Adaptable(Protocol):
        """An executor that names the matrices that adapters may change."""

        def adaptable(self) -> Mapping[str, Any]: ...


def random_changes(
    executor: Adaptable,
    seed: int,
    rank: int = 4,
    kind: TensorType = TensorType.F32,
    *,
    gains: bool = False,
) -> dict[str, LowRank]:
    """Changes of all products, large enough to be seen in the logits. Experts get no gains."""
    stream = np.random.RandomState(seed)

    def matrix(rows: int, columns: int) -> Any:
        return (stream.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    found = {}
    for name, one in executor.adaptable().items():
        if isinstance(one, TableWeight):
            continue
        change = LowRank(matrix(rank, one.in_features), matrix(one.out_features, rank), 0.5, kind)
        if gains and ".experts." not in name:
            change = replace(change, gains=matrix(one.out_features, 4)[:, 0])
        found[name] = change
    return found


def logits_of(model: Path, adapter: Path | None, tokens: list[int]) -> tuple[Any, Any]:
    """Logits with an adapter: of all tokens in float32, and the last ones of the native core."""
    with open_checkpoint(model) as checkpoint:
        changes = {} if adapter is None else read_adapter(adapter, checkpoint).changes
        chunk = SequenceChunk(SequenceCache("f32"), 0, tokens)
        ops = ReferenceOps([chunk], [AdapterUse(ReferenceAdapter(changes))])
        built: Any = build(checkpoint)
        weights = built.load(ReferenceLoader(checkpoint))
        exact = built.logits(ops, weights, built.forward(ops, weights, ops.batch()))
        executor = load(checkpoint, EngineConfig(slots=1, threads=2, kv_cache=1 << 22))
        uses = [AdapterUse(executor.make_adapter(changes))] if changes else []
        step = Chunk(0, 0, tokens, [0], sample=True, adapters=uses)
        native = executor.logits(StepPlan((), (step,), clears=(0,)))[0]
        executor.close()
    return exact, native
