"""Requests pick one of several models by name; probes of the core load none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from model_server import model_server
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from model_server import ModelServer

PROBES = (
    *("/health", "/health/live", "/health/ready", "/health/ready?model=one"),
    *("/models", "/v1/models/one"),
)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    with model_server(tmp_path, monkeypatch) as server:
        yield server


def test_probes_neither_load_a_model_nor_renew_its_time(models: ModelServer) -> None:
    entry = models.registry._entries.by_name["one"]
    entry.used_at = 1.0
    for path in PROBES:
        assert models.probe(path).status_code == 200, path
        assert entry.used_at == 1.0, path
    assert models.complete("one").status_code == 200
    assert entry.used_at > 1.0
    models.registry.unload("one")
    for path in PROBES:
        assert models.probe(path).status_code == 200, path
    assert models.loads == ["one"]


def test_requests_pick_a_model_and_its_load_waits_for_nobody_else(models: ModelServer) -> None:
    assert models.states() == {"one": "loaded", "two": "unloaded"}
    models.gate.clear()
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(models.complete, "two") for _ in range(2)]
        while models.states()["two"] != "loading":
            pass
        for name in ("one", "best", None):
            answer = models.complete(name)
            assert (answer.status_code, answer.json()["model"]) == (200, name or "one")
        models.gate.set()
        for answer in (one.result(PATIENCE) for one in waiting):
            assert (answer.status_code, answer.json()["model"]) == (200, "two")
    assert len(models.loads) == 2  # one, and two once
