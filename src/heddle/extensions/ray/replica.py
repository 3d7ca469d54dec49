"""A replica: the whole server of a deployment, in one process, behind its ASGI application."""

from __future__ import annotations

import logging
import os
from importlib import metadata
from typing import TYPE_CHECKING

from heddle.errors import ConfigError, ModelPoisonedError
from heddle.extensions.processes.children.places import use_place
from heddle.extensions.ray.answering import answer
from heddle.extensions.ray.gang import GroupPlace
from heddle.hosting.registry import Registry
from heddle.server.app import create_app
from heddle.server.http.edge import stop_admission

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from heddle.extensions.ray.config import Deployed
    from heddle.extensions.ray.exchange import Exchange, Piece

_log = logging.getLogger(__name__)

_SIGNS = 4
"""Signs of life of a replica within the time after which a silent one is lost."""


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
        if deployed.deploy.ranks > 1:
            use_place(GroupPlace(deployed.deploy))
        self._name = serve.get_replica_context().replica_id.unique_id
        self._registry = Registry(deployed.registry, deployed.engine)
        try:
            for name in deployed.models:
                self._registry.begin_known(self._registry.add(name)).result()
            self._app = create_app(self._registry, deployed.server)
        except BaseException:
            self._registry.close()
            raise
        self._alive_every = deployed.deploy.silence / _SIGNS

    async def answer(self, exchange: Exchange) -> AsyncGenerator[Piece]:
        """The pieces of an answer.

        A replica whose model has failed for good ends its process. If it lived on until Ray's next
        checks, it would fail all requests that come, as many as its empty queue attracts.
        """
        async for piece in answer(self._app, exchange, self._name, self._alive_every):
            yield piece
            if piece.failure and (reason := self._poison()):
                _log.error("this replica ends, and Ray starts another: %s", reason)
                os._exit(1)

    def check_health(self) -> None:
        """Ray ends a replica whose check fails, and starts another.

        Raises:
            ModelPoisonedError: a model has failed, and nothing loads it again here.
        """
        if reason := self._poison():
            raise ModelPoisonedError(reason)

    def _poison(self) -> str:
        """Why a model has failed that nothing loads again here; empty if there is none."""
        if self._registry.config.auto_recover:
            return ""
        poisons = (engine.health.poison for engine in self._registry.engines.values())
        return next((poison.reason for poison in poisons if poison is not None), "")

    def __del__(self) -> None:
        """Ray calls this when no request runs any more."""
        if hasattr(self, "_app"):
            stop_admission(self._app)
            self._registry.close()
