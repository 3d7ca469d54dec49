"""Child processes that a test prepares."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    import pytest

_HERE = Path(__file__).parent


def prepare_children(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Let each process that is started from now on call `prepare_child` of these modules first."""
    files = [Path(module.__file__ or "") for module in modules]
    folders = [_HERE / "child_start", *dict.fromkeys(file.parent for file in files)]
    own = os.environ.get("PYTHONPATH")
    paths = [*map(str, folders), *([own] if own else [])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("HEDDLE_TEST_PREPARES", ",".join(file.stem for file in files))
