"""Routes that load and unload models, and load them again with other settings."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import Field, create_model
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.config import MAX_MODEL_NAME, EngineConfig
from heddle.server.api.native.models import described
from heddle.server.generate.service import loaded
from heddle.server.http.access import ADMIN
from heddle.server.http.connection import unless_gone
from heddle.server.http.encoding import json_response
from heddle.server.http.schema import Schema, takes
from heddle.settings import resolve, settings

if TYPE_CHECKING:
    from concurrent.futures import Future

    from heddle.engine.engine import Engine
    from heddle.server.generate.service import Service
    from heddle.settings import Setting

BodyT = TypeVar("BodyT", bound=Schema)

_TYPES: dict[str, Any] = {
    "NUMBER": int,
    "DECIMAL": float,
    "SIZE": int | str,
    "SWITCH": bool,
    "TEXT": str,
}


class LoadRequest(Schema):
    """Body of `POST /models/load`, without the settings of the engine."""

    model: str = Field(
        min_length=1, description="A known model, a file, a folder, an alias or a name of the hub."
    )
    name: str | None = Field(
        None, min_length=1, max_length=MAX_MODEL_NAME, description="Its name in requests."
    )
    keep_alive: int | None = Field(
        None, ge=0, description="Seconds without a request until it is unloaded; 0: never."
    )
    wait: bool = Field(True, description="Answer after the load; false: answer at once with 202.")


def _settings() -> list[Setting]:
    """The settings of the engine that a request may change.

    Not those that name places of the machine, such as `prefix_cache_dir`, or that all models share.
    """
    return [one for one in settings(EngineConfig) if not one.is_fixed]


class ReloadRequest(Schema):
    """Body of `POST /models/reload`, without the settings of the engine."""

    model: str = Field(min_length=1, description="Name of a loaded model.")


@cache
def _with_settings(base: type[BodyT]) -> type[BodyT]:
    """The schema of a body, with the settings of the engine and of extensions."""
    fields: dict[str, Any] = {
        one.name: (_TYPES[one.kind] | None, Field(None, description=one.doc)) for one in _settings()
    }
    return create_model(base.__name__.removesuffix("Request"), __base__=base, **fields)


class UnloadRequest(Schema):
    """Body of `POST /models/unload`."""

    model: str = Field(min_length=1, description="Name of a loaded model.")
    seconds: int | None = Field(
        None, ge=0, description="Most seconds for accepted requests; default: `unload_seconds`."
    )
    move: bool = Field(
        False, description="Accepted requests go on at once in another loaded copy of the model."
    )


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()
    registry = service.registry

    @router.post(
        "/v1/models/load",
        openapi_extra=takes(_with_settings(LoadRequest)),
        dependencies=[ADMIN],
        responses={
            202: {"description": "It loads."},
            409: {"description": "It is loaded already."},
        },
    )
    async def load(request: Request) -> Response:
        """Load a model. If the client leaves, the load continues."""
        body = await service.bodies.take(request, _with_settings(LoadRequest), lambda body: body)
        loading = registry.begin_load(
            body.model,
            name=body.name,
            config=_config(body, registry.engine_config),
            keep_alive=body.keep_alive,
            confined=True,
        )
        if body.wait:
            await unless_gone(request.receive, loaded(loading))
        return described_load(loading, status=200 if body.wait else 202)

    @router.post(
        "/v1/models/reload",
        openapi_extra=takes(_with_settings(ReloadRequest)),
        dependencies=[ADMIN],
        responses={409: {"description": "It would change the tokens of requests that run."}},
    )
    async def reload(request: Request) -> Response:
        """Load a model again with other settings. Its requests wait for it and go on."""
        body = await service.bodies.take(request, _with_settings(ReloadRequest), lambda body: body)
        name = service.name_of(body.model)
        former = registry.settings_of(name)
        loading = registry.begin_reload(name, _config(body, former) or former)
        await unless_gone(request.receive, loaded(loading))
        return described_load(loading)

    def described_load(loading: Future[Engine], status: int = 200) -> Response:
        name = registry.name_of_load(loading)
        state = next(one for one in registry.status() if one.name == name)
        return json_response(described(name, state, service), status=status)

    @router.post("/v1/models/unload", openapi_extra=takes(UnloadRequest), dependencies=[ADMIN])
    async def unload(request: Request) -> Response:
        """Unload a model, after its accepted requests have finished or their time is up."""
        body = await service.bodies.take(request, UnloadRequest, lambda body: body)
        name = service.name_of(body.model)
        await asyncio.to_thread(registry.unload, name, seconds=body.seconds, move=body.move)
        return json_response({"id": name, "object": "model", "status": {"value": "unloaded"}})

    return router


def _config(body: LoadRequest | ReloadRequest, base: EngineConfig) -> EngineConfig | None:
    """The settings that the body changes; None if it changes none.

    Raises:
        ConfigError: a value is out of range, or no size.
    """
    given = {one.name: getattr(body, one.name) for one in _settings()}
    texts = {name: str(value) for name, value in given.items() if value is not None}
    return resolve(base, texts, environ={}) if texts else None
