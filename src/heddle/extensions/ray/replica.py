"""A replica: the whole server of a deployment, in one process, behind its ASGI application."""

from __future__ import annotations

import os
from importlib import metadata
from typing import TYPE_CHECKING

from heddle.errors import ConfigError, ForbiddenError, ModelPoisonedError
from heddle.extensions.ray.answering import answer
from heddle.hosting.registry import Registry
from heddle.server.app import create_app
from heddle.server.http.edge import stop_admission

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fastapi import FastAPI
    from starlette.requests import Request

    from heddle.config import ServerConfig
    from heddle.engine.health import Poison
    from heddle.extensions.ray.config import Deployed
    from heddle.extensions.ray.exchange import Exchange, Piece

_SIGNS = 4
"""Signs of life of a replica within the time after which a silent one is lost."""


def end_process() -> None:
    """End this process at once. Its answers go on elsewhere."""
    os._exit(1)


class NoAdmin:
    """Refuses what admin routes do, in place of the application's `Access`."""

    def check_admin(self, _request: Request) -> None:
        """
        Raises:
            ForbiddenError: always.
        """
        raise ForbiddenError(
            "a deployment has no admin routes: a request reaches one of its replicas, and the"
            " others would stay as they are. Its models are settings; deploy it again with others"
        )


def app_of(registry: Registry, server: ServerConfig) -> FastAPI:
    """The application of a replica.

    Raises:
        ConfigError: see `create_app`.
    """
    app = create_app(registry, server)
    app.state.access = NoAdmin()  # the edge keeps its own, which checks keys
    return app


class Replica:
    """One replica, for Ray Serve."""

    def __init__(self, deployed: Deployed) -> None:
        """Load the models.

        Raises:
            ConfigError: this machine has another version, or a setting does not fit it.
            HeddleError: a model cannot be loaded.
        """
        from ray import serve

        own = metadata.version("heddle")
        if own != deployed.version:
            raise ConfigError(
                f"this machine has Heddle {own}, and the deployment was made with"
                f" {deployed.version}. Install the same version on all machines"
            )
        self._name = serve.get_replica_context().replica_id.unique_id
        self._registry = Registry(deployed.registry, deployed.engine)
        try:
            for name in deployed.models:
                self._registry.begin_known(self._registry.add(name)).result()
            self._app = app_of(self._registry, deployed.server)
        except BaseException:
            self._registry.close()
            raise
        self._alive_every = deployed.deploy.silence / _SIGNS

    async def answer(self, exchange: Exchange) -> AsyncGenerator[Piece]:
        """The pieces of an answer. A failed model ends the process, and Ray starts another."""
        async for piece in answer(self._app, exchange, self._name, self._alive_every):
            yield piece
            if piece.failure and self._poison() is not None:
                # A replica that fails at once has the shortest queue, and gets most requests.
                end_process()

    def check_health(self) -> None:
        """Ray ends a replica whose check fails, and starts another.

        Raises:
            ModelPoisonedError: a model has failed, and nothing loads it again here.
        """
        poison = self._poison()
        if poison is not None:
            raise ModelPoisonedError(poison.reason)

    def _poison(self) -> Poison | None:
        """Why a model has failed that nothing loads again; None: all models work."""
        if self._registry.config.auto_recover:
            return None
        found = (engine.health.poison for engine in self._registry.engines.values())
        return next(filter(None, found), None)

    def __del__(self) -> None:
        """Ray calls this when no request runs any more."""
        if hasattr(self, "_app"):
            stop_admission(self._app)
            self._registry.close()
