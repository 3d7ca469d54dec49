"""The torch executor: all families against `transformers`, exactness, refusals, failures."""

# Outcomes are unions; each test knows which member its plan gives.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_files import GREEDY, SMALL, one_token_plan, poisoned_file, tiny_file

from gguf_writer import write_gguf
from heddle.errors import (
    ConfigError,
    EngineFailedError,
    NonFiniteLogitsError,
    UnsupportedModelError,
)
from heddle.executors.devices import loader
from heddle.extensions.reference.model import ReferenceModel
from heddle.step import Binding, Chunk, Scoring, StepPlan, WindowPages
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import TensorType
from models.tiny import MODELS, gpt_oss, llama4
from models.tiny.base import TOKENS
from models.tiny.gemma3 import TinyGemma3
from models.tiny.llama import PLAIN
from models.window_pages import windows_of
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from heddle.executor import Executor
    from heddle.outputs import PromptLogprob
    from heddle.weights.checkpoint import Checkpoint
    from models.tiny.base import TinyModel

torch = pytest.importorskip("torch")
from heddle.extensions.torch import ops as torch_ops  # noqa: E402
from heddle.extensions.torch.layout import SPLIT  # noqa: E402

CONFIG = replace(SMALL, device="torch", kv_cache=4 << 20, speculation="off")
load = loader("torch")


def scores(
    executor: Executor, tokens: Sequence[int], cuts: Sequence[int], company: Sequence[int] = ()
) -> list[PromptLogprob]:
    """Log probabilities of the whole vocabulary after each token but the last, in one page."""
    found: list[PromptLogprob] = []
    for first, last in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        targets = tokens[first + 1 : last + 1]
        score = Scoring(0, targets, executor.shape.vocabulary)
        windows = [WindowPages(0, [0]) for _ in executor.memory.windows]
        chunks = [Chunk(0, first, tokens[first:last], [0], False, score, windows=windows)]
        if company:
            other = [WindowPages(0, [1]) for _ in windows]
            chunks.insert(0, Chunk(1, 0, company, [1], False, windows=other))
        clears = () if first or not executor.memory.fixed else (0, 1)
        (scored,) = execute(executor, StepPlan((), tuple(chunks), clears=clears)).scored
        found += scored.scores
    return found


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_family_agrees_with_the_reference_in_any_chunks_and_company(
    model: TinyModel, tmp_path: Path
) -> None:
    """Both keep keys and values in f16; a few of them round the other way."""
    check_against_the_reference(GGUFCheckpoint.open(model.write(tmp_path / "tiny.gguf")))


def test_runs_of_positions_agree_with_the_reference(tmp_path: Path) -> None:
    (model,) = llama4.FOLDERS
    check_against_the_reference(HuggingFaceCheckpoint.open(model.write_folder(tmp_path)))


def check_against_the_reference(checkpoint: Checkpoint) -> None:
    executor = load(checkpoint, replace(CONFIG, batch_tokens=64))
    found = scores(executor, TOKENS, [])
    expected = ReferenceModel(checkpoint).logits(TOKENS, "f16")[: len(found)].astype(np.float64)
    expected -= np.log(np.exp(expected).sum(-1, keepdims=True))
    for row, one in zip(expected, found, strict=True):
        ids, logprobs = zip(*one.top, strict=True)
        np.testing.assert_allclose(logprobs, row[list(ids)], atol=2e-3)
    assert scores(executor, TOKENS, [1, 6, 7]) == found
    assert scores(executor, TOKENS, [5], [9, 8, 7]) == found


LONG = [(7 * i * i + 3 * i) % 31 + 1 for i in range(SPLIT + 70)]


@pytest.mark.parametrize(
    "model",
    [PLAIN, TinyGemma3("windowed", 4, 2, 16, True, window=40), gpt_oss.MODELS[0]],
    ids=str,
)
def test_a_text_of_two_splits_has_the_same_bits_in_any_chunks(
    model: TinyModel, tmp_path: Path
) -> None:
    """Without a window, with one, and with sinks."""
    model = replace(model, context=512)
    executor = load(model.checkpoint(tmp_path), replace(CONFIG, batch_tokens=512))

    def last(cuts: Sequence[int]) -> object:
        bindings: tuple[Binding, ...] = (Binding(0, replace(GREEDY, logprobs=5), LONG, []),)
        for first, end in pairwise([0, *cuts, len(LONG)]):
            windows = windows_of(executor.memory, first, end)
            pages = list(range(-(-end // 32)))
            chunk = Chunk(0, first, LONG[first:end], pages, end == len(LONG), windows=windows)
            result, bindings = execute(executor, StepPlan(bindings, (chunk,))), ()
        return result.sampled[0]

    assert last([17, SPLIT, SPLIT + 1]) == last([]) == last([SPLIT - 1])


# --- refusals ------------------------------------------------------------------------------------


def test_a_tensor_type_without_a_decoder_is_refused_by_name(tmp_path):
    kind = TensorType.Q8_1
    model = replace(PLAIN, width=kind.block_elements)
    tensors = {tensor.name: tensor for tensor in model.tensors()}
    name = "blk.0.attn_q.weight"
    rows, columns = tensors[name].shape
    data = bytes(rows * columns // kind.block_elements * kind.block_bytes)
    tensors[name] = replace(tensors[name], data=data, type=kind)
    path = write_gguf(tmp_path / "a.gguf", model.metadata(), [*tensors.values()])
    with pytest.raises(UnsupportedModelError, match=f"{name} of type {kind.name}"):
        load(GGUFCheckpoint.open(path), CONFIG)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there_is_refused_before_a_model_is_sought(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"device '{device}' needs a GPU") as error:
        loader(device)
    assert error.value.param == "device"


# --- failures ------------------------------------------------------------------------------------


class OtherError(Exception):
    """Stands for Triton's errors, which are no RuntimeErrors."""


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (torch.OutOfMemoryError, "CUDA out of memory", "no memory left for the step"),
        (RuntimeError, "DefaultCPUAllocator: not enough memory", "no memory left for the step"),
        (RuntimeError, "an unspecified launch failure", "the device failed: an unspecified launch"),
        (
            OtherError,
            "out of resource: shared memory",
            "the device failed: out of resource",
        ),
    ],
)
def test_a_failure_of_the_device_fails_the_step_and_not_the_next(
    kind, text, problem, tmp_path, monkeypatch
):
    executor = load(tiny_file(tmp_path), CONFIG)
    monkeypatch.setitem(sys.modules, "triton.errors", SimpleNamespace(TritonError=OtherError))

    def fail(*args: object) -> None:
        raise kind(text)

    with monkeypatch.context() as patch:
        patch.setattr(torch_ops, "multiply", fail)
        with pytest.raises(EngineFailedError, match=problem):
            execute(executor, one_token_plan())
    assert execute(executor, one_token_plan()).sampled[0].token >= 0


def test_what_an_earlier_sequence_left_in_a_page_changes_nothing(tmp_path):
    """NaN and infinities of a poisoned sequence lie behind the positions of a new one."""
    executor = load(tiny_file(tmp_path), CONFIG)
    expected = execute(executor, one_token_plan())
    half = np.resize(np.array([np.nan, np.inf], np.float16), executor.memory.page_bytes // 2)
    executor.write_page(0, memoryview(half.tobytes()))
    assert execute(executor, one_token_plan()) == expected


def test_a_poisoned_token_fails_its_own_sequence_only(tmp_path):
    executor = load(poisoned_file(tmp_path, 5), replace(CONFIG, allow_nonfinite=True))
    bindings = tuple(Binding(slot, GREEDY, [3], []) for slot in range(2))
    fine, bad = Chunk(0, 0, [3, 1, 4], [0], True), Chunk(1, 0, [3, 5, 4], [1], True)
    (alone,) = execute(executor, StepPlan(bindings, (fine,))).sampled
    failed, beside = execute(executor, StepPlan(bindings, (bad, fine))).sampled
    assert beside == alone
    assert isinstance(failed.error, NonFiniteLogitsError)
