"""Adapters (LoRA) on every family: they compute what a model with merged matrices computes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from window_pages import windows_of

from adapters import random_changes
from heddle.config import EngineConfig
from heddle.executors.cpu.load import load
from heddle.extensions.reference.ops import (
    ReferenceLoader,
    ReferenceOps,
    SequenceCache,
    SequenceChunk,
)
from heddle.models.build import build
from heddle.step import AdapterUse, Chunk, StepPlan
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.low_rank import LowRank
from heddle.weights.tensor_types import TensorType
from models.tiny import FAMILIES
from models.tiny.base import TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from models.tiny.base import TinyModel


class MergedOps(ReferenceOps):
    """Products with merged matrices, and look-ups in a merged table."""

    changes: Mapping[str, LowRank]

    def embed(self, table: Any, indices: Any, first: int = 0) -> Any:
        if table.name == "embedding" and table.name in self.changes:
            one = self.changes[table.name]
            table = replace(table, values=table.values + one.scale * (one.b @ one.a).T)
        return super().embed(table, indices, first)

    def linear(self, x: Any, w: Any) -> Any:
        if w.name in self.changes:
            one = self.changes[w.name]
            values = w.values + one.scale * one.b @ one.a
            if one.gains is not None:
                values += one.gains[:, None] * w.values
            w = replace(w, values=values)
        return super().linear(x, w)


def merged_logits(checkpoint: Any, changes: Mapping[str, LowRank], tokens: list[int]) -> Any:
    """Logits (tokens, vocabulary) of the model whose matrices are changed."""
    ops = MergedOps([SequenceChunk(SequenceCache("f16"), 0, tokens)])
    ops.changes = changes
    model = build(checkpoint)
    weights = model.load(ReferenceLoader(checkpoint))
    return model.logits(ops, weights, model.forward(ops, weights, ops.batch()))


@pytest.mark.parametrize("model", [models[0] for models in FAMILIES.values()], ids=str)
def test_an_adapter_computes_what_merged_matrices_compute(model: TinyModel, tmp_path: Path) -> None:
    checkpoint = GGUFCheckpoint.open(model.write(tmp_path / "tiny.gguf"))
    executor = load(checkpoint, EngineConfig(slots=1, threads=2, kv_cache=1 << 22))
    changes = random_changes(executor, 1, gains=True)
    if "embedding" in executor.adaptable():
        random = np.random.default_rng(2)
        a, b = (random.standard_normal((2, n), np.float32) for n in (model.vocabulary, model.width))
        changes["embedding"] = LowRank(a, b.T.copy(), 0.1, TensorType.F32)
    adapter = executor.make_adapter(changes)

    def logits(*adapters: AdapterUse) -> Any:
        windows = windows_of(executor.memory, 0, len(TOKENS))
        chunk = Chunk(0, 0, TOKENS, [0], sample=True, windows=windows, adapters=adapters)
        return executor.logits(StepPlan((), (chunk,), clears=(0,)))[0]

    found, expected = logits(AdapterUse(adapter)), merged_logits(checkpoint, changes, TOKENS)[-1]
    np.testing.assert_allclose(found, expected, atol=2e-2)
    assert np.abs(found - logits()).max() > 0.1
    executor.close()
