"""Heddle's own API for operators, as the server joins it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.admin import loading, prefix_cache, slots
from heddle.server.generate.api import Api

if TYPE_CHECKING:
    from fastapi import APIRouter

    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


def _routes(service: Service, _dispatcher: Dispatcher) -> list[APIRouter]:
    return [loading.routes(service), slots.routes(service), prefix_cache.routes(service)]


API = Api(_routes)
