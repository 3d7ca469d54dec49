"""A server of several fake models, which are loaded on demand."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import httpx

from configs import server_config
from fake_model import fake_model
from fake_server import AnyTextTokenizer, ScoringExecutor
from heddle.config import EngineConfig, RegistryConfig
from heddle.engine import Engine
from heddle.hosting.registry import Registry
from live_server import live_server
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest


@dataclass
class ModelServer:
    """A server of fake models.

    Attributes:
        url: its address.
        registry: its models.
        gate: loads wait for it.
        loads: the sources of all loads, in order.
    """

    url: str
    registry: Registry
    gate: threading.Event
    loads: list[str]

    def probe(self, path: str) -> httpx.Response:
        if path == "/api/show":
            return self.post(path, model="one")
        return httpx.get(self.url + path, timeout=PATIENCE)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=PATIENCE)

    def complete(self, model: str | None = None) -> httpx.Response:
        named = {} if model is None else {"model": model}
        return self.post("/v1/completions", prompt="hello", max_tokens=2, ignore_eos=True, **named)

    def states(self) -> dict[str, str]:
        listed = httpx.get(self.url + "/models", timeout=PATIENCE).json()["data"]
        return {model["id"]: model["status"]["value"] for model in listed}


@contextmanager
def model_server(folder: Path, patch: pytest.MonkeyPatch, **settings: Any) -> Iterator[ModelServer]:
    """Serves `one`, and knows `two.gguf` of its folder. Loads on demand, with the alias `best`.

    `patch` is the test's own, so that what a test patches itself is undone in the right order.
    `settings` are the server's.
    """
    (folder / "two.gguf").write_bytes(b"GGUF")
    gate, loads = threading.Event(), []
    gate.set()

    def load(source: str, config: EngineConfig, **more: Any) -> Engine:
        loads.append(source)
        assert gate.wait(PATIENCE)
        fake = fake_model(ScoringExecutor())
        name = source.rpartition("/")[2].removesuffix(".gguf")
        info = replace(fake.info, id=name)
        return Engine(replace(fake, info=info, tokenizer=AnyTextTokenizer(None)), config)

    config = RegistryConfig(models_dir=str(folder), autoload=True)
    with Registry(config) as registry:
        patch.setattr(Engine, "load", load)
        registry.add("one")
        registry.load("one")
        with live_server(registry, server_config(port=0, alias=("best",), **settings)) as live:
            yield ModelServer(live.url, registry, gate, loads)
        gate.set()
