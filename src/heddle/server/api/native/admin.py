"""Routes of health, metrics and slots."""

from __future__ import annotations

import time
from asyncio import to_thread
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import PlainTextResponse, Response

from heddle.errors import NoSlotError, UnsupportedRouteError
from heddle.server.api.native.metrics import Metrics
from heddle.server.http.encoding import json_response
from heddle.server.http.fields import is_on

if TYPE_CHECKING:
    from heddle.engine.observation.telemetry import ActivitySnapshot, SlotSnapshot
    from heddle.server.generate.service import Service


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()
    exported = Metrics(service.registry, service.backlog, service.config)
    started = {"process-start-time-unix": str(int(time.time()))}  # llama.cpp's header

    @router.get("/health", responses={503: {"description": "The engine has stopped or failed."}})
    @router.head("/health", include_in_schema=False)  # some health checkers send HEAD
    async def health() -> Response:
        """Report 200 while engines serve requests, 503 after one has stopped or failed.

        `model_file` tells whether the file of the default model has changed on disk since it was
        loaded. Answers do not depend on the changed file, because the model is in memory.
        """
        engines = service.registry.engines
        for engine in engines.values():
            if (poison := engine.health.poison) is not None:
                report = {"status": "poisoned", "reason": poison.reason}
                return json_response(report, status=503)
        if service.registry.closed or any(engine.closed for engine in engines.values()):
            return json_response({"status": "stopped"}, status=503)
        default = engines.get(service.registry.default)
        # In a thread: a file system may be slow.
        file = None if default is None else await to_thread(default.model.file_state)
        return json_response({"status": "ok"} | ({} if file is None else {"model_file": file}))

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Export metrics in Prometheus' text format."""
        _check_on(service.config.metrics_route, "metrics")
        content = exported.exposition()
        return Response(content, media_type=CONTENT_TYPE_PLAIN_0_0_4, headers=started)

    @router.get("/slots", responses={503: {"description": "No slot is free."}})
    async def slots(model: str | None = None, fail_on_no_slot: str = "0") -> Response:
        """List the state of each slot of a model. Each has the engine's activity in `engine`.

        With `fail_on_no_slot` this is a 503 if no slot is free, as in llama.cpp.
        """
        _check_on(service.config.slots_route, "slots")
        engine = service.probed(model)
        now = engine.snapshot()
        if is_on(fail_on_no_slot) and all(slot.request is not None for slot in now.slots):
            raise NoSlotError("no slot is free; try again later")
        shared = {"engine": _activity(now.activity)}
        return json_response(
            [
                asdict(slot) | {"state": slot.state.value} | _native(slot, engine.context) | shared
                for slot in now.slots
            ]
        )

    return router


def _check_on(is_on: bool, name: str) -> None:
    """
    Raises:
        UnsupportedRouteError: the settings turn the route off.
    """
    if not is_on:
        raise UnsupportedRouteError(
            f"GET /{name} is off on this server; start it without --no-{name}-route"
        )


def _native(slot: SlotSnapshot, context: int) -> dict[str, Any]:
    """Further fields of a slot, under llama.cpp's names."""
    busy, prompt = slot.request is not None, min(slot.computed, slot.prompt_tokens)
    done, most = slot.generated_tokens, slot.most_output
    remaining = -1 if most is None else most - done
    return {
        "id": slot.index,
        "id_task": slot.request if busy else -1,
        "n_ctx": context,
        "speculative": False,
        "is_processing": busy,
        "n_prompt_tokens": slot.prompt_tokens,
        "n_prompt_tokens_processed": max(0, prompt - slot.cached_tokens),
        "n_prompt_tokens_cache": slot.cached_tokens,
        "next_token": [{"has_next_token": busy, "n_remain": remaining, "n_decoded": done}],
    }


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
