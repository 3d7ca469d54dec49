"""Routes of engram tables: list them, load and unload them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.extensions.engrams.library import library_of, load_for_client, tables_of
from heddle.server.generate.api import Api
from heddle.server.http.access import ADMIN
from heddle.server.http.encoding import json_response
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from heddle.extensions.engrams.library import OpenEngram
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


class LoadEngram(Schema):
    """Body of `POST /engrams/load`."""

    name: str = Field(
        description="Its name in requests: letters, digits and any of `_.-`, no dot first."
    )
    path: str = Field(
        min_length=1, max_length=4096, description="A file `*.engr` below `--models-dir`."
    )


class UnloadEngram(Schema):
    """Body of `POST /engrams/unload`."""

    name: str


class Described(BaseModel):
    """An engram table."""

    name: str
    path: str
    version: int
    orders: tuple[int, int] = Field(description="Fewest and most tokens of an n-gram.")
    entries: int = Field(description="Number of n-grams.")
    fingerprint: str | None = Field(
        description="SHA-256 of the vocabulary; null in version 1, which does not say it."
    )
    models: list[str] = Field(description="Loaded models that it fits.")
    looked_up: int = Field(description="N-grams that requests have looked up.")
    filtered: int = Field(description="Look-ups that the filter ended.")
    found: int = Field(description="Look-ups that found predictions.")


class Tables(BaseModel):
    """All engram tables."""

    data: list[Described]


def _routes(service: Service, _dispatcher: Dispatcher) -> list[APIRouter]:
    router = APIRouter()
    registry = service.registry
    library = library_of(registry)

    def described(one: OpenEngram) -> Described:
        looked_up, filtered, found = one.table.counts
        engines = registry.engines.items()
        return Described(
            name=one.name,
            path=str(one.path),
            version=one.table.version,
            orders=one.table.orders,
            entries=one.table.entries,
            fingerprint=one.table.fingerprint.hex() if one.is_checked else None,
            models=[name for name, engine in engines if one.fits(tables_of(engine))],
            looked_up=looked_up,
            filtered=filtered,
            found=found,
        )

    @router.get("/v1/engrams", response_model=Tables)
    async def engrams() -> Response:
        """List the engram tables that requests may name."""
        tables = await asyncio.to_thread(lambda: list(map(described, library.tables)))
        return json_response(Tables(data=tables).model_dump())

    @router.post(
        "/v1/engrams/load",
        response_model=Described,
        openapi_extra=takes(LoadEngram),
        dependencies=[ADMIN],
    )
    async def load(request: Request) -> Response:
        """Load a table, or load it again under its name. Running requests keep the old one."""
        body = await service.bodies.take(request, LoadEngram, lambda body: body)
        opened = await asyncio.to_thread(load_for_client, registry, body.name, body.path)
        report = await asyncio.to_thread(described, opened)
        return json_response(report.model_dump())

    @router.post("/v1/engrams/unload", openapi_extra=takes(UnloadEngram), dependencies=[ADMIN])
    async def unload(request: Request) -> Response:
        """Forget a table. Running requests keep it."""
        body = await service.bodies.take(request, UnloadEngram, lambda body: body)
        library.unload(body.name)
        return json_response({"name": body.name, "status": "unloaded"})

    return [router]


API = Api(_routes)
