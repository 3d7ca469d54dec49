"""Checkpoints of one tiny model with changes, and a plan of one token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gguf_writer import write_gguf
from heddle.config import EngineConfig
from heddle.sampling_params import SamplingParams
from heddle.state import PAGE_TOKENS
from heddle.step import Binding, Chunk, StepPlan
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from models.tiny.llama import PLAIN

if TYPE_CHECKING:
    from pathlib import Path

GREEDY = SamplingParams(temperature=0, seed=0)
SMALL = EngineConfig(slots=2, threads=1, kv_cache=1 << 20)

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7]
PROMPT += [5, 0, 2, 8, 8, 4]
"""More than a page."""


def tiny_file(path: Path, metadata=None, tensors=None) -> GGUFCheckpoint:
    """Add `metadata` to the model's; replace its tensors by name, or drop one with None."""
    changed = PLAIN.metadata() | (metadata or {})
    kept = [tensors.get(t.name, t) if tensors else t for t in PLAIN.tensors()]
    return GGUFCheckpoint.open(write_gguf(path / "tiny.gguf", changed, [t for t in kept if t]))


def poisoned_file(path: Path, token: int) -> GGUFCheckpoint:
    """The model with NaN in the embedding of a token. Only sequences with this token see it."""
    table = next(one for one in PLAIN.tensors() if one.name == "token_embd.weight")
    rows = np.frombuffer(table.data, np.float32).reshape(PLAIN.vocabulary, PLAIN.width).copy()
    rows[token] = np.nan
    tensors = [one for one in PLAIN.tensors() if one.name != table.name]
    tensors += [replace(table, data=rows.tobytes()), replace(table, name="output.weight")]
    return GGUFCheckpoint.open(write_gguf(path / "poisoned.gguf", PLAIN.metadata(), tensors))


def one_token_plan(token: int = 1, page: int = 0) -> StepPlan:
    return StepPlan((Binding(0, GREEDY, [token], []),), (Chunk(0, 0, [token], [page], True),))


def page_table(first: int, tokens: int) -> list[int]:
    return list(range(first, first + -(-tokens // PAGE_TOKENS)))
