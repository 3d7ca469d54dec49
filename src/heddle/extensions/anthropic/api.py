"""Anthropic's API: messages and their token counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.anthropic import messages
from heddle.extensions.anthropic.errors import SHAPE
from heddle.server.generate.api import Api

if TYPE_CHECKING:
    from fastapi import APIRouter

    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


def _routes(service: Service, dispatcher: Dispatcher) -> list[APIRouter]:
    return [
        messages.routes(service, dispatcher),
    ]


API = Api(_routes, errors=SHAPE, unserved=("/v1/messages/{rest:path}",))
