"""A model's own head that predicts one more token, from files of either format."""

# Outcomes are unions; each test knows which member its plan gives.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from devices import EXECUTORS, load_on
from gguf_writer import Tensor, write_gguf
from heddle.config import EngineConfig
from heddle.errors import EngineFailedError
from heddle.extensions.reference.model import ReferenceModel
from heddle.sampling_params import SamplingParams
from heddle.step import Binding, Chunk, StepPlan
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny import deepseek_v3, qwen3_5, qwen3_5_moe, qwen3_next
from models.tiny.base import TOKENS
from models.tiny.glm4_moe import MODELS
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from heddle.executor import Executor
    from heddle.weights.checkpoint import Checkpoint
    from models.tiny.base_heads import TinyHead

SHARED = next(model for model in MODELS if model.mtp)
OWN = replace(SHARED, name="own matrices", own_matrices=True)
LATENT = replace(deepseek_v3.MODELS[0], name="latents", mtp=True)
RECURRENT = replace(qwen3_5.MODELS[0], name="dense", mtp=True)
EXPERTS = replace(qwen3_next.MODELS[0], name="experts", mtp=True)
PAIRS = replace(qwen3_5_moe.MODELS[0], name="experts", mtp=True)
ALL = [SHARED, OWN, LATENT, RECURRENT, EXPERTS, PAIRS]
CONFIG = EngineConfig(slots=2, threads=1, kv_cache=1 << 20)
GREEDY = SamplingParams(temperature=0, seed=1, logprobs=20)
STATES = np.random.RandomState(3).normal(0, 2, (len(TOKENS), SHARED.width)).astype(np.float32)


def opened(model: TinyHead, form: str, folder: Path) -> Checkpoint:
    if form == "gguf":
        return GGUFCheckpoint.open(model.write(folder / "tiny.gguf"))
    return HuggingFaceCheckpoint.open(model.write_folder(folder / "tiny"))


def load(device: str, checkpoint: Checkpoint, config: EngineConfig = CONFIG) -> Executor:
    return load_on(device, checkpoint, config)


def formula(model: TinyHead, folder: Path) -> np.ndarray:
    """Log probabilities of a head that reads TOKENS and STATES, by its definition.

    Its layer is computed as the only layer of a model whose embedding is the layer's input.
    """
    state, own = model.state(), f"model.layers.{model.layers}."
    part = {name.removeprefix(own): v for name, v in state.items() if name.startswith(own)}
    embedding = part.get("embed_tokens.weight", state["model.embed_tokens.weight"])
    tied = state["model.embed_tokens.weight"]
    output = part.get("shared_head.head.weight", state.get("lm_head.weight", tied))
    eps = float(model.config()["rms_norm_eps"])
    parts = {"enorm.weight": embedding[TOKENS], "hnorm.weight": STATES}
    both = np.concatenate(
        [normed(x, eps) * (part[norm] + 1 - model.norm_mean) for norm, x in parts.items()], axis=1
    )
    inputs = (both @ part["eh_proj.weight"].T).astype(np.float32)
    alone = replace(model, layers=1, mtp=False, vocabulary=len(TOKENS), **only_layer(model))
    before = f"blk.{model.layers}."
    of_layer = [
        replace(tensor, name=tensor.name.replace(before, "blk.0."))
        for tensor in model.tensors()
        if tensor.name.startswith(before) and "nextn" not in tensor.name
    ]
    logits = []
    for first in range(0, len(output), len(TOKENS)):
        rows = np.zeros_like(output[: len(TOKENS)])
        rows[: len(output) - first] = output[first : first + len(TOKENS)]
        around = {
            "token_embd.weight": inputs,
            "output_norm.weight": part["shared_head.norm.weight"] + 1 - model.norm_mean,
            "output.weight": rows,
        }
        tensors = [Tensor.of(name, values) for name, values in around.items()] + of_layer
        path = write_gguf(folder / "layer.gguf", alone.metadata(), tensors)
        with GGUFCheckpoint.open(path) as checkpoint:
            logits.append(ReferenceModel(checkpoint).logits(list(range(len(TOKENS))), "f16"))
    found = np.concatenate(logits, axis=1)[:, : len(output)]
    return found - np.log(np.exp(found).sum(axis=1, keepdims=True))


def only_layer(model: TinyHead) -> dict[str, int]:
    """The settings that make the only layer of a model like the head's."""
    return {"period": 1} if hasattr(model, "period") else {"dense": 0}


def normed(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps)


def head_logprobs(head: Executor, ends: Iterable[int]) -> np.ndarray:
    """The 20 highest log probabilities after each chunk, (len(ends), vocabulary); else NaN."""
    bindings: tuple[Binding, ...] = (Binding(0, GREEDY, [], []),)
    rows, start = [], 0
    for end in ends:
        chunk = Chunk(0, start, TOKENS[start:end], [0], True, states=STATES[start:end])
        (outcome,) = execute(head, StepPlan(bindings, (chunk,))).sampled
        row = np.full(head.shape.vocabulary, np.nan)
        for token, logprob in outcome.top:
            row[token] = logprob
        rows.append(row)
        start, bindings = end, ()
    return np.array(rows)


@pytest.mark.parametrize("device", EXECUTORS)
@pytest.mark.parametrize("form", ["gguf", "hf"])
@pytest.mark.parametrize("model", ALL, ids=str)
def test_a_head_computes_its_formula(
    model: TinyHead, form: str, device: str, tmp_path: Path
) -> None:
    with opened(model, form, tmp_path) as checkpoint:
        executor = load(device, checkpoint)
    assert executor.head is not None
    found = head_logprobs(executor.head, range(1, len(TOKENS) + 1))
    expected, likely = formula(model, tmp_path), ~np.isnan(found)
    assert likely.sum() == 20 * len(TOKENS)
    np.testing.assert_allclose(found[likely], expected[likely], atol=5e-3)
    executor.close()


@pytest.mark.parametrize("device", EXECUTORS)
def test_pairs_in_one_chunk_give_the_bits_of_single_ones(device: str, tmp_path: Path) -> None:
    executor = load(device, SHARED.checkpoint(tmp_path))
    assert executor.head is not None
    one_by_one = head_logprobs(executor.head, range(1, len(TOKENS) + 1))
    in_chunks = head_logprobs(executor.head, [5, 6, len(TOKENS)])
    np.testing.assert_array_equal(in_chunks, one_by_one[[4, 5, -1]])
    executor.close()


@pytest.mark.parametrize("device", EXECUTORS)
def test_a_step_keeps_the_states_after_the_last_norm(device: str, tmp_path: Path) -> None:
    """Their products with the output matrix are the logits, beside another sequence too."""
    executor = load(device, SHARED.checkpoint(tmp_path))
    first, last = Chunk(0, 0, TOKENS[:5], [0], False, keep_states=2), len(TOKENS)
    bindings = tuple(Binding(slot, GREEDY, TOKENS, []) for slot in (0, 1))
    (kept,) = execute(executor, StepPlan(bindings, (first,))).states
    other = Chunk(1, 0, TOKENS, [1], True)
    rest = Chunk(0, 5, TOKENS[5:], [0], True, keep_states=last - 5)
    result = execute(executor, StepPlan((), (other, rest)))
    states = np.concatenate([kept, *result.states])
    logits = states @ SHARED.state()["lm_head.weight"].T
    np.testing.assert_allclose(logits, SHARED.expected_logits()[3:], atol=1e-2)
    assert len(result.sampled) == 2
    executor.close()


@pytest.mark.parametrize("device", EXECUTORS)
def test_a_head_refuses_tokens_without_states(device: str, tmp_path: Path) -> None:
    executor = load(device, SHARED.checkpoint(tmp_path))
    assert executor.head is not None
    plan = StepPlan((Binding(0, GREEDY, [1], []),), (Chunk(0, 0, [1, 2], [0], True),))
    for states in (None, STATES[:1]):
        chunk = replace(plan.chunks[0], states=states)
        with pytest.raises(EngineFailedError, match="a state for each token"):
            executor.head.submit(replace(plan, chunks=(chunk,)))
    executor.close()


@pytest.mark.parametrize("device", EXECUTORS)
def test_model_and_head_share_one_budget(device: str, tmp_path: Path) -> None:
    checkpoint = replace(SHARED, context=512).checkpoint(tmp_path)
    config = replace(CONFIG, kv_cache=16 * 3 * 6144)
    both, alone = (
        load(device, checkpoint, config),
        load(device, checkpoint, replace(config, speculation="off")),
    )
    assert alone.head is None
    assert both.head is not None
    assert both.memory.pages == both.head.memory.pages == alone.memory.pages * 3 // 4
    assert both.memory.page_bytes == alone.memory.page_bytes == 3 * both.head.memory.page_bytes
    assert both.memory.bytes + both.head.memory.bytes <= config.kv_cache
    assert both.page_format == alone.page_format, "the disk tier keeps its pages"
    both.close()
    alone.close()


@pytest.mark.parametrize("device", EXECUTORS)
@pytest.mark.parametrize(
    ("lacking", "warns"), [("blk.3.", False), ("blk.3.ffn_up_exps.weight", True)]
)
def test_a_file_that_lacks_a_part_of_the_head_is_served_without_it(
    lacking: str, warns: bool, device: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = [tensor for tensor in SHARED.tensors() if lacking not in tensor.name]
    path = write_gguf(tmp_path / "tiny.gguf", SHARED.metadata(), tensors)
    with GGUFCheckpoint.open(path) as checkpoint:
        executor = load(device, checkpoint)
    assert executor.head is None
    assert ("the files lack tensor blk.3.ffn_up_exps.weight" in caplog.text) == warns
    executor.close()
