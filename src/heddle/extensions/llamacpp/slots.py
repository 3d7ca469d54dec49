"""llama.cpp's `POST /slots/{id}`: saves the prefix of a slot to a file, restores or erases it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.errors import InvalidRequestError, UnsupportedRouteError
from heddle.extensions.llamacpp.settings import LlamaCppSettings
from heddle.extensions.llamacpp.slot_files import (
    erase_slot,
    restore_slot,
    save_slot,
    slot_directory,
    slot_path,
)
from heddle.server.generate.dispatch import own_salt
from heddle.server.http.access import ADMIN
from heddle.server.http.encoding import json_response
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from heddle.engine import Engine
    from heddle.server.generate.service import Service
    from heddle.server.generate.usage import Json


class SlotFileRequest(Schema):
    """Body of `POST /slots/{id_slot}`. `action=erase` needs none."""

    filename: str
    model: str | None = None
    cache_salt: str | None = None


def routes(service: Service) -> APIRouter:
    """The routes of one service.

    Raises:
        ConfigError: the directory of `slot_save_path` cannot be used.
    """
    router = APIRouter()
    text = service.config.of(LlamaCppSettings).slot_save_path
    directory = slot_directory(text) if text else None
    one_at_a_time = asyncio.Lock()  # each holds a thread, perhaps until a slot is free

    @router.post("/slots/{id_slot}", openapi_extra=takes(SlotFileRequest), dependencies=[ADMIN])
    async def slot(
        request: Request, id_slot: str, action: str = "", model: str | None = None
    ) -> Response:
        """Save the prefix of a slot's last request to a file, restore it, or erase it.

        `action` is `save`, `restore` or `erase`. Only requests with the same salt see a prefix.
        """
        if directory is None:
            raise UnsupportedRouteError(
                "this server does not support slot actions; start it with --slot-save-path DIR"
            )
        if action == "erase":
            engine, salt = service.served(model).engine, own_salt(None, request, service)
            number = _slot(id_slot, engine)
            async with one_at_a_time:
                erased = await asyncio.to_thread(erase_slot, engine, number, salt)
            return json_response({"id_slot": number, "n_erased": erased})
        if action not in ("save", "restore"):
            raise InvalidRequestError(
                f"action must be save, restore or erase, got {action[:80]!r}", param="action"
            )
        body, engine = await service.take(
            request, SlotFileRequest, lambda body, served: (body, served.engine)
        )
        number, path = _slot(id_slot, engine), slot_path(directory, body.filename)
        salt = own_salt(body.cache_salt, request, service)
        act = save_slot if action == "save" else restore_slot
        async with one_at_a_time:
            began = time.perf_counter()
            tokens, size = await asyncio.to_thread(act, engine, number, path, salt)
            spent = (time.perf_counter() - began) * 1e3
        answer: Json = {"id_slot": number, "filename": body.filename}
        if action == "save":
            answer |= {"n_saved": tokens, "n_written": size, "timings": {"save_ms": spent}}
        else:
            answer |= {"n_restored": tokens, "n_read": size, "timings": {"restore_ms": spent}}
        return json_response(answer)

    return router


def _slot(text: str, engine: Engine) -> int:
    """The number of a slot.

    Raises:
        InvalidRequestError: the model has no such slot.
    """
    slots = engine.config.slots
    if text.isascii() and text.isdigit() and len(text) < 5 and int(text) < slots:
        return int(text)
    raise InvalidRequestError(
        f"id_slot must be a number from 0 to {slots - 1}, got {text[:20]!r}", param="id_slot"
    )
