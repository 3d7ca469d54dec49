"""The routes that list and describe models: `/api/tags`, `/api/ps`, `/api/show`, `/api/version`.

Every name has a tag. Names of models with a colon have one already; the others get `:latest`.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match

from heddle.extensions.ollama.description import described_files, described_model
from heddle.extensions.ollama.fetching import facts_of
from heddle.extensions.ollama.fields import NamingBody
from heddle.parameters import Api
from heddle.server.generate.service import LATEST
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.encoding import json_response
from heddle.server.http.schema import takes

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import Scope

    from heddle.hosting.status import ModelStatus
    from heddle.loading.loaded_model import ModelInfo
    from heddle.server.generate.service import Service

Json = dict[str, Any]

API_VERSION = "0.33.0"
"""Version of Ollama whose API this is. Some clients refuse versions that are too old for them."""


_NEVER = datetime(2318, 1, 1, tzinfo=UTC)
"""The end of a model that stays loaded. Ollama has the longest time of Go, 292 years from now."""


class Facts(Protocol):
    """The facts of a model's files that the answers show."""

    @property
    def path(self) -> Path: ...
    @property
    def architecture(self) -> str: ...
    @property
    def parameters(self) -> int: ...
    @property
    def quantisation(self) -> str: ...
    @property
    def created(self) -> int: ...


@decided(Api.OLLAMA_SHOW)
class ShowRequest(NamingBody):
    """Body of `POST /api/show`."""


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()
    registry = service.registry

    @router.get("/api/version")
    @router.head("/api/version", include_in_schema=False)
    async def version() -> Response:
        """The version of Ollama's API that this server follows."""
        return json_response({"version": API_VERSION})

    @router.get("/api/tags")
    @router.head("/api/tags", include_in_schema=False)
    async def tags() -> Response:
        """List all models that requests may name, in the shape of Ollama's API."""
        known = {status.name: status for status in registry.status()}
        named = [(name, known.get(service.name_of(name))) for name in service.names]
        models = [_listed(name, status, service) for name, status in named if status is not None]
        return json_response({"models": models})

    @router.get("/api/ps")
    async def running() -> Response:
        """List the loaded models, in the shape of Ollama's API."""
        models = [_running(status, service) for status in registry.status()]
        return json_response({"models": [model for model in models if model]})

    @router.post("/api/show", openapi_extra=takes(ShowRequest))
    async def show(request: Request) -> Response:
        """Describe a model, in the shape of Ollama's API."""
        body = await service.bodies.take(request, ShowRequest, lambda body: body)
        name = service.name_of(body.named())
        engine = registry.engines.get(name)
        shown = {"modelfile": f"FROM {tagged(name)}\n"}
        info: Facts | None
        if engine is None:
            info = facts = await asyncio.to_thread(facts_of, registry, name)
            described = described_files(facts)
        else:
            info, described = engine.model.info, described_model(engine)
        more = {"details": details(info), "modified_at": modified_at(info)}
        return json_response(shown | described | more)

    async def root() -> Response:
        """Tell Ollama's clients, which look for this text, that the server is there."""
        return PlainTextResponse("Ollama is running")

    router.add_api_route(
        "/",
        root,
        methods=["GET", "HEAD"],
        include_in_schema=False,
        route_class_override=_Yielding,
    )
    return router


class _Yielding(APIRoute):
    """A route that leaves browsers to another extension's page, if there is one."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """See Starlette, whose router calls a partial match if no other route matches fully."""
        match, child = super().matches(scope)
        is_for_browser = match is Match.FULL and "text/html" in Headers(scope=scope).get(
            "accept", ""
        )
        return (Match.PARTIAL if is_for_browser else match), child


def tagged(name: str) -> str:
    """A model's name with its tag."""
    return name if ":" in name else name + LATEST


def _listed(name: str, status: ModelStatus, service: Service) -> Json:
    """A model under one of its names. Only a loaded model has sizes and details."""
    engine = service.registry.engines.get(status.name)
    info = None if engine is None else engine.model.info
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": modified_at(info),
        "size": 0 if info is None else info.file_bytes,
        "digest": digest(status, info),
        "details": details(info),
    }


def _running(status: ModelStatus, service: Service) -> Json | None:
    """A loaded model; None for another one."""
    engine = service.registry.engines.get(status.name)
    if engine is None:
        return None
    left, info = status.idle_seconds_left, engine.model.info
    ends = _NEVER if left is None else datetime.now(UTC) + timedelta(seconds=left)
    return {
        "name": tagged(status.name),
        "model": tagged(status.name),
        "size": status.memory_bytes,
        "size_vram": 0,
        "digest": digest(status, info),
        "details": details(info),
        "expires_at": ends.isoformat(),
        "context_length": engine.context,
    }


def modified_at(info: Facts | None) -> str:
    """The time at which a model's files were written; the year 1970 if it is not known."""
    return datetime.fromtimestamp(info.created if info else 0, UTC).isoformat()


def digest(status: ModelStatus, info: ModelInfo | None) -> str:
    """A name for the files of a model: other files have another one.

    It comes from paths, sizes and times, because reading large files would take minutes.
    """
    stamps = {} if info is None else {str(path): stamp for path, stamp in info.stamps.items()}
    return sha256(repr((status.source, sorted(stamps.items()))).encode()).hexdigest()


def details(info: Facts | None) -> Json:
    """`details` of a model; without values if nothing is known of it."""
    is_gguf = info is not None and info.path.suffix == ".gguf"
    family = info.architecture if info else ""
    return {
        "parent_model": "",
        "format": "" if info is None else "gguf" if is_gguf else "safetensors",
        "family": family,
        "families": [family] if family else None,
        "parameter_size": _rounded(info.parameters) if info else "",
        "quantization_level": info.quantisation if info else "",
    }


def _rounded(parameters: int) -> str:
    """The number of weights as Ollama writes it, such as `134.5M`."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if parameters >= size:
            return f"{parameters / size:.1f}{unit}"
    return str(parameters)
