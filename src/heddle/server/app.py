"""Builds the HTTP application of loaded models from all APIs and middleware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from heddle.config import ServerConfig
from heddle.doors import extensions, refer
from heddle.engine.backlog import Backlog
from heddle.server.api import native, openai
from heddle.server.generate.dispatch import Dispatcher
from heddle.server.generate.service import Service
from heddle.server.generate.vendor_fields.table import CONSTRAINTS
from heddle.server.http import errors
from heddle.server.http.access import CheckKeys, is_admin_route
from heddle.server.http.access_log import AccessLog
from heddle.server.http.body import Bodies
from heddle.server.http.cors import Cors
from heddle.server.http.description import Application
from heddle.server.http.hints import TellIgnored
from heddle.server.http.keys import keys_of
from heddle.server.http.lenient import WarnOfUnknown
from heddle.server.http.request_id import RequestId
from heddle.server.http.stopping import RefuseWhileStopping
from heddle.server.http.tracing import start_tracing
from heddle.server.http.versions import BothSpellings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from heddle.engine import Engine
    from heddle.engine.registry import Registry
    from heddle.server.generate.api import Api


def apis() -> list[Api]:
    """OpenAI's API, Heddle's own, and those of extensions."""
    others = [refer(one) for extension in extensions().values() for one in extension.apis]
    return [openai.API, native.API, *others]


def create_app(registry: Registry, config: ServerConfig | None = None) -> FastAPI:
    """Make an application that serves the models of `registry`. The caller closes the registry.

    Raises:
        ConfigError: the file of API keys cannot be read, or `otel_endpoint` cannot be used.
    """
    config = config or ServerConfig()
    registry.on_loaded(_prepare)
    service = Service(registry, config, Backlog(config.backlog), Bodies(config, CONSTRAINTS))
    dispatcher = Dispatcher(service)
    served_apis = apis()
    routers = [(router, api) for api in served_apis for router in api.routes(service, dispatcher)]
    served = [
        (route, api)
        for router, api in routers
        for route in router.routes
        if isinstance(route, Route)
    ]
    keys = keys_of(service.config)

    def names() -> tuple[str, ...]:
        return () if service.config.any_model else service.names

    schemas = {route.path_format: api.errors.schema for route, api in served}
    streams = {route.path_format: api.stream for route, api in served}
    admin = {
        (route.path_format, method.lower())
        for route, _ in served
        if is_admin_route(route)
        for method in route.methods or ()
    }
    app = Application(names, schemas, streams, admin, keys)
    app.add_middleware(errors.AnswerBugs)  # innermost: the others add headers to its responses
    app.add_middleware(RefuseWhileStopping)
    app.add_middleware(CheckKeys, keys=keys, host=service.config.host)
    if service.config.lenient:
        app.add_middleware(WarnOfUnknown)
    app.add_middleware(TellIgnored)
    if service.config.cors:  # outside of the keys: a browser's preflight request has no key
        app.add_middleware(Cors, origins=service.config.cors)
    shapes = [(route.path, api.errors) for route, api in served]
    shapes += [(path, api.errors) for api in served_apis for path in api.unserved]
    app.add_middleware(errors.ChooseErrorShape, shapes=shapes)
    # Outside of the keys and of the error shapes, because they compare paths with routes.
    own = [route for router, _ in routers for route in router.routes]
    app.add_middleware(BothSpellings, routes=[*own, *app.routes])
    readers = [start_tracing(config.otel_endpoint)] if config.otel_endpoint else []
    app.add_middleware(AccessLog, readers=readers)
    app.add_middleware(RequestId)  # outermost: a response to a request without a key has an id too
    errors.install(app)
    for router, _ in routers:
        app.include_router(router)
    return app


def _prepare(_name: str, engine: Engine) -> None:
    """Compute after the load what would delay running streams later."""
    engine.model.tokenizer.prepare_grammars()
    _ = engine.fingerprint
