"""Lists in README.md are those of the program."""

from __future__ import annotations

from pathlib import Path

from heddle.weights.tensor_types import TensorType

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def test_the_tensor_types_are_those_of_the_table() -> None:
    (line,) = [line for line in README.splitlines() if line.startswith("| Tensor types |")]
    listed = line.split("|")[2].strip().split(", ")
    assert sorted(listed) == sorted(kind.name for kind in TensorType.supported())
