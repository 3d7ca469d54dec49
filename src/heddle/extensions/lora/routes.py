"""Routes that load and unload adapters, as vLLM has them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from heddle.errors import ForbiddenError, InvalidRequestError
from heddle.extensions.lora.peft_folder import WEIGHTS
from heddle.extensions.lora.peft_scales import CONFIG
from heddle.server.generate.api import Api
from heddle.server.http.access import ADMIN
from heddle.server.http.schema import Schema, takes
from heddle.weights.confine import is_inside
from heddle.weights.hub.names import parse

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.extensions.lora.library import AdapterLibrary, ModelAdapters
    from heddle.hosting.registry import Registry
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


class LoadAdapter(Schema):
    """Body of `POST /v1/load_lora_adapter`."""

    lora_name: str = Field(min_length=1, max_length=128, description="Its name in requests.")
    lora_path: str = Field(
        min_length=1,
        max_length=4096,
        description="A folder or file below `--models-dir`, or a name of the hub with"
        " `--hub-models`.",
    )
    model: str | None = Field(None, description="The model that it changes; default: the default.")
    load_inplace: bool = Field(False, description="Replace an adapter of this name.")


class UnloadAdapter(Schema):
    """Body of `POST /v1/unload_lora_adapter`."""

    lora_name: str = Field(min_length=1, max_length=128)


def _routes(service: Service, _dispatcher: Dispatcher) -> list[APIRouter]:
    router = APIRouter()
    registry = service.registry
    library = cast("AdapterLibrary", registry.libraries.adapters)

    @router.post("/v1/load_lora_adapter", openapi_extra=takes(LoadAdapter), dependencies=[ADMIN])
    async def load(request: Request) -> Response:
        """Load an adapter, or load it again under its name. Running requests keep the old one."""
        body = await service.bodies.take(request, LoadAdapter, lambda body: body)
        model = service.name_of(body.model)
        engine = await service.engine(request, model)
        adapters = cast("ModelAdapters", engine.adapters)
        source = _source(registry, body.lora_path)
        _check_free(service, library, body)
        own = "" if model == registry.default else model
        await asyncio.to_thread(adapters.replace, body.lora_name, source, own)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @router.post(
        "/v1/unload_lora_adapter", openapi_extra=takes(UnloadAdapter), dependencies=[ADMIN]
    )
    async def unload(request: Request) -> Response:
        """Forget an adapter. Running requests keep it."""
        body = await service.bodies.take(request, UnloadAdapter, lambda body: body)
        library.remove(body.lora_name)
        for engine in registry.engines.values():
            cast("ModelAdapters", engine.adapters).forget(body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return [router]


def _source(registry: Registry, path: str) -> str:
    """The source that a client's `path` means: below the models' folder, or of the hub.

    Raises:
        ForbiddenError: requests may not name it.
    """
    allowed = registry.allowed
    if allowed.folder is not None:
        found = allowed.folder / path
        found = found.parent if found.name == WEIGHTS else found
        if _is_below(found, allowed.folder):
            return str(found)
    if allowed.hub and parse(path) is not None:
        return path
    raise ForbiddenError(
        f"requests may not load the adapter {path[:80]!r}; put it below --models-dir and send the"
        " path there, allow names of the hub with --hub-models, or start with --lora NAME=PATH",
        param="lora_path",
    )


def _is_below(path: Path, folder: Path) -> bool:
    """Whether `path` exists, and its files are in the folder after all links are followed."""
    try:
        return path.exists() and all(
            is_inside(one, folder) for one in (path, path / CONFIG, path / WEIGHTS)
        )
    except (OSError, ValueError):  # the name is too long, or has NUL
        return False


def _check_free(service: Service, library: AdapterLibrary, body: LoadAdapter) -> None:
    """Check that no model, and without `load_inplace` no adapter, has the name of a new one.

    Raises:
        InvalidRequestError: one has it.
    """
    is_adapter = library.model_of(body.lora_name) is not None
    if is_adapter and not body.load_inplace:
        raise InvalidRequestError(
            f"an adapter is named {body.lora_name!r} already; send load_inplace: true to replace"
            " it, or unload it",
            param="lora_name",
        )
    if not is_adapter and body.lora_name in service.names:
        raise InvalidRequestError(
            f"a model is named {body.lora_name!r}; give the adapter another name",
            param="lora_name",
        )


API = Api(_routes)
