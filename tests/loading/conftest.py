"""Fixtures of tests of loading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that stands for a model's; its content is no model."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path
