"""Builds the HTTP application of loaded models from all APIs and the edge around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from heddle.config import ServerConfig
from heddle.doors import extensions, refer
from heddle.engine.streaming.streams import Backlog
from heddle.server.api import native, openai
from heddle.server.generate.dispatch import Dispatcher
from heddle.server.generate.service import Service
from heddle.server.generate.vendor_fields.table import CONSTRAINTS
from heddle.server.http import errors
from heddle.server.http.access import Access, OpenRoute, is_admin_route
from heddle.server.http.body import Bodies
from heddle.server.http.description import Application
from heddle.server.http.edge import Edge
from heddle.server.http.keys import keys_of
from heddle.server.http.versions import Spellings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from heddle.engine import Engine
    from heddle.hosting.registry import Registry
    from heddle.server.generate.api import Api
    from heddle.server.http.edge import Reader
    from heddle.server.http.keys import Keys


def apis() -> list[Api]:
    """OpenAI's API, Heddle's own, and those of extensions."""
    others = [refer(one) for extension in extensions().values() for one in extension.apis]
    return [openai.API, native.API, *others]


def create_app(registry: Registry, config: ServerConfig | None = None) -> FastAPI:
    """Make an application that serves the models of `registry`. The caller closes the registry.

    Raises:
        ConfigError: the file of API keys cannot be read, or an extension's reader of records cannot
            use the settings.
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
    app.state.access = access = Access(keys, service.config.host)
    shapes = [(route.path, api.errors) for route, api in served]
    shapes += [(path, api.errors) for api in served_apis for path in api.unserved]
    app.state.error_shapes = errors.ErrorShapes(shapes)
    own = [route for router, _ in routers for route in router.routes]
    app.add_middleware(
        Edge,
        access=access,
        spellings=Spellings([*own, *app.routes]),
        open_routes={one.path: one for one, _ in served if isinstance(one, OpenRoute)},
        origins=service.config.cors,
        readers=_readers(service.config),
    )
    errors.install(app)
    for router, _ in routers:
        app.include_router(router)
    return app


def use_keys(app: FastAPI, keys: Keys) -> None:
    """Let the application know these keys from now on, and no others. Any thread may call this."""
    app.state.access.use(keys)
    if isinstance(app, Application):
        app.use(keys)


def _readers(config: ServerConfig) -> list[Reader]:
    """The readers of records that extensions bring and the settings ask for."""
    made = [refer(one)(config) for extension in extensions().values() for one in extension.readers]
    return [reader for reader in made if reader is not None]


def _prepare(_name: str, engine: Engine) -> None:
    """Compute after the load what would delay running streams later."""
    engine.model.tokenizer.grammars.prepare()
    _ = engine.fingerprint
