"""Engines on a fake executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fake_executor import FakeExecutor
from fake_model import fake_model
from heddle.config import EngineConfig
from heddle.engine import Engine

Start = Callable[..., Engine]


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor()


@pytest.fixture
def start(executor: FakeExecutor) -> Iterator[Start]:
    """Starts engines and closes them after the test."""
    engines = []

    def starter(
        *, executor: FakeExecutor = executor, bos_id: int | None = None, context=512, **settings
    ) -> Engine:
        model = fake_model(executor, bos_id=bos_id, context=context)
        engines.append(Engine(model, EngineConfig(**{"speculation": "off"} | settings)))
        return engines[-1]

    yield starter
    executor.gate.set()
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(start: Start) -> Engine:
    return start()
