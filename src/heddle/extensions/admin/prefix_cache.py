"""Routes of the prefix cache: read its counters, switch it on or off, flush it.

Counters never wait for the engine, so that neither a scrape nor the event loop waits for a step. A
switch or a flush waits in a thread until the engine plans no step. Both are admin routes.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.server.http.access import ADMIN
from heddle.server.http.encoding import json_response
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from heddle.engine import Engine
    from heddle.engine.observation.telemetry import PrefixCacheStats
    from heddle.server.generate.service import Service


class Switch(Schema):
    """Body of `POST /v1/prefix_cache`."""

    enabled: bool
    model: str | None = None


class Disabled(BaseModel):
    """The cache is off: it keeps no prefixes and finds none."""

    enabled: Literal[False] = False
    reason: str = Field(description="Why the cache is off, and how to turn it on.")


class Busy(BaseModel):
    """The cache is on, but its counters are changing. Send the request again."""

    enabled: Literal[True] = True
    busy: Literal[True] = True


class DiskCounters(BaseModel):
    """Content of the disk tier, and counters since the engine started."""

    enabled: bool = Field(description="Whether the disk tier saves and restores pages.")
    reason: str | None = Field(description="Why the disk tier is off; null if it is on.")
    files: int = Field(description="Page files in the directory.")
    bytes: int = Field(description="Bytes of page files.")
    capacity_bytes: int = Field(description="Most bytes of page files.")
    hits: int = Field(description="Restores of at least one page.")
    restored_tokens: int = Field(description="Tokens restored from files instead of computed.")
    writes: int = Field(description="Written pages.")
    dropped: int = Field(description="Pages not written because the disk was too slow.")
    errors: int = Field(description="Invalid files, and failed writes.")


class Counters(BaseModel):
    """Content of the cache, and counters since the engine started."""

    enabled: Literal[True] = True
    hits: int = Field(description="Requests with a prefix hit.")
    misses: int = Field(description="Requests without a prefix hit.")
    hit_rate: float = Field(description="hits / (hits + misses); 0 before the first request.")
    len: int = Field(description="Nodes of the tree; a node is a run of tokens.")
    cached_tokens: int = Field(description="Tokens in the tree.")
    cached_bytes: int = Field(description="Bytes of the pages that the tree keeps.")
    capacity_bytes: int = Field(description="Bytes of all pages.")
    evictions: int = Field(description="Evicted nodes.")
    total_query_tokens: int = Field(description="Prompt tokens that were looked up.")
    total_hit_tokens: int = Field(description="Prompt tokens that were found instead of computed.")
    total_lost_tokens: int = Field(
        description="Prompt tokens that were found and computed nevertheless: no snapshot of a "
        "recurrent state, or no window, was left there."
    )
    avg_hit_tokens: float = Field(description="total_hit_tokens / hits; 0 before the first hit.")
    disk: DiskCounters | None = Field(description="Counters of the disk tier; null without one.")


Report = Disabled | Busy | Counters


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.get("/v1/prefix_cache_stats", response_model=Report)
    async def prefix_cache_stats(model: str | None = None) -> Response:
        """Report content and counters of a model's prefix cache. Never waits for the engine."""
        return json_response(report(service.probed(model)).model_dump())

    @router.post(
        "/v1/prefix_cache",
        response_model=Report,
        openapi_extra=takes(Switch),
        dependencies=[ADMIN],
    )
    async def switch_prefix_cache(request: Request) -> Response:
        """Switch the cache on, or switch it off and delete its content."""
        engine, enabled = await service.take(
            request, Switch, lambda body, served: (served.engine, body.enabled)
        )
        await asyncio.to_thread(engine.set_prefix_cache, enabled)
        return json_response(report(engine).model_dump())

    @router.delete("/v1/prefix_cache", response_model=Report, dependencies=[ADMIN])
    async def flush_prefix_cache(model: str | None = None) -> Response:
        """Delete all cached prefixes of a model. Running requests continue."""
        engine = service.served(model).engine
        await asyncio.to_thread(engine.flush_prefix_cache)
        return json_response(report(engine).model_dump())

    return router


def report(engine: Engine) -> Report:
    """The state of an engine's prefix cache."""
    if engine.closed:
        return Disabled(reason="the scheduler is not running: the engine has stopped")
    if not engine.snapshot().prefix_cache.enabled:
        return Disabled(reason=_why_off(engine))
    stats = engine.prefix_cache_stats()
    return Busy() if stats is None else counters(stats)


def counters(stats: PrefixCacheStats) -> Counters:
    """The counters of `stats`, under their names in the API."""
    return Counters(
        hits=stats.hits,
        misses=stats.misses,
        hit_rate=stats.hit_rate,
        len=stats.nodes,
        cached_tokens=stats.cached_tokens,
        cached_bytes=stats.cached_bytes,
        capacity_bytes=stats.capacity_bytes,
        evictions=stats.evictions,
        total_query_tokens=stats.query_tokens,
        total_hit_tokens=stats.hit_tokens,
        total_lost_tokens=stats.lost_tokens,
        avg_hit_tokens=stats.mean_hit_tokens,
        disk=None if stats.disk is None else DiskCounters(**asdict(stats.disk)),
    )


def _why_off(engine: Engine) -> str:
    turn_on = 'POST /v1/prefix_cache {"enabled": true} turns it on'
    if engine.config.prefix_cache:
        return f"switched off at run time; {turn_on}"
    return f"off by configuration (--no-prefix-cache); {turn_on}"
