"""A replica whose model has failed for good ends, so that it fails no further requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from heddle.config import RegistryConfig, ServerConfig
from heddle.extensions.ray.exchange import FULL, Exchange, Piece
from heddle.extensions.ray.loads import Requests
from heddle.extensions.ray.publishing import Publishing
from heddle.hosting.registry import Registry
from heddle.server.app import create_app
from patience import PATIENCE
from talking_model import talking_engine

pytest.importorskip("ray")
from heddle.extensions.ray import replica as module

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
CHAT = {"messages": [{"role": "user", "content": "ab"}], "stream": True}


def exchange() -> Exchange:
    headers = [(b"content-type", b"application/json")]
    raw = json.dumps(CHAT).encode()
    path = "/v1/chat/completions"
    return Exchange("POST", path, b"", headers, raw, "", "req_1", 6, 1_700_000_000)


class EndedError(Exception):
    """The process has ended."""


def end(code: int) -> None:
    raise EndedError(code)


@pytest.mark.parametrize("recovers", [False, True])
def test_a_replica_ends_when_nothing_loads_its_model_again(
    recovers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.os, "_exit", end)
    with talking_engine(TEMPLATE) as (engine, executor):
        executor.answers = ("well, it is a long day",)
        own: Any = object.__new__(module.Replica)
        own._registry = Registry.of(engine)
        own._registry.config = RegistryConfig(auto_recover=int(recovers))
        app = create_app(own._registry, ServerConfig())
        own._name, own._alive_every = "replica", PATIENCE
        own._requests, own._publishing = Requests(), Publishing(own._registry)
        own._most = 1

        async def pieces() -> list[Piece]:
            found: list[Piece] = []
            own._app = app
            try:
                async for piece in own.answer(exchange()):
                    found += [piece]
            except EndedError:
                found.append(Piece("ended"))
            finally:
                del own._app  # the engine outlives the replica here
            return found

        assert asyncio.run(pieces())[-1].is_last

        def fail(step: int) -> None:
            raise RuntimeError("rank 1 was lost")

        executor.before_step = fail
        for _ in range(2):  # the request of the step, and one that comes later
            found = asyncio.run(pieces())
            assert [one for one in found if one.failure]
            assert (found[-1].replica == "ended") is not recovers


def test_a_full_replica_does_nothing() -> None:
    own: Any = object.__new__(module.Replica)
    own._requests, own._most, own._name = Requests(), 1, "replica"

    async def pieces() -> list[Piece]:
        with own._requests.one():
            return [piece async for piece in own.answer(exchange())]

    assert asyncio.run(pieces()) == [Piece("replica", failure=FULL)]
