"""Models with experts: what they count, and files whose experts are wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from test_logits import last_logits

from folder_writer import write_safetensors
from gguf_writer import Tensor, write_gguf
from heddle.config import EngineConfig
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.executors.cpu.load import load
from heddle.extensions.reference.model import ReferenceModel
from heddle.models.build import build
from heddle.models.experts import MixtureOfExperts
from heddle.models.feed_forward import GatedMLP
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import TensorType
from models.tiny.base import TOKENS
from models.tiny.glm4_moe import MODELS as GLM
from models.tiny.mixtral import MODELS as MIXTRAL
from models.tiny.qwen3_moe import MODELS as QWEN3

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL = QWEN3[0]
EXPERT = "model.layers.1.mlp.experts.4.up_proj.weight"


def test_a_step_counts_the_experts_that_it_uses(tmp_path: Path) -> None:
    executor = load(MODEL.checkpoint(tmp_path), EngineConfig(slots=1, threads=1))
    work, one = executor.work, 3 * MODEL.expert_width * MODEL.width
    assert [(layer.count, layer.used) for layer in work.expert_layers] == [(7, 3)] * MODEL.layers
    # Panels of 8 or 16 rows are full: 20 rows take 24 or 32.
    assert all(layer.bytes >= 7 * one * 4 for layer in work.expert_layers)
    experts = sum(layer.bytes for layer in work.expert_layers)
    assert work.weight_bytes - work.read_bytes(1) == pytest.approx(experts * 4 / 7, abs=2)
    attention = 2 * MODEL.width * (MODEL.q_width + MODEL.kv_width)
    per_layer = attention + MODEL.experts * MODEL.width + MODEL.used * one
    assert work.token_multiply_adds == MODEL.layers * per_layer
    executor.close()


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({}, []),
        ({"decoder_sparse_step": 2}, [0]),
        ({"mlp_only_layers": [1]}, [1]),
        ({"num_experts": 0}, [0, 1]),
    ],
)
def test_config_json_says_which_layers_are_dense(
    changes: dict[str, object], dense: list[int], tmp_path: Path
) -> None:
    with HuggingFaceCheckpoint.open(MODEL.write_folder(tmp_path, **changes)) as checkpoint:
        parts = [layer.mlp for layer in build(checkpoint).layers]
    kinds = [GatedMLP if layer in dense else MixtureOfExperts for layer in range(MODEL.layers)]
    assert list(map(type, parts)) == kinds


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    model = next(model for model in GLM if model.mtp)
    assert build(model.checkpoint(tmp_path)).shape.layers == model.layers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qwen3moe.expert_used_count": 8}, r"expert_used_count is 8, but a layer has 7 experts"),
        ({"qwen3moe.expert_used_count": None}, r"expert_used_count must be a positive whole"),
        ({"qwen3moe.expert_count": -1}, r"expert_count must be a whole number, zero or more"),
        ({"qwen3moe.expert_group_count": 2}, r"expert_group_count is 2, which does not divide"),
        (
            {"qwen3moe.expert_group_count": 7, "qwen3moe.expert_group_used_count": 2},
            r"expert_group_used_count is 2: of 7 groups with 1 experts each, a token must get 3",
        ),
    ],
)
def test_sizes_that_contradict_one_another_are_named(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=message):
        build(MODEL.checkpoint(tmp_path, changes))


def test_an_unknown_scoring_is_refused(tmp_path: Path) -> None:
    checkpoint = MODEL.checkpoint(tmp_path, {"qwen3moe.expert_gating_func": 9})
    with pytest.raises(UnsupportedModelError, match=r"expert_gating_func 9 is not supported"):
        build(checkpoint)


def missing(state: dict[str, np.ndarray]) -> None:
    del state[EXPERT]


def narrower(state: dict[str, np.ndarray]) -> None:
    state[EXPERT] = state[EXPERT][:-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (missing, r"tensor model\.layers\.1\.mlp\.experts\.4\.up_proj\.weight is missing"),
        (narrower, r"experts\.4\.up_proj\.weight is F32 of shape \(19, 32\); the first expert's"),
    ],
)
def test_an_expert_that_differs_or_is_missing_is_named(
    change: Callable[[dict[str, np.ndarray]], None], message: str, tmp_path: Path
) -> None:
    folder, state = MODEL.write_folder(tmp_path), MODEL.state()
    change(state)
    write_safetensors(folder / "model.safetensors", state)
    with pytest.raises(ModelFileError, match=message):
        HuggingFaceCheckpoint.open(folder)


def test_a_stack_with_too_few_experts_is_refused(tmp_path: Path) -> None:
    name = "blk.0.ffn_down_exps.weight"
    short = Tensor.of(name, np.zeros((6, MODEL.width, MODEL.expert_width), np.float32))

    class Short(type(MODEL)):  # type: ignore[misc]
        def tensors(self) -> list[Tensor]:
            return [short if one.name == name else one for one in super().tensors()]

    model = Short("short", heads=4, kv_heads=2, head_dim=16, tied=True)
    with pytest.raises(ModelFileError, match=r"ffn_down_exps\.weight has shape \(6, 32, 20\)"):
        load(model.checkpoint(tmp_path), EngineConfig(slots=1, threads=1))


def test_gate_and_up_may_be_one_tensor_of_a_gguf_file(tmp_path: Path) -> None:
    """`ffn_gate_up_exps` has gate and up of each expert, as llama.cpp's converter may write it."""
    tensors = {tensor.name: tensor for tensor in MODEL.tensors()}
    for layer in range(MODEL.layers):
        stacks = [tensors.pop(f"blk.{layer}.ffn_{part}_exps.weight") for part in ("gate", "up")]
        values = [np.frombuffer(one.data, np.float32).reshape(one.shape) for one in stacks]
        name = f"blk.{layer}.ffn_gate_up_exps.weight"
        tensors[name] = Tensor.of(name, np.concatenate(values, axis=1))
    path = write_gguf(tmp_path / "fused.gguf", MODEL.metadata(), tensors.values())
    checkpoint = GGUFCheckpoint.open(path)
    np.testing.assert_allclose(
        ReferenceModel(checkpoint).logits(TOKENS), MODEL.expected_logits(), atol=2e-5
    )
    executors = [
        load(one, EngineConfig(slots=1, threads=1, context=len(TOKENS)))
        for one in (checkpoint, MODEL.checkpoint(tmp_path))
    ]
    found = [last_logits(executor, TOKENS, [len(TOKENS)]) for executor in executors]
    np.testing.assert_array_equal(found[0], found[1])
    for executor in executors:
        executor.close()
    name = "blk.0.ffn_gate_up_exps.weight"
    tensors[name] = Tensor.of(name, np.ones((7, 3, 32), np.float32))
    path = write_gguf(tmp_path / "odd.gguf", MODEL.metadata(), tensors.values())
    with pytest.raises(ModelFileError, match=r"ffn_gate_up_exps\.weight has shape \(7, 3, 32\)"):
        GGUFCheckpoint.open(path)


OLD = MIXTRAL[0]


def single_experts() -> list[Tensor]:
    """The tensors of OLD as llama.cpp wrote them until April 2024: one for each expert."""
    tensors = []
    for one in OLD.tensors():
        if "_exps." not in one.name:
            tensors.append(one)
            continue
        values = np.frombuffer(one.data, np.float32).reshape(one.shape)
        before = one.name.removesuffix("_exps.weight")
        tensors += [Tensor.of(f"{before}.{i}.weight", value) for i, value in enumerate(values)]
    return tensors


def old_metadata() -> dict[str, object]:
    """The metadata of OLD without the width of experts, which was that of dense layers."""
    metadata = OLD.metadata()
    width = metadata.pop("llama.expert_feed_forward_length")
    return metadata | {"llama.feed_forward_length": width}


@pytest.mark.parametrize("parts", [1, 2])
def test_a_gguf_file_may_have_a_tensor_for_each_expert(parts: int, tmp_path: Path) -> None:
    """The order of the tensors is not that of the experts."""
    tensors = single_experts()[::-1]
    if parts == 1:
        path = write_gguf(tmp_path / "old.gguf", old_metadata(), tensors)
    else:
        split = {"split.count": 2, "split.tensors.count": len(tensors)}
        path = tmp_path / "old-00001-of-00002.gguf"
        first, second = {**old_metadata(), **split, "split.no": 0}, {**split, "split.no": 1}
        write_gguf(path, first, tensors[: len(tensors) // 2])
        write_gguf(tmp_path / "old-00002-of-00002.gguf", second, tensors[len(tensors) // 2 :])
    checkpoint = GGUFCheckpoint.open(path)
    stacked = OLD.checkpoint(tmp_path)
    assert set(checkpoint.tensors) == set(stacked.tensors)
    for name in checkpoint.tensors:
        np.testing.assert_array_equal(checkpoint.read(name), stacked.read(name))
    np.testing.assert_allclose(
        ReferenceModel(checkpoint).logits(TOKENS), OLD.expected_logits(), atol=2e-5
    )
    executors = [
        load(one, EngineConfig(slots=1, threads=1, context=len(TOKENS)))
        for one in (checkpoint, stacked)
    ]
    found = [last_logits(executor, TOKENS, [len(TOKENS)]) for executor in executors]
    np.testing.assert_array_equal(found[0], found[1])
    for executor in executors:
        executor.close()


def test_a_single_expert_that_differs_or_is_missing_is_named(tmp_path: Path) -> None:
    name = "blk.1.ffn_up.2.weight"
    tensors = [one for one in single_experts() if one.name != name]
    for others, message in (
        ([], r"blk\.1\.ffn_up\.2\.weight is missing"),
        ([Tensor.random(name, TensorType.Q8_0, (48, 32), 1)], "2.weight is Q8_0 of shape"),
    ):
        path = write_gguf(tmp_path / "old.gguf", old_metadata(), [*tensors, *others])
        with pytest.raises(ModelFileError, match=message):
            GGUFCheckpoint.open(path)
