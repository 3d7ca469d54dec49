"""What tests of several rooms share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's file, fetched once into the cache folder."""
    from heddle.config import DEFAULT_MODEL, cache_home
    from heddle.weights.sources import resolve

    return resolve(DEFAULT_MODEL, cache_home())
