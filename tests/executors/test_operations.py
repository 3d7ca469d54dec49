"""Each operation of models is known wherever graphs are recorded, computed and lowered."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from heddle.executors.cpu import lowering
from heddle.executors.graph import forward, recording
from heddle.extensions.reference.ops import ReferenceOps
from heddle.models.ops import Ops

if TYPE_CHECKING:
    from types import ModuleType

RECORDED = inspect.getsource(recording.RecordingOps)
NODES = [
    name
    for name, kind in vars(recording).items()
    if inspect.isclass(kind) and issubclass(kind, recording.Node) and f"{name}(" in RECORDED
]
"""The nodes that models have. Extensions replace some of them by nodes of their own."""


@pytest.mark.parametrize("module", [forward, lowering], ids=lambda module: module.__name__)
@pytest.mark.parametrize("node", NODES)
def test_each_operation_has_a_case_of_its_own(node: str, module: ModuleType) -> None:
    assert re.search(rf"\b{node}\(", Path(inspect.getfile(module)).read_text())


@pytest.mark.parametrize("name", [name for name in vars(Ops) if not name.startswith("_")])
def test_each_operation_is_recorded_and_defined(name: str) -> None:
    assert hasattr(recording.RecordingOps, name)
    assert hasattr(ReferenceOps, name)
