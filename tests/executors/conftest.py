"""Fixtures that the tests of executors share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny_files import SMALL, tiny_file

from devices import EXECUTORS, load_on
from fixtures.masks import masks_in_time  # noqa: F401

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.executor import Executor


@pytest.fixture(params=EXECUTORS)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def executor(device: str, tmp_path: Path) -> Executor:
    return load_on(device, tiny_file(tmp_path), SMALL)
