"""The route that quantises a model of the server to a new file, as `heddle quantize` does."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.config import MAX_MODEL_NAME
from heddle.errors import HeddleError, OverloadedError
from heddle.extensions.quantise.quantisation import Quantisation, target_of
from heddle.extensions.quantise.target import Target  # noqa: TC001  pydantic reads annotations
from heddle.hub_place import hub_place
from heddle.server.generate.api import Api
from heddle.server.http.access import ADMIN
from heddle.server.http.connection import StreamedResponse, unless_gone
from heddle.server.http.encoding import LINES, json_response, line
from heddle.server.http.error_shape import error_body
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from starlette.types import Send

    from heddle.extensions.quantise.quantisation import Json
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service

REPEAT_SECONDS = 1.0
"""Seconds after which a report is sent again. A client that has left is found out by a write."""
_RETRY_SECONDS = 60.0


class QuantizeRequest(Schema):
    """Body of `POST /v1/models/quantize`."""

    model: str = Field(
        min_length=1,
        max_length=MAX_MODEL_NAME,
        description="A model whose files are on the server: a known one, a file or folder of"
        " `--models-dir`, an alias, or a name of the hub that was fetched.",
    )
    name: str = Field(
        min_length=1, max_length=200, description="Name of the new file in `--models-dir`."
    )
    type: Target = Field(
        strict=False, description="Type of matrices; embedding and output keep more bits."
    )
    threads: int = Field(0, ge=0, le=1024, description="Threads; 0: one per usable core.")
    stream: bool = Field(True, description="Report the progress; false: answer at the end.")


def _routes(service: Service, _dispatcher: Dispatcher) -> list[APIRouter]:
    router = APIRouter()
    registry = service.registry
    place = threading.Lock()

    def begin(body: QuantizeRequest) -> Quantisation:
        target = target_of(registry, body.name)
        hub = hub_place(registry.engine_config)
        asked = {
            "source": registry.source_of(body.model),
            "kind": body.type.value,
            "threads": body.threads,
            "cache": str(hub.cache),
            "endpoint": hub.endpoint,
        }
        if not place.acquire(blocking=False):
            raise OverloadedError(
                "this server quantises a model already; wait for its end",
                retry_after=_RETRY_SECONDS,
            )
        begun = Quantisation(registry, body.model, target, asked, place.release)
        begun.start()
        return begun

    @router.post("/v1/models/quantize", openapi_extra=takes(QuantizeRequest), dependencies=[ADMIN])
    async def quantize(request: Request) -> Response:
        """Quantise a model to a new file, and report the progress in lines of JSON.

        If the client leaves, the work ends and no file stays. One model is quantised at a time, in
        a process of low priority.
        """
        body = await service.bodies.take(request, QuantizeRequest, lambda body: body)
        begun = begin(body)
        try:
            first = begun.report() if body.stream else begun.result()
            report = await unless_gone(request.receive, first)
        except BaseException:
            begun.cancel()
            raise
        return _Lines(begun, report) if body.stream else json_response(report)

    return [router]


class _Lines(StreamedResponse):
    """The response with a line for each report. The last one is the success or the error."""

    def __init__(self, begun: Quantisation, first: Json) -> None:
        super().__init__(LINES)
        self._begun, self._first = begun, first

    def close(self) -> None:
        self._begun.cancel()

    async def send_body(self, send: Send) -> None:
        report = self._first
        try:
            while True:
                await send(_part(report))
                if report["status"] == "success":
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(REPEAT_SECONDS):
                        report = await self._begun.report()
        except HeddleError as error:
            await send(_part(error_body(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _part(report: Json) -> Json:
    return {"type": "http.response.body", "body": line(report), "more_body": True}


API = Api(_routes, stream=LINES)
