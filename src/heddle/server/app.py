"""The HTTP application of one engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.middleware.cors import CORSMiddleware

from heddle.config import ServerConfig
from heddle.engine.backlog import Backlog
from heddle.server.api.anthropic import messages
from heddle.server.api.llamacpp import infill
from heddle.server.api.native import admin, prefix_cache
from heddle.server.api.native.metrics import Metrics
from heddle.server.api.openai import completions as generation
from heddle.server.api.openai import embeddings
from heddle.server.api.openai import responses as response_routes
from heddle.server.api.vllm import tokenize as tokens
from heddle.server.generate.dispatch import Answering
from heddle.server.generate.service import Service
from heddle.server.http import errors
from heddle.server.http.body import Bodies
from heddle.server.http.description import Application
from heddle.server.http.hints import HEADER, TellIgnored
from heddle.server.http.keys import RequireKey, keys_of
from heddle.server.http.lenient import WarnOfUnknown
from heddle.server.http.request_id import RequestId
from heddle.server.http.versions import BothSpellings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from heddle.engine import Engine


def create_app(engine: Engine, config: ServerConfig | None = None) -> FastAPI:
    """An application that serves `engine`. The caller closes the engine.

    Raises:
        ConfigError: the file of API keys cannot be read.
    """
    config = config or ServerConfig()
    backlog = Backlog(config.backlog)
    service = Service(engine, config, Metrics(engine, backlog), backlog, Bodies(config))
    answering = Answering(service)
    routers = [
        generation.routes(service, answering),
        infill.routes(service, answering),
        response_routes.routes(service, answering),
        messages.routes(service, answering),
        embeddings.routes(service),
        tokens.routes(service),
        admin.routes(service),
        prefix_cache.routes(service),
    ]
    keys = keys_of(service.config)
    named = () if service.config.any_model else service.names
    app = Application(named, needs_key=bool(keys))
    app.add_middleware(errors.AnswerBugs)  # innermost: its answers get the headers of the others
    if keys:
        app.add_middleware(RequireKey, keys=keys)
    if service.config.lenient:
        app.add_middleware(WarnOfUnknown)
    app.add_middleware(TellIgnored)
    if service.config.cors:  # outside the keys: a browser asks first, and without one
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.config.cors,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after", "warning", HEADER],
        )
    own = [route for router in routers for route in router.routes]
    # Outside the keys, which know `/health` as it is here.
    app.add_middleware(BothSpellings, routes=[*own, *app.routes])
    app.add_middleware(RequestId)  # outermost: what a key is missing for has an id as well
    errors.install(app)
    for router in routers:
        app.include_router(router)
    return app
