"""Routes of llama.cpp: list adapters, and set their factors in requests that name none."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, RootModel
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.extensions.llamacpp.errors import SHAPE
from heddle.server.generate.api import Api
from heddle.server.http.access import ADMIN
from heddle.server.http.encoding import json_response
from heddle.server.http.schema import takes

if TYPE_CHECKING:
    from heddle.extensions.lora.library import AdapterLibrary
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


class Described(BaseModel):
    """An adapter, with the fields of llama.cpp."""

    id: int
    path: str
    scale: float = Field(description="Its factor in requests that name no adapters.")
    name: str
    model: str = Field(description="The model that it changes.")


class AllAdapters(RootModel[list[Described]]):
    """All adapters, in order of their numbers."""


class Scale(BaseModel):
    """An adapter's factor in requests that name no adapters."""

    id: int
    scale: float = Field(ge=-100, le=100)


class Scales(RootModel[list[Scale]]):
    """Body of `POST /lora-adapters`: those that are left out get the factor 0."""


def _routes(service: Service, _dispatcher: Dispatcher) -> list[APIRouter]:
    router = APIRouter()
    registry = service.registry
    library = cast("AdapterLibrary", registry.libraries.adapters)

    @router.get("/lora-adapters", response_model=AllAdapters)
    async def adapters() -> Response:
        """List the adapters that requests may name."""
        return json_response(
            [
                Described(
                    id=one.number,
                    path=one.source,
                    scale=one.scale,
                    name=one.name,
                    model=one.model or registry.default,
                ).model_dump()
                for one in library.known
            ]
        )

    @router.post("/lora-adapters", openapi_extra=takes(Scales), dependencies=[ADMIN])
    async def set_scales(request: Request) -> Response:
        """Set the factors of adapters in requests that name none."""
        body = await service.bodies.take(request, Scales, lambda body: body)
        library.set_scales({one.id: one.scale for one in body.root})
        return json_response({"success": True})

    return [router]


API = Api(_routes, SHAPE)
