"""Loads of fake models, for tests of registries."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import FakeExecutor
from fake_model import fake_model
from heddle.engine import Engine
from heddle.errors import OutOfMemoryError
from heddle.sampling_params import SamplingParams
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.config import EngineConfig

SIZE = 1000
"""Bytes of each fake model."""


class Loads:
    """Replaces `Engine.load`: counts loads, and lets tests hold them up or make them fail."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.configs: list[EngineConfig] = []
        self.executors: list[FakeExecutor] = []
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.error: Exception | None = None
        self.errors: list[Exception] = []  # of the next loads
        self.context = 512
        self.contexts: list[int] = []  # of the next loads
        self.page_formats: list[str] = []  # of the next loads
        self.page_format = "token ids"
        self.failing = False  # whether all steps of later loads fail
        self.alive: Callable[[], Engine | None] = lambda: None
        self.reclaims: list[Engine | None] = []

    def note_reclaim(self) -> None:
        """Replaces `reclaim_memory`: notes whether the engine `alive` still exists."""
        if self.alive() is not None:
            gc.collect()
        self.reclaims.append(self.alive())

    def __call__(self, source: str, config: EngineConfig, **more: Any) -> Engine:
        self.sources.append(source)
        self.configs.append(config)
        self.begun.set()
        assert self.gate.wait(PATIENCE)
        if self.error is not None or self.errors:
            raise self.error or self.errors.pop()
        if config.model_memory and config.model_memory < SIZE:
            raise OutOfMemoryError(f"{SIZE} bytes do not fit {config.model_memory}")
        page_format = self.page_formats.pop() if self.page_formats else self.page_format
        executor = FakeExecutor(held_bytes=SIZE, page_format=page_format)
        if self.failing:
            executor.before_step = burn
        self.executors.append(executor)
        model = fake_model(executor, context=self.contexts.pop() if self.contexts else self.context)
        model = replace(model, info=replace(model.info, id=source))
        config = config.for_draft_model()  # draft models are loaded elsewhere
        return Engine(model, config, more.get("turns"), more.get("libraries"))


def generate(engine: Engine, tokens: int = 2) -> int:
    params = SamplingParams(seed=1, max_tokens=tokens, ignore_eos=True)
    return engine.complete("hello", params).usage.completion_tokens


def until(condition: Callable[[], bool]) -> None:
    """Wait until another thread makes the condition true."""
    waited = threading.Event()
    for _ in range(int(PATIENCE * 1000)):
        if condition():
            return
        waited.wait(0.001)
    raise AssertionError("the condition did not come true")


def burn(*_: object) -> None:
    raise RuntimeError("the step burns")


def poison(engine: Engine, executor: FakeExecutor) -> None:
    executor.before_step = burn
    with pytest.raises(Exception, match="burns"):
        generate(engine)
