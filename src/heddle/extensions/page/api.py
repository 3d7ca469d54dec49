"""The page, as the server joins it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.page import files, markdown_route, parameters
from heddle.extensions.page.settings import PageSettings
from heddle.server.generate.api import Api

if TYPE_CHECKING:
    from fastapi import APIRouter

    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


def _routes(service: Service, _dispatcher: Dispatcher) -> list[APIRouter]:
    if not service.config.of(PageSettings).page:
        return []
    return [files.routes(), markdown_route.routes(service), parameters.routes(service)]


API = Api(_routes)
