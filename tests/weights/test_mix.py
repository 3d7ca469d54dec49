"""The type of each matrix."""

from __future__ import annotations

import pytest

from heddle.config import EngineConfig
from heddle.extensions.quantise.commands.quantize import Target
from heddle.weights.checkpoint import TensorInfo
from heddle.weights.mix import AS_STORED, TARGETS, Mix
from heddle.weights.tensor_types import TensorType


def tensor(name: str, *shape: int, type: TensorType = TensorType.BF16) -> TensorInfo:
    return TensorInfo(name, shape, type, 0, name, None)


@pytest.mark.parametrize(
    ("mix", "name", "columns", "expected"),
    [
        ("q4_k", "layers.0.mlp.up.weight", 512, "Q4_K"),
        ("q4_k", "layers.0.mlp.up.weight", 288, "Q5_0"),
        ("q5_k", "layers.0.mlp.up.weight", 288, "Q5_1"),
        ("q6_k", "layers.0.mlp.up.weight", 288, "Q8_0"),
        ("q4_0", "layers.0.mlp.up.weight", 288, "Q4_0"),
        ("mxfp4", "layers.0.mlp.up.weight", 48, "BF16"),
        ("q4_k", "embedding.weight", 512, "Q6_K"),
        ("q4_k", "layer_inputs.embedding.weight", 512, "Q6_K"),
        ("q4_0", "output.weight", 288, "Q8_0"),
        ("mxfp4", "output.weight", 512, "Q8_0"),
        ("q8_0", "output.weight", 512, "Q8_0"),
        ("q4_k", "layers.0.mlp.router.weight", 512, "BF16"),
        ("q4_k", "layers.0.mlp.shared_gate.weight", 512, "BF16"),
        ("q4_k", "layers.0.attention.q.bias", 512, "BF16"),
        ("none", "layers.0.mlp.up.weight", 512, "BF16"),
    ],
)
def test_a_matrix_gets_the_type_of_the_mix(
    mix: str, name: str, columns: int, expected: str
) -> None:
    assert Mix.named(mix).type_of(tensor(name, 4, columns)).name == expected


def test_vectors_and_quantised_matrices_stay_as_they_are() -> None:
    mix = Mix.named("q4_k")
    assert mix.type_of(tensor("output_norm.weight", 512)) is TensorType.BF16
    kept = tensor("layers.0.mlp.up.weight", 4, 512, type=TensorType.Q8_0)
    assert mix.type_of(kept) is TensorType.Q8_0
    assert mix.kept([kept, kept, tensor("a.weight", 4, 512)]) == "2 of type Q8_0"
    assert Mix.named("none").kept([kept]) == ""


def test_a_stack_of_experts_is_quantised_as_its_matrices() -> None:
    stack = tensor("layers.0.mlp.experts.up.weight", 3, 4, 512)
    assert Mix.named("q4_k").type_of(stack) is TensorType.Q4_K


def test_the_setting_offers_every_type() -> None:
    field = EngineConfig.__dataclass_fields__["quantize"]
    assert field.metadata["choices"] == (AS_STORED, *TARGETS)
    assert list(Target) == list(TARGETS)
