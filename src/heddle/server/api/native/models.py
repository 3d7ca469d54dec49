"""Routes of models: list and describe them."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.hosting.status import ModelState
from heddle.server.http.encoding import json_response

if TYPE_CHECKING:
    from heddle.engine import Engine
    from heddle.hosting.status import ModelStatus
    from heddle.server.generate.service import Service


class _ModelConvertor(PathConvertor):
    """A model's name in a path. Some names are those of other routes."""

    regex = "(?!(?:load|reload|unload|quantize|suggest)$).*"


register_url_convertor("model", _ModelConvertor())


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()
    registry = service.registry

    @router.get("/v1/models")
    async def models() -> Response:
        """List all models, the default first, whose entry has its aliases. Then all adapters.

        An adapter's `parent` is the model that it changes. Those in memory have `rank` and `bytes`.
        """
        known = {status.name: status for status in registry.status()}
        found = [described(name, known[name], service) for name in registry.names if name in known]
        adapters = registry.libraries.adapters
        for name in adapters.names:
            model = adapters.model_of(name) or registry.default
            if model in known:
                engine = registry.engines.get(model)
                size = None if engine is None else engine.adapters.sizes.get(name)
                more = {} if size is None else {"rank": size.rank, "bytes": size.bytes}
                found.append(described(name, known[model], service) | {"parent": model} | more)
        ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else {}
        return json_response({"object": "list", "data": found, "has_more": False, **ends})

    @router.get("/v1/models/{name:model}")
    async def model(name: str) -> Response:
        """Describe a model."""
        served = service.name_of(name)
        status = next(status for status in registry.status() if status.name == served)
        return json_response(described(name, status, service))

    return router


def _can_serve(status: ModelStatus, engine: Engine | None, service: Service) -> bool:
    if engine is not None:
        return not engine.closed
    on_demand = service.registry.config.autoload
    return on_demand and status.state in (ModelState.UNLOADED, ModelState.LOADING)


def described(name: str, status: ModelStatus, service: Service) -> dict[str, Any]:
    """A model under one of its names, with the fields of OpenAI's and Anthropic's APIs.

    Anthropic's values of `lifecycle` are `active`, `deprecated` and `retired`. Requests to a
    `retired` model fail.
    """
    engine = service.registry.engines.get(status.name)
    info = None if engine is None else engine.model.info
    default = status.name == service.registry.default
    state = {"value": status.state.value, "progress": status.progress, "reason": status.reason}
    described: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": 0 if info is None else info.created,
        "owned_by": "heddle",
        "root": status.source if info is None else str(info.path),
        "status": {key: value for key, value in state.items() if value is not None},
        "type": "model",
        "display_name": name,
        "aliases": list(service.config.alias) if default else [],
        "tags": list(service.config.tags) if default else [],
        "created_at": datetime.fromtimestamp(info.created if info else 0, UTC).isoformat(),
        "lifecycle": "active" if _can_serve(status, engine, service) else "retired",
        "in_flight": status.in_flight,
        "memory_bytes": status.memory_bytes,
    }
    if engine is None or info is None:
        return described
    memory = engine.model.executor.device_memory
    return described | {
        "device": status.device,
        "device_memory": memory and dataclasses.asdict(memory),
        "uptime_seconds": round(status.uptime_seconds or 0.0, 3),
        "max_model_len": engine.context,
        "architecture": info.architecture,
        "quantisation": info.quantisation,
        "kv_type": engine.config.kv_type,
        "parameters": info.parameters,
        "modalities": {"vision": engine.model.eyes is not None},  # as in llama.cpp's /props
        "max_input_tokens": engine.context,
        "max_tokens": engine.context,
        "meta": {  # llama.cpp's
            "n_vocab": info.vocabulary,
            "n_ctx": engine.context,
            "n_embd": engine.model.shape.width,
            "n_params": info.parameters,
            "size": info.file_bytes,
            "ftype": info.quantisation,
        },
    }
