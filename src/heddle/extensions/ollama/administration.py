"""The routes that fetch and delete models, and those of Ollama that this server refuses.

The first two are admin routes. A client may fetch the models that it may load: those of the
catalogue, and with `--hub-models` those of the Hugging Face hub.
"""

from __future__ import annotations

import asyncio
import threading
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from heddle.errors import HeddleError, UnsupportedRouteError
from heddle.extensions.ollama.errors import ollama_error_body
from heddle.extensions.ollama.fetching import delete, fetch
from heddle.extensions.ollama.fields import NamingBody
from heddle.parameters import Api
from heddle.server.generate.service import LATEST, without_host
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.access import ADMIN
from heddle.server.http.encoding import LINES, json_response, line
from heddle.server.http.schema import takes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from heddle.server.generate.service import Service

Json = dict[str, Any]

_SECONDS = 0.1
"""Shortest time between two lines of progress."""
_REFUSED = {
    "/api/create": "models cannot be made here; quantise with POST /v1/models/quantize",
    "/api/copy": "models have no copies; start the server with --alias for another name",
    "/api/push": "models cannot be published from here",
    "/api/blobs/{digest}": "files cannot be sent over HTTP; put them into --models-dir",
}
"""Routes of Ollama that this server does not have, and the way out."""


@decided(Api.OLLAMA_PULL)
class PullRequest(NamingBody):
    """Body of `POST /api/pull`: a model of the catalogue, or `hf.co/ORG/NAME[:QUANT]`."""

    stream: bool | None = None


@decided(Api.OLLAMA_DELETE)
class DeleteRequest(NamingBody):
    """Body of `DELETE /api/delete`."""


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()
    registry = service.registry

    @router.post("/api/pull", openapi_extra=takes(PullRequest), dependencies=[ADMIN])
    async def pull(request: Request) -> Response:
        """Fetch a model, and report the progress. If the client leaves, the download continues."""
        body = await service.bodies.take(request, PullRequest, lambda body: body)
        source = registry.source_of(_source(body.named(), service))
        pulling = Pulling(service, source)
        if body.stream is False:
            return json_response(await pulling.result())
        return StreamingResponse(pulling.lines(), media_type=LINES)

    @router.delete("/api/delete", openapi_extra=takes(DeleteRequest), dependencies=[ADMIN])
    async def remove(request: Request) -> Response:
        """Delete a fetched model from its cache. Its accepted requests finish first."""
        body = await service.bodies.take(request, DeleteRequest, lambda body: body)
        await asyncio.to_thread(delete, registry, service.name_of(body.named()))
        return Response()

    async def refuse(request: Request) -> Response:
        path: str = request.scope["route"].path
        raise UnsupportedRouteError(f"{path} is not supported by this server: {_REFUSED[path]}")

    for path in _REFUSED:
        router.add_api_route(path, refuse, methods=["POST", "HEAD"], include_in_schema=False)
    return router


def _source(name: str, service: Service) -> str:
    """The name of a model to fetch, in Heddle's spelling."""
    if name in service.registry:
        return name
    bare = name.removesuffix(LATEST)
    short = without_host(bare)
    return short if short == bare else f"hf:{short}"


class Pulling:
    """One download in a thread, and its progress. Implements `heddle.weights.progress.Progress`."""

    def __init__(self, service: Service, source: str) -> None:
        self._registry = service.registry
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[Json | HeddleError] = asyncio.Queue()
        self._digest = f"sha256:{sha256(source.encode()).hexdigest()}"
        self._total: int | None = None
        self._shown_at = 0.0

    async def result(self) -> Json:
        """Wait for the end.

        Raises:
            HeddleError: the download failed.
        """
        async for report in self._reports():
            if isinstance(report, HeddleError):
                raise report
        return {"status": "success"}

    async def lines(self) -> AsyncIterator[bytes]:
        """A line for each report. The last one is the success or the error."""
        async for report in self._reports():
            yield line(ollama_error_body(report) if isinstance(report, HeddleError) else report)

    async def _reports(self) -> AsyncIterator[Json | HeddleError]:
        yield {"status": "pulling manifest"}
        threading.Thread(target=self._fetch, name="heddle-pull", daemon=True).start()
        while True:
            report = await self._lines.get()
            yield report
            if isinstance(report, HeddleError) or report["status"] == "success":
                return

    def _fetch(self) -> None:
        try:
            fetch(self._registry, self._source, self)
        except HeddleError as error:
            self._put(error)
        except Exception as error:
            self._put(HeddleError(f"the download failed: {error}"))
        else:
            self._put({"status": "success"})

    def _put(self, report: Json | HeddleError) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lines.put_nowait, report)

    def note(self, text: str) -> None:
        """See `Progress`."""
        self._put({"status": text})

    def start(
        self, label: str, total: int | None, *, quick: bool = False, unit: str = "bytes"
    ) -> None:
        """See `Progress`."""
        self._total = total
        self._report(0)

    def update(self, done: int) -> None:
        """See `Progress`."""
        if time.monotonic() >= self._shown_at + _SECONDS:
            self._report(done)

    def part(self, name: str, done: int, total: int) -> None:
        """See `Progress`."""

    def finish(self) -> None:
        """See `Progress`."""

    def _report(self, done: int) -> None:
        self._shown_at = time.monotonic()
        size = {} if self._total is None else {"total": self._total}
        names = {"status": f"pulling {self._source}", "digest": self._digest}
        self._put({**names, **size, "completed": done})
