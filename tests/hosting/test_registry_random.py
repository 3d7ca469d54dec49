"""A registry does what a simple model of it does, whatever happens in which order."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fake_loads import SIZE, Loads, generate, poison, until
from heddle.config import RegistryConfig
from heddle.engine import Engine
from heddle.errors import (
    ModelFileError,
    ModelLoadedError,
    ModelNotFoundError,
    ModelPoisonedError,
    ModelUnavailableError,
)
from heddle.hosting import loads, unloads
from heddle.hosting.registry import Registry
from heddle.hosting.status import ModelState

if TYPE_CHECKING:
    from fake_executor import FakeExecutor

KNOWN, OTHERS = ("a", "b"), ("c", "d")
NAMES = st.sampled_from(KNOWN + OTHERS)
FIT = 2
"""Models that fit the memory limit."""

_UNLOADED, _LOADED = ModelState.UNLOADED, ModelState.LOADED
_FAILED, _POISONED = ModelState.FAILED, ModelState.POISONED


class Machine(RuleBasedStateMachine):
    """Loads, requests, failures and unloads. `states` and `used` are what is expected."""

    @initialize()
    def start(self) -> None:
        self.loads = Loads()
        self.patches = ExitStack()
        self.patches.enter_context(patch.object(Engine, "load", self.loads))
        for module in (loads, unloads):
            self.patches.enter_context(
                patch.object(module, "reclaim_memory", self.loads.note_reclaim)
            )
        self.registry = Registry(RegistryConfig(memory=FIT * SIZE))
        for name in KNOWN:
            self.registry.add(name)
        self.states = dict.fromkeys(KNOWN, _UNLOADED)
        self.used: list[str] = []  # loaded models, the least recently used first
        self.executors: dict[str, FakeExecutor] = {}

    @rule(name=NAMES, fails=st.booleans())
    def load(self, name: str, fails: bool) -> None:
        if self.states.get(name) is _LOADED:
            with pytest.raises(ModelLoadedError):
                self.registry.load(name)
            return
        self.loads.error = ModelFileError("it is damaged", field="header") if fails else None
        if fails:
            with pytest.raises(ModelFileError):
                self.registry.load(name)
            self.states[name] = _FAILED
            return
        self.registry.load(name)
        while len(self.used) >= FIT:
            self._forget(self.used[0])
        self.states[name] = _LOADED
        self.used.append(name)
        self.executors[name] = self.loads.executors[-1]

    @rule(name=NAMES)
    def request(self, name: str) -> None:
        match self.states.get(name):
            case ModelState.LOADED:
                assert generate(self.registry.engine(name)) == 2
                self.used.remove(name)
                self.used.append(name)
            case ModelState.POISONED:
                with pytest.raises(ModelPoisonedError):
                    generate(self.registry.engine(name))
            case ModelState.FAILED:
                with pytest.raises(ModelUnavailableError, match="damaged"):
                    self.registry.engine(name)
            case _:
                with pytest.raises(ModelNotFoundError):
                    self.registry.engine(name)

    @rule(name=NAMES)
    def unload(self, name: str) -> None:
        if self.states.get(name, _UNLOADED) is _UNLOADED:
            with pytest.raises(ModelNotFoundError):
                self.registry.unload(name)
            return
        self.registry.unload(name)
        self._forget(name)

    @rule(name=NAMES)
    def fail_a_step(self, name: str) -> None:
        if self.states.get(name) is _LOADED:
            poison(self.registry.engine(name), self.executors[name])
            until(lambda: self._found()[name] is _POISONED)
            self.states[name] = _POISONED
            self.used.remove(name)

    def _forget(self, name: str) -> None:
        if name in self.used:
            self.used.remove(name)
        if name in KNOWN:
            self.states[name] = _UNLOADED
        else:
            del self.states[name]

    def _found(self) -> dict[str, ModelState]:
        return {status.name: status.state for status in self.registry.status()}

    @invariant()
    def states_are_as_expected(self) -> None:
        if hasattr(self, "registry"):
            assert self._found() == self.states
            held = sum(status.memory_bytes for status in self.registry.status())
            assert held == len(self.used) * SIZE <= FIT * SIZE
            assert all(status.in_flight == 0 for status in self.registry.status())

    def teardown(self) -> None:
        if hasattr(self, "registry"):
            engines = list(self.registry.engines.values())
            self.registry.close()
            self.patches.close()
            assert all(engine.closed for engine in engines)


TestRegistry = Machine.TestCase
TestRegistry.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
