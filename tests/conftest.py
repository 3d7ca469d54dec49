"""Fixtures for tests of several rooms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pathlib import Path

    # mypy takes every `conftest` for this one.
    from bench.conftest import Start  # noqa: F401
    from server.conftest import Running  # noqa: F401

# However slow the machine is, that is no fault of what is tested.
settings.register_profile("heddle", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# What decides on a change tries the same examples each time, and fails for the change or never.
settings.register_profile(
    "gate", settings.get_profile("heddle"), derandomize=True, database=None, print_blob=True
)
settings.load_profile("heddle")


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's file, fetched once into the cache folder."""
    from heddle.config import DEFAULT_MODEL, cache_home
    from heddle.weights.sources import find

    return find(DEFAULT_MODEL, cache_home()).path
