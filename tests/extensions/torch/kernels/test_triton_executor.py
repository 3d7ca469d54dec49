"""The executor with Triton kernels: near the one of torch, and exact in any chunks and company."""

# Outcomes are unions; each test knows which member its plan gives.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from triton_device import DEVICE, torch

from heddle.config import EngineConfig
from heddle.executors.devices import loader
from heddle.step import Chunk, Scoring, StepPlan, WindowPages
from models.tiny import gemma3, llama, qwen3_5, qwen3_moe
from models.tiny.base import TOKENS
from steps import execute

from heddle.extensions.torch import program  # isort: skip
from heddle.extensions.torch.kernels import matmul  # isort: skip
from heddle.extensions.torch.ops import TorchOps  # isort: skip
from heddle.extensions.torch.triton_ops import TritonOps  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from heddle.executor import Executor
    from models.tiny.base import TinyModel

CONFIG = EngineConfig(
    slots=2,
    threads=1,
    kv_cache=4 << 20,
    batch_tokens=64,
    speculation="off",
    device="cuda" if DEVICE.type == "cuda" else "torch",
)
MODELS = [llama.MODELS[0], qwen3_moe.MODELS[0], qwen3_5.MODELS[0], gemma3.MODELS[1]]


def scores(
    executor: Executor, tokens: Sequence[int], cuts: Sequence[int], company: Sequence[int] = ()
) -> list[list[tuple[int, float]]]:
    """Log probabilities of the whole vocabulary after each token but the last, in one page."""
    found: list[list[tuple[int, float]]] = []
    for first, last in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        score = Scoring(0, tokens[first + 1 : last + 1], executor.shape.vocabulary)
        windows = [WindowPages(0, [0]) for _ in executor.memory.windows]
        chunks = [Chunk(0, first, tokens[first:last], [0], False, score, windows=windows)]
        if company:
            other = [WindowPages(0, [1]) for _ in windows]
            chunks.insert(0, Chunk(1, 0, company, [1], False, windows=other))
        clears = () if first or not executor.memory.fixed else (0, 1)
        (scored,) = execute(executor, StepPlan((), tuple(chunks), clears=clears)).scored
        found += [one.top for one in scored.scores]
    return found


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_family_agrees_with_torch_and_is_exact(
    model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = model.checkpoint(tmp_path)
    found = {}
    for ops in (TorchOps, TritonOps):
        monkeypatch.setattr(program, "operations", lambda device, ops=ops: ops)
        executor = loader(CONFIG.device)(checkpoint, replace(CONFIG))
        found[ops] = scores(executor, TOKENS, [])
    for one, other in zip(found[TorchOps], found[TritonOps], strict=True):
        expected = dict(one)
        for token, logprob in other:
            np.testing.assert_allclose(logprob, expected[token], atol=5e-3)
    assert scores(executor, TOKENS, [5], [9, 8, 7]) == found[TritonOps]
    assert scores(executor, TOKENS, [1, 6, 7]) == found[TritonOps]


def test_programs_of_several_tiles_change_no_bits_of_experts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, in company that chooses the same experts in several tiles, and in chunks.

    Slots without a token may have any numbers.
    """
    monkeypatch.setattr(program, "operations", lambda device: TritonOps)
    executor = loader(CONFIG.device)(qwen3_moe.MODELS[0].checkpoint(tmp_path), replace(CONFIG))
    alone = scores(executor, TOKENS, [])
    monkeypatch.setattr(matmul, "_PROGRAMS", 1)
    empty = torch.empty

    def filled(*sizes: Any, **more: Any) -> Any:
        made = empty(*sizes, **more)
        return made.fill_(inf if made.is_floating_point() else 10**6)

    monkeypatch.setattr(torch, "empty", filled)
    assert scores(executor, TOKENS, [5], [9] * 32) == alone


class Apart(TritonOps):
    """The kernels without those that join operations."""

    joins = False


@pytest.mark.parametrize("model", [llama.MODELS[0], gemma3.MODELS[1]], ids=str)
def test_joined_operations_change_no_bits(
    model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = model.checkpoint(tmp_path)
    found = []
    for ops in (Apart, TritonOps):
        monkeypatch.setattr(program, "operations", lambda device, ops=ops: ops)
        executor = loader(CONFIG.device)(checkpoint, replace(CONFIG))
        found.append(scores(executor, TOKENS, [5]))
    assert found[0] == found[1]
