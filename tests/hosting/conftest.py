"""Registries of fake models that are loaded again when a test says so."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from fake_loads import Loads
from heddle.config import RegistryConfig
from heddle.engine import Engine
from heddle.hosting import loads as loads_module
from heddle.hosting import unloads as unloads_module
from heddle.hosting.registry import Registry
from resumes import Timer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Make = Callable[..., Registry]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loads]:
    loads = Loads()
    Timer.made = []
    monkeypatch.setattr(Engine, "load", loads)
    monkeypatch.setattr(loads_module, "threading", type("", (), {"Timer": Timer}))
    for module in (loads_module, unloads_module):
        monkeypatch.setattr(module, "reclaim_memory", loads.note_reclaim)
    yield loads
    loads.gate.set()
    for executor in loads.executors:
        executor.gate.set()


@pytest.fixture
def make(loads: Loads) -> Iterator[Make]:
    settings: dict[str, Any] = {"auto_recover": 1000}
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(Registry(RegistryConfig(**(settings | more))))
