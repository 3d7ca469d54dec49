"""The command line in this process, with a fake model behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import FakeExecutor
from fake_model import fake_model
from heddle.engine import Engine
from heddle.settings import settings

if TYPE_CHECKING:
    from heddle.config import EngineConfig


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not see the settings of whoever runs them."""
    from heddle.config import EngineConfig, ServerConfig

    for setting in (*settings(EngineConfig), *settings(ServerConfig)):
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.delenv("HEDDLE_DEBUG", raising=False)


@pytest.fixture(autouse=True)
def no_frozen_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server in this process would keep what other tests drop."""
    monkeypatch.setattr("gc.freeze", lambda: None)


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor()


@pytest.fixture
def loaded(
    monkeypatch: pytest.MonkeyPatch, executor: FakeExecutor
) -> list[tuple[str, EngineConfig]]:
    """Makes every model the fake one; lists what was asked for."""
    asked: list[tuple[str, EngineConfig]] = []

    def load(cls: type[Engine], model: str, config: EngineConfig, **_: Any) -> Engine:
        asked.append((model, config))
        return cls(fake_model(executor), config)

    monkeypatch.setattr(Engine, "load", classmethod(load))
    return asked
