"""The route of slots: what each computes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.errors import NoSlotError, UnsupportedRouteError
from heddle.extensions.admin.settings import AdminSettings
from heddle.server.http.encoding import json_response
from heddle.server.http.fields import is_on

if TYPE_CHECKING:
    from heddle.engine.observation.telemetry import ActivitySnapshot, SlotSnapshot
    from heddle.server.generate.service import Service


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.get("/slots", responses={503: {"description": "No slot is free."}})
    async def slots(model: str | None = None, fail_on_no_slot: str = "0") -> Response:
        """List the state of each slot of a model. Each has the engine's activity in `engine`.

        With `fail_on_no_slot` this is a 503 if no slot is free, as in llama.cpp.
        """
        if not service.config.of(AdminSettings).slots_route:
            raise UnsupportedRouteError(
                "GET /slots is off on this server; start it without --no-slots-route"
            )
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
