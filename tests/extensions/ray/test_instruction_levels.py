"""An answer that goes on at a replica with another instruction level has the same bits."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from losing import Replicas, exchange, timeless, whole

from heddle import Engine, EngineConfig, _native
from heddle.config import DEFAULT_MODEL, ServerConfig
from heddle.hosting.registry import Registry
from heddle.server.app import create_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp

LEVELS = _native.isa_levels()
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(len(LEVELS) < 2, reason="this machine has one instruction level"),
]
QUESTION: Any = {"role": "user", "content": "Write a story about the sea."}


@pytest.fixture(scope="module")
def apps() -> Iterator[list[ASGIApp]]:
    """A replica at the machine's best level, and one at the least that is not portable."""
    few = "avx2" if "avx2" in LEVELS else LEVELS[0]
    with ExitStack() as stack:
        made: list[ASGIApp] = []
        for isa in ("auto", few):
            config = EngineConfig(slots=2, context=1024, kv_cache=1 << 26, threads=1, isa=isa)
            engine = stack.enter_context(Engine.load(DEFAULT_MODEL, config))
            made.append(create_app(Registry.of(engine), ServerConfig()))
            levels.append(engine.model.executor.isa)  # type: ignore[attr-defined]
        assert len(set(levels[-2:])) == 2
        yield made


levels: list[str] = []


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 1.0, "top_k": 40, "n": 2}])
def test_streams_go_on_at_another_level(apps: list[ASGIApp], fields: dict[str, Any]) -> None:
    body = {"messages": [QUESTION], "max_tokens": 24, "stream": True, "seed": 3, "logprobs": True}
    body |= {"top_logprobs": 3} | fields

    async def run() -> None:
        calm = timeless(await whole(Replicas(apps), exchange("/v1/chat/completions", body)))
        there = timeless(await whole(Replicas(apps[1:]), exchange("/v1/chat/completions", body)))
        assert there == calm
        for lost in (2, 9, 17):
            replicas = Replicas(apps, lost, 3)
            sent = await whole(replicas, exchange("/v1/chat/completions", body))
            assert len(replicas.asked) == 3
            assert timeless(sent) == calm

    asyncio.run(run())
