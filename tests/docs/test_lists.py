"""Lists and tables of docs/ agree with the program."""

from __future__ import annotations

import runpy
from pathlib import Path

from heddle.weights.tensor_types import TensorType

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference.md").read_text("utf-8")


def test_the_tensor_types_are_those_of_the_table() -> None:
    (line,) = [line for line in REFERENCE.splitlines() if line.startswith("| Tensor types |")]
    listed = line.split("|")[2].strip().split(", ")
    assert sorted(listed) == sorted(kind.name for kind in TensorType.supported())


def test_pages_agree_with_the_tables_of_the_program() -> None:
    """The sampling parameters and the fields of vendors."""
    script = runpy.run_path(str(ROOT / "scripts" / "write_tables.py"))
    pages: dict[Path, str] = script["pages"]()
    for path, page in pages.items():
        assert path.read_text("utf-8") == page
    assert {path.name for path in pages} == {"sampling.md", "fields.md"}
