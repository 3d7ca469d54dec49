"""What the tests of executors share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from heddle.executors.children import process as children
from heddle.executors.cpu import mask_threads
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The child processes that a test starts. None may be left."""
    started: list[Any] = []
    spawn = children.subprocess.Popen

    def popen(*args: Any, **kwargs: Any) -> Any:
        started.append(spawn(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(children.subprocess, "Popen", popen)
    yield started
    assert all(process.returncode is not None for process in started), "they have ended"


@pytest.fixture
def masks_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No grammar's mask is late, however slow the machine is."""
    monkeypatch.setattr(mask_threads, "PATIENCE", PATIENCE)
