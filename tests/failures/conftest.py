"""Registries of tiny models that are loaded again at once after each failure."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from configs import configured
from engram_writer import write_version_2
from failures.chatty_models import SHAPES, VOCABULARY, write_model
from failures.streams import LOOP, TABLE, mixed, submit
from fixtures.guesses import costless_guesses  # noqa: F401
from fixtures.processes import processes  # noqa: F401
from heddle.config import EngineConfig, RegistryConfig
from heddle.engine import Engine
from heddle.extensions.engrams.library import tables_of
from heddle.hosting import loads
from heddle.hosting.registry import Registry
from heddle.process_memory import trim_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path


PAGES = {"dense": 1 << 17, "windows": 3 << 17, "experts": 1 << 17, "hybrid": 1 << 17}
"""Bytes of the KV cache: so few that sequences are preempted."""


class Soaked(NamedTuple):
    """A model, its settings, and the results of its undisturbed streams."""

    path: Path
    config: EngineConfig
    expected: list[str]


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Soaked]:
    """Writes the model of a kind, and computes each stream alone, without caches and guesses."""
    folder, known = tmp_path_factory.mktemp("soak"), dict[str, Soaked]()

    def write(kind: str) -> Soaked:
        if kind not in known:
            known[kind] = _write(kind, folder)
        return known[kind]

    return write


def _write(kind: str, folder: Path) -> Soaked:
    path = write_model(kind, folder / kind)
    table = folder / f"{kind}.engr"
    with Engine.load(path, EngineConfig(slots=1, threads=1)) as engine:
        _write_table(table, engine)
    more: dict[str, Any] = {"threads": 1, "engram": (f"{TABLE}={table}",), "queue": 100}
    plain = configured(slots=1, prefix_cache=False, speculation="off", **more)
    with Engine.load(path, plain) as engine:
        expected = [reader.result() for reader in submit(engine, mixed())]
    config = configured(
        slots=6, batch_tokens=64, state_every=64, kv_cache=PAGES.get(kind, 0), **more
    )
    return Soaked(path, config, expected)


def _write_table(path: Path, engine: Engine) -> None:
    """An engram table of what follows each token of `LOOP`."""
    tokens = engine.model.tokenizer.encode(LOOP)
    followers: dict[tuple[int, ...], dict[int, int]] = {}
    for token, then in pairwise(tokens):
        counts = followers.setdefault((token,), {})
        counts[then] = counts.get(then, 0) + 1
    write_version_2(path, followers, VOCABULARY, tables_of(engine).fingerprint)


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    """Pytest keeps records, and the errors in them refer to engines that have failed."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def lazy_reclaims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave garbage to Python. A collection takes as long as ten loads of a tiny model."""
    monkeypatch.setattr(loads, "reclaim_memory", trim_memory)


@pytest.fixture
def opened(
    monkeypatch: pytest.MonkeyPatch,
    costless_guesses: None,  # noqa: F811
) -> Callable[[Soaked], AbstractContextManager[Registry]]:
    """Opens a registry of a model that is loaded again at once, however often it fails."""

    def timer(_: float, call: Callable[..., None], args: tuple[Any, ...]) -> threading.Timer:
        return threading.Timer(0, call, args)

    monkeypatch.setattr(loads, "threading", type("", (), {"Timer": staticmethod(timer)}))
    monkeypatch.setattr(loads, "STEADY", -1)  # no load counts as one of a row

    @contextmanager
    def open_registry(model: Soaked) -> Iterator[Registry]:
        settings = RegistryConfig(auto_recover=1000, resume_tries=1000)
        with Registry(settings, model.config) as models:
            yield models

    return open_registry


assert set(PAGES) < set(SHAPES)
