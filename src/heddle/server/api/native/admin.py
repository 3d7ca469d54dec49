"""Routes of the model, health, metrics and slots."""

from __future__ import annotations

from asyncio import to_thread
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import PlainTextResponse, Response

from heddle.server.api.native.metrics import Metrics, Source
from heddle.server.http.encoding import json_response

if TYPE_CHECKING:
    from heddle.engine.telemetry import ActivitySnapshot
    from heddle.server.generate.service import Service


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()
    engine = service.engine
    exported = Metrics([Source(engine, service.backlog)])

    @router.get("/v1/models")
    async def models() -> Response:
        """List the loaded model under its id and under each alias."""
        models = [_model(service, name) for name in service.names]
        page = {"has_more": False, "first_id": models[0]["id"], "last_id": models[-1]["id"]}
        return json_response({"object": "list", "data": models, **page})

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        """Describe the loaded model."""
        return json_response(_model(service, service.model_name(name)))

    @router.get("/health", responses={503: {"description": "The engine has stopped or failed."}})
    @router.head("/health", include_in_schema=False)  # some health checkers send HEAD
    async def health() -> Response:
        """Report 200 while the engine serves requests, 503 after it has stopped or failed.

        `model_file` tells whether the model's file has changed on disk since it was loaded. Answers
        do not depend on the changed file, because the model is in memory.
        """
        health = engine.health
        if health.poison is not None:
            report = {"status": "poisoned", "reason": health.poison.reason}
            return json_response(report, status=503)
        if engine.closed:
            return json_response({"status": "stopped"}, status=503)
        file = await to_thread(engine.model.file_state)  # a file system may be slow
        return json_response({"status": "ok"} | ({} if file is None else {"model_file": file}))

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Export metrics in Prometheus' text format."""
        return Response(exported.exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @router.get("/slots")
    async def slots() -> Response:
        """List the state of each slot. Each has the engine's activity in `engine`."""
        now = engine.snapshot()
        shared = {"engine": _activity(now.activity)}
        return json_response(
            [asdict(slot) | {"state": slot.state.value} | shared for slot in now.slots]
        )

    return router


def _activity(now: ActivitySnapshot) -> dict[str, Any]:
    """Rates of the last 5 s, and the step in flight or the last one."""
    step = now.step
    return {
        "utilisation": now.utilisation,
        "tokens_per_second": now.tokens_per_second,
        "prompt_tokens_per_second": now.prompt_tokens_per_second,
        "step": step
        and {
            "kind": step.kind.value,
            "prompt_tokens": step.prompt_tokens,
            "decodes": step.decodes,
            "sequences": step.sequences,
        },
    }


def _model(service: Service, name: str) -> dict[str, Any]:
    """The model under one of its names, with the fields of OpenAI's and Anthropic's APIs.

    Anthropic's values of `lifecycle` are `active`, `deprecated` and `retired`. Requests to a
    `retired` model fail.
    """
    info = service.engine.model.info
    return {
        "id": name,
        "object": "model",
        "created": info.created,
        "owned_by": "heddle",
        "root": str(info.path),
        "max_model_len": service.engine.context,
        "architecture": info.architecture,
        "quantisation": info.quantisation,
        "kv_type": service.engine.config.kv_type,
        "parameters": info.parameters,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(info.created, UTC).isoformat(),
        "lifecycle": "retired" if service.engine.closed else "active",
        "max_input_tokens": service.engine.context,
        "max_tokens": service.engine.context,
    }
