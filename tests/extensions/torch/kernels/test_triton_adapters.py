"""Adapters with Triton kernels: near those of torch, exact, and beside recorded steps."""

# Outcomes are unions; each test knows which member its plan gives.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from test_triton_executor import CONFIG, Apart
from test_triton_graphs import Pair, kernels, new_capture  # noqa: F401
from triton_device import DEVICE

from adapters import random_changes
from heddle.executors.devices import loader
from heddle.sampling_params import SamplingParams
from heddle.step import AdapterUse, Binding, Chunk, Scoring, StepPlan
from heddle.weights.tensor_types import TensorType
from models.tiny import llama
from models.tiny.base import TOKENS
from steps import execute

from heddle.extensions.torch import program  # isort: skip
from heddle.extensions.torch.ops import TorchOps  # isort: skip
from heddle.extensions.torch.triton_ops import TritonOps  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MODEL = llama.MODELS[0]


def scored(executor: Any, *rows: tuple[list[int], Sequence[AdapterUse]]) -> list[Any]:
    chunks = [
        Chunk(slot, 0, tokens, [slot], False, Scoring(0, tokens[1:], 50), adapters=uses)
        for slot, (tokens, uses) in enumerate(rows)
    ]
    return [one.scores for one in execute(executor, StepPlan((), tuple(chunks))).scored]


@pytest.mark.parametrize("quantize", ["none", "q8_0"])
def test_changes_are_near_those_of_torch_and_exact(
    quantize: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where operations are joined, whose products have changes of their own."""
    checkpoint = MODEL.checkpoint(tmp_path)
    found = {}
    for ops in (TorchOps, Apart, TritonOps):
        monkeypatch.setattr(program, "operations", lambda device, ops=ops: ops)
        executor: Any = loader(CONFIG.device)(checkpoint, replace(CONFIG, quantize=quantize))
        one, other = (
            executor.make_adapter(random_changes(executor, seed, 3 * seed, kind))
            for seed, kind in ((1, TensorType.F32), (2, TensorType.F16))
        )
        uses = [AdapterUse(one), AdapterUse(other, 0.5)]
        found[ops] = scored(executor, (TOKENS, uses))
    for expected, own in zip(found[TorchOps][0], found[TritonOps][0], strict=True):
        logprobs = dict(expected.top)
        for token, logprob in own.top:
            np.testing.assert_allclose(logprob, logprobs[token], atol=2e-2)
    assert found[Apart] == found[TritonOps]
    plain = scored(executor, (TOKENS, ()))
    assert plain[0] != found[TritonOps][0]
    beside = scored(executor, (TOKENS[3:], uses[1:]), (TOKENS, uses))
    assert beside[1:] == found[TritonOps]
    assert scored(executor, (TOKENS, ()), (TOKENS, uses)) == plain + found[TritonOps]


@pytest.mark.usefixtures("kernels")
def test_steps_with_adapters_have_no_graph(tmp_path: Path) -> None:
    """And change none of those that have one."""
    capture = new_capture()
    pair = Pair.of(MODEL, tmp_path, capture)
    changes = random_changes(pair.eager, 1)
    uses = [[AdapterUse(one.make_adapter(changes))] for one in (pair.eager, pair.graphed)]
    chunk = pair.chunk(1, 14, 5)
    pair.check(chunk)
    binding = Binding(2, SamplingParams(temperature=0, seed=0, logprobs=5), [1], [])
    own, other = (
        execute(one, StepPlan((binding,), (pair.chunk(2, 3, 7, 8, adapters=own),))).sampled
        for one, own in zip((pair.eager, pair.graphed), uses, strict=True)
    )
    assert own == other
    pair.check(pair.chunk(1, 15, 6))
    if DEVICE.type == "cpu":
        assert capture.replays == 2
