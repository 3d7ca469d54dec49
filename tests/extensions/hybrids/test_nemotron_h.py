"""Nemotron-H: forms of config.json, quantised experts without gates, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from test_logits import last_logits

from gguf_writer import Tensor, write_gguf
from heddle.config import EngineConfig
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.executors.cpu.load import load
from heddle.extensions.hybrids.nemotron_h import read_parts
from heddle.extensions.reference.model import ReferenceModel
from heddle.models.build import build
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.hyperparameters import Hyperparameters
from heddle.weights.tensor_types import TensorType
from models.tiny.base import TOKENS
from models.tiny.nemotron_h import MODELS
from tensor_blocks import random_matrix

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.errors import HeddleError
    from models.tiny.nemotron_h import TinyNemotronH

DENSE, EXPERTS, _ = MODELS
NAMES = {"M": "linear_attention", "-": "mlp", "*": "full_attention", "E": "moe"}
OLD_NAMES = NAMES | {"M": "mamba", "*": "attention"}
LIMITS = "time_step_limit"


@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=str)
@pytest.mark.parametrize("names", [NAMES, OLD_NAMES])
def test_layers_may_be_a_list(names: dict[str, str], model: TinyNemotronH, tmp_path: Path) -> None:
    """`transformers` writes a list, no number of layers, and keys of experts in dense models."""
    changes: dict[str, object] = {
        "hybrid_override_pattern": None,
        "layers_block_type": [names[kind] for kind in model.pattern],
        "num_hidden_layers": None,
        "n_routed_experts": 7,
        "num_experts_per_tok": 3,
        LIMITS: [0.0, {"__float__": "Infinity"}],
    }
    with HuggingFaceCheckpoint.open(model.write_folder(tmp_path, **changes)) as checkpoint:
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    np.testing.assert_allclose(logits, model.expected_logits(), rtol=0, atol=4e-5)


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"hybrid_override_pattern": "M-X"}, UnsupportedModelError, "pattern 'X' is not supported"),
        ({"layers_block_type": ["mlp", 3]}, UnsupportedModelError, "block_type 3 is not supported"),
        ({"hybrid_override_pattern": None}, UnsupportedModelError, "hybrid_override_pattern None"),
        ({"mlp_hidden_act": "silu"}, UnsupportedModelError, "silu.* supported: squared_relu"),
        ({"mamba_hidden_act": "gelu"}, UnsupportedModelError, "mamba_hidden_act 'gelu'"),
        ({LIMITS: [0.001, 0.1]}, UnsupportedModelError, r"time_step_limit \[0.001, 0.1\]"),
        ({"n_groups": 3}, ModelFileError, "n_groups is 3, which does not divide the 4 heads"),
    ],
)
def test_wrong_hyperparameters_are_refused(
    changes: dict[str, object], error: type[HeddleError], problem: str, tmp_path: Path
) -> None:
    folder = DENSE.write_folder(tmp_path, **changes)
    with pytest.raises(error, match=problem), HuggingFaceCheckpoint.open(folder) as checkpoint:
        build(checkpoint)


def test_a_part_for_each_layer_and_no_more_is_listed() -> None:
    assert read_parts(Hyperparameters({"layer_parts": ["mlp", "attention"]}), 2)
    for listed in (["mlp"], ["mlp", "attention", "mlp"], ["mlp", "x"]):
        with pytest.raises(ModelFileError, match="layer_parts must have 2 entries"):
            read_parts(Hyperparameters({"layer_parts": listed}), 2)


def test_a_file_that_does_not_say_which_layer_has_which_part_is_refused(tmp_path: Path) -> None:
    checkpoint = DENSE.checkpoint(tmp_path, {"nemotron_h.feed_forward_length": 48})
    with pytest.raises(ModelFileError, match="head_count_kv must be a positive whole number"):
        build(checkpoint)


@pytest.mark.parametrize("kind", [TensorType.Q8_0, TensorType.Q4_0], ids=lambda kind: kind.name)
def test_quantised_experts_without_gates_agree_with_the_reference(
    kind: TensorType, tmp_path: Path
) -> None:
    """They differ by the error of int8 activations, a few hundredths. The router reads floats."""
    model = replace(EXPERTS, width=64, expert_width=96, shared_width=32, layers=3, pattern="M*E")
    rng = np.random.default_rng(5)

    def stored(tensor: Tensor) -> Tensor:
        if "_exps." not in tensor.name:
            return tensor
        count, rows, columns = tensor.shape
        data = random_matrix(rng, kind, count * rows, columns).tobytes()
        return replace(tensor, data=data, type=kind)

    tensors = [stored(tensor) for tensor in model.tensors()]
    file = GGUFCheckpoint.open(write_gguf(tmp_path / "typed.gguf", model.metadata(), tensors))
    expected = ReferenceModel(file).logits(TOKENS)
    executor = load(file, EngineConfig(slots=1, threads=2, context=len(TOKENS)))
    logits = last_logits(executor, TOKENS, range(1, len(TOKENS) + 1))
    distance = np.sqrt(np.mean((logits - expected) ** 2) / np.mean(expected**2))
    assert distance < 0.05
    executor.close()
