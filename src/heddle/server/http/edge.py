"""The edge of the server: what happens to each request before and after its route.

It is the only middleware, around all routes. Before the route it makes the request's record, logs
the request, spells its path as the routes do, and refuses it without a valid key, or while the
server stops. It adds headers to the start of each response. After the route it logs the end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.routing import Match

from heddle.errors import AuthenticationError, EngineClosedError, HeddleError
from heddle.server.http.access import OPEN_PATHS
from heddle.server.http.access_log import log_end, log_start, starts
from heddle.server.http.cors import Cors
from heddle.server.http.errors import error_response, refuse, stopping
from heddle.server.http.hints import HEADER
from heddle.server.http.record import ID_HEADERS, RECORD, RequestRecord, id_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from heddle.server.http.access import Access, OpenRoute
    from heddle.server.http.versions import Spellings

Reader: TypeAlias = "Callable[[RequestRecord], None]"
"""Gets the record of each request after its end, in the event loop."""

log = logging.getLogger(__name__)


def stop_admission(app: Starlette) -> None:
    """Refuse all requests from now on."""
    app.state.stopping = True


def is_stopping(app: Starlette) -> bool:
    """Whether the server refuses requests because it stops."""
    return getattr(app.state, "stopping", False)


class Edge:
    """The middleware of an application."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        spellings: Spellings,
        open_routes: Mapping[str, OpenRoute] = MappingProxyType({}),
        origins: Sequence[str] = (),
        readers: Sequence[Reader] = (),
    ) -> None:
        """
        Args:
            app: has the routes.
            access: knows the server's keys.
            spellings: of the paths of all routes.
            open_routes: routes whose requests need no key, by path.
            origins: the setting `cors`.
            readers: get all records.
        """
        self._app = app
        self._access = access
        self._spellings = spellings
        self._open_routes = open_routes
        # A browser's preflight request has no key, so CORS is outside of the check of keys.
        self._inside: ASGIApp = Cors(self._admit, origins) if origins else self._admit
        self._readers = readers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord.of(scope, send)
        if starts.isEnabledFor(logging.INFO):
            log_start(record)
        path = scope["path"]
        if path not in self._spellings.paths:
            path = self._spellings.declared(path)

        async def send_start(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message = _with_headers(message, record)
            await send(message)

        try:
            await self._inside({**scope, "path": path, RECORD: record}, receive, send_start)
        except BaseException as error:
            record.error = record.error or f"{type(error).__name__}: {error}"
            raise
        finally:
            record.seconds = time.perf_counter() - record.started
            log_end(record)
            for reader in self._readers:
                reader(record)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the route unless the request is refused. Answer what the route does not catch.

        Starlette would answer unexpected exceptions outside of the edge, so that the response had
        no request id and no CORS headers.
        """
        record: RequestRecord = scope[RECORD]
        try:
            refusal = self._refusal(scope, record)
            if refusal is None:
                await self._app(scope, receive, send)
            else:
                await refuse(Request(scope), refusal)(scope, receive, send)
        except asyncio.CancelledError:  # the server stops and cancels this task
            record.fail(stopping())
            if not record.status:
                await error_response(stopping(), scope)(scope, receive, send)
        except Exception as error:
            if record.status:
                raise
            where = ascii(scope["path"])
            log.exception("%s %s %s failed", record.request_id, scope["method"], where)
            shaped = HeddleError(f"internal error: {type(error).__name__}")
            await refuse(Request(scope), shaped)(scope, receive, send)

    def _refusal(self, scope: Scope, record: RequestRecord) -> HeddleError | None:
        """Why a request is refused before its body is read; None: it is not.

        Health checkers have no key, and want to know that the server stops.
        """
        open_route = self._open_routes.get(scope["path"])
        is_open = open_route is not None and open_route.matches(scope)[0] is Match.FULL
        if is_open or scope["path"] in OPEN_PATHS:
            return None
        if self._access.looks:
            try:
                record.key = self._access.key_of(scope["headers"])
            except AuthenticationError as error:
                return error
        if getattr(scope["app"].state, "stopping", False):
            return EngineClosedError("the server is stopping; send the request to another one")
        return None


def _with_headers(start: Message, record: RequestRecord) -> Message:
    """The start of a response with the request's id, and the names of fields without effect."""
    sent = [pair for pair in start.get("headers", ()) if pair[0] not in ID_HEADERS]
    message = {**start, "headers": [*sent, *id_headers(record.request_id)]}
    if record.ignored:
        headers = MutableHeaders(raw=message["headers"])
        headers[HEADER] = ", ".join(dict.fromkeys(record.ignored))
        if record.unknown:
            unknown = ", ".join(record.unknown)
            headers["warning"] = f'299 heddle "ignored unknown parameters: {unknown}"'
    return message
