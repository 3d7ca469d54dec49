"""Engines on a fake executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fake_executor import FakeExecutor
from fake_model import fake_model
from heddle.config import EngineConfig
from heddle.engine import Engine

Start = Callable[..., Engine]


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor(pages=64)


@pytest.fixture
def start(executor: FakeExecutor) -> Iterator[Start]:
    """Starts engines that end with the test."""
    with ExitStack() as stack:

        def starter(context: int = 512, **settings: Any) -> Engine:
            model = fake_model(executor, context=context)
            return stack.enter_context(Engine(model, EngineConfig(**settings)))

        yield starter
