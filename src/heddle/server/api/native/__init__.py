"""Heddle's own API: models and health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.server.api.native import models, probes
from heddle.server.generate.api import Api

if TYPE_CHECKING:
    from fastapi import APIRouter

    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


def _routes(service: Service, _dispatcher: Dispatcher) -> list[APIRouter]:
    return [models.routes(service), probes.routes(service)]


API = Api(_routes)
