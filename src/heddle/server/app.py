"""The HTTP application of one engine."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware

from heddle.config import ServerConfig
from heddle.engine.backlog import Backlog
from heddle.server import (
    admin,
    embeddings,
    errors,
    generation,
    infill,
    messages,
    prefix_cache,
    response_routes,
    tokens,
)
from heddle.server.answering import Answering
from heddle.server.body import Bodies
from heddle.server.description import Application
from heddle.server.keys import RequireKey, keys_of
from heddle.server.lenient import TellIgnored
from heddle.server.metrics import Metrics
from heddle.server.service import Service

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from heddle.engine import Engine

_CLIENT_ID = re.compile(r"[\x21-\x7e]{1,128}")


def create_app(engine: Engine, config: ServerConfig | None = None) -> FastAPI:
    """An application that serves `engine`. The caller closes the engine.

    Raises:
        ConfigError: the file of API keys cannot be read.
    """
    config = config or ServerConfig()
    backlog = Backlog(config.backlog)
    service = Service(engine, config, Metrics(engine, backlog), backlog, Bodies(config))
    keys = keys_of(service.config)
    app = Application(engine.model.info.id, needs_key=bool(keys))
    app.add_middleware(errors.AnswerBugs)  # innermost: its answers get the headers of the others
    if keys:
        app.add_middleware(RequireKey, keys=keys)
    if service.config.lenient:
        app.add_middleware(TellIgnored)
    if service.config.cors:  # outside the keys: a browser asks first, and without one
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.config.cors,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after", "warning"],
        )
    app.add_middleware(RequestId)  # outermost: what a key is missing for has an id as well
    errors.install(app)
    answering = Answering(service)
    app.include_router(generation.routes(service, answering))
    app.include_router(infill.routes(service, answering))
    app.include_router(response_routes.routes(service, answering))
    app.include_router(messages.routes(service, answering))
    app.include_router(embeddings.routes(service))
    app.include_router(tokens.routes(service))
    app.include_router(admin.routes(service))
    app.include_router(prefix_cache.routes(service))
    return app


class RequestId:
    """Gives every response an `x-request-id`: the client's own if it sent a sane one.

    Anthropic's clients look for it under the name `request-id`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get("x-request-id", "")
        request_id = sent if _CLIENT_ID.fullmatch(sent) else f"req_{secrets.token_hex(12)}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = headers["request-id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)
