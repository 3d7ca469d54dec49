"""The routes that list and describe models: `/api/tags`, `/api/ps`, `/api/show`, `/api/version`.

Every name has a tag. Names of models with a colon have one already; the others get `:latest`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.server.generate.service import LATEST
from heddle.server.http.encoding import json_response

if TYPE_CHECKING:
    from heddle.engine.loading import ModelInfo
    from heddle.engine.model_status import ModelStatus
    from heddle.server.generate.service import Service

Json = dict[str, Any]

API_VERSION = "0.33.0"
"""Version of Ollama whose API this is. Some clients refuse versions that are too old for them."""


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

    return router


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


def modified_at(info: ModelInfo | None) -> str:
    """When a model's files were written; the year 1970 for a model that is not loaded."""
    return datetime.fromtimestamp(info.created if info else 0, UTC).isoformat()


def digest(status: ModelStatus, info: ModelInfo | None) -> str:
    """A name for the files of a model: other files have another one.

    It comes from paths, sizes and times, because reading large files would take minutes.
    """
    stamps = {} if info is None else {str(path): stamp for path, stamp in info.stamps.items()}
    return sha256(repr((status.source, sorted(stamps.items()))).encode()).hexdigest()


def details(info: ModelInfo | None) -> Json:
    """`details` of a model; without values if the model is not loaded."""
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
