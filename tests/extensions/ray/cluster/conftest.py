"""One deployment for all tests of this package, which ends with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deployment import QUEUE, REPLICAS, SLOTS, Deployment, deployed

from live_server import KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator

SILENCE = 3.0
"""Seconds after which a silent replica is lost."""
SETTINGS = (
    *("--replicas", str(REPLICAS), "--cpus", "0.5", "--silence", str(SILENCE)),
    *("--slots", str(SLOTS), "--queue", str(QUEUE), "--kv-cache", "256M", "--context", "1024"),
    *("--device", "failing", "--max-body", "64K", "--max-tokens", "40"),
    *(part for key in KEYS for part in ("--api-key", key)),
)


@pytest.fixture(scope="package")
def deployment() -> Iterator[Deployment]:
    """Three replicas of the default model."""
    with deployed(*SETTINGS) as made:
        yield made
