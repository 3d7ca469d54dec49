"""Lists in docs/reference.md are those of the program."""

from __future__ import annotations

from pathlib import Path

from heddle.weights.tensor_types import TensorType

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text("utf-8")


def test_the_tensor_types_are_those_of_the_table() -> None:
    (line,) = [line for line in REFERENCE.splitlines() if line.startswith("| Tensor types |")]
    listed = line.split("|")[2].strip().split(", ")
    assert sorted(listed) == sorted(kind.name for kind in TensorType.supported())
