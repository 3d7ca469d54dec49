"""A replica: the whole server of a deployment, in one process, behind its ASGI application."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import asdict
from importlib import metadata
from socket import gethostname
from typing import TYPE_CHECKING

from heddle.errors import ConfigError, ForbiddenError, ModelPoisonedError
from heddle.extensions.processes.children.places import use_place
from heddle.extensions.ray.answering import answer
from heddle.extensions.ray.exchange import FULL, Piece, joined
from heddle.extensions.ray.loads import Requests, load_of
from heddle.extensions.ray.logs import log_as_serve
from heddle.extensions.ray.publishing import Publishing
from heddle.extensions.ray.ray_metrics import RayMetrics
from heddle.hosting.registry import Registry
from heddle.server.app import create_app
from heddle.server.http.edge import is_stopping, stop_admission

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fastapi import FastAPI
    from starlette.requests import Request

    from heddle.config import ServerConfig
    from heddle.engine.health import Poison
    from heddle.extensions.ray.config import Deployed
    from heddle.extensions.ray.exchange import Exchange
    from heddle.extensions.ray.routing.published import Published

_log = logging.getLogger(__name__)

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
        from ray.serve import metrics

        own = metadata.version("heddle")
        if own != deployed.version:
            raise ConfigError(
                f"the machine {gethostname()} has Heddle {own}, and the deployment was made with"
                f" {deployed.version}. Install the same version on all machines"
            )
        log_as_serve(deployed.server.log_level)
        if deployed.deploy.ranks > 1:
            from heddle.extensions.ray.gang import GroupPlace

            use_place(GroupPlace(deployed.deploy))
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
        self._requests = Requests()
        self._most = deployed.engine.slots + deployed.engine.queue
        self._publishing = Publishing(self._registry)
        self._metrics = asyncio.get_running_loop().create_task(
            RayMetrics(metrics).export_forever(self._app)
        )

    async def answer(self, exchange: Exchange) -> AsyncGenerator[Piece]:
        """The pieces of an answer. A failed model ends the process, and Ray starts another.

        Each ingress counts what it has sent. With several, a replica may get too many requests.
        """
        if self._requests.running >= self._most:
            yield Piece(self._name, failure=FULL)
            return
        computed = False  # whether the prompt is in the cache
        with self._requests.one():
            async for piece in answer(self._app, exchange, self._name, self._alive_every):
                if not computed and (piece.tokens or piece.is_last):
                    computed = True
                    self._publishing.computed(exchange.key)
                yield piece
                if piece.failure and (poison := self._poison()) is not None:
                    _log.error("this replica ends, and Ray starts another: %s", poison.reason)
                    # A replica that fails at once has the shortest queue, and gets most requests.
                    end_process()

    async def tell(self, exchange: Exchange) -> Piece:
        """The answer to a question about this replica, which does not count as a request."""
        pieces = answer(self._app, exchange, self._name, self._alive_every)
        return joined([piece async for piece in pieces])

    def record_routing_stats(self) -> Published:
        """What this replica publishes, for the router of each ingress."""
        return self._publishing.publish(draining=is_stopping(self._app))

    def record_autoscaling_stats(self) -> dict[str, float]:
        """The load of this replica, for Ray's autoscaler."""
        now = [engine.snapshot() for engine in self._registry.engines.values()]
        return asdict(load_of(now, self._requests.idle_seconds()))

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
        if hasattr(self, "_metrics"):
            self._metrics.cancel()
            stop_admission(self._app)
            self._registry.close()
