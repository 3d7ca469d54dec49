"""Fixtures for tests of several rooms."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pathlib import Path


# However slow the machine is, that is no fault of what is tested.
settings.register_profile("heddle", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# What decides on a change tries the same examples each time, and fails for the change or never.
settings.register_profile(
    "gate", settings.get_profile("heddle"), derandomize=True, database=None, print_blob=True
)
settings.load_profile("heddle")


@cache
def _needs_torch(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return 'importorskip("torch")' in text or "from triton_device import" in text


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test `torch` if its file needs torch, or one of its parameters is a torch device."""
    call = getattr(item, "callspec", None)
    parameters = call.params.values() if call else ()
    devices = (one for one in parameters if isinstance(one, str))
    if _needs_torch(item.path) or any(one.split(",")[0] == "torch" for one in devices):
        item.add_marker(pytest.mark.torch)


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's file, fetched once into the cache folder."""
    from heddle.config import DEFAULT_MODEL
    from heddle.folders import cache_home
    from heddle.weights.sources import find

    return find(DEFAULT_MODEL, cache_home()).path
