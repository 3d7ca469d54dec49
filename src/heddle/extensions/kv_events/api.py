"""Starts the publisher with the server. It adds no route."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from weakref import finalize

from heddle.extensions.kv_events.settings import KvEventsSettings
from heddle.server.generate.api import Api

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import APIRouter

    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


def _routes(service: Service, _dispatcher: Dispatcher) -> Sequence[APIRouter]:
    settings = service.config.of(KvEventsSettings)
    if settings.kv_events:
        from heddle.extensions.kv_events.publisher import Publisher

        name = settings.kv_events_id or socket.gethostname()
        publisher = Publisher(settings.kv_events, settings.kv_events_replay, name)
        finalize(service.registry, publisher.close)
        service.registry.on_unloaded(publisher.remove)
        service.registry.on_loaded(publisher.add)
    return ()


API = Api(_routes)
