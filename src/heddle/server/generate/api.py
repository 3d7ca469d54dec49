"""The interface of an API package: its routes and the shape of its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from heddle.server.http.encoding import EVENTS
from heddle.server.http.error_shape import DEFAULT, ErrorShape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastapi import APIRouter

    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service

Routes: TypeAlias = "Callable[[Service, Dispatcher], Sequence[APIRouter]]"


@dataclass(frozen=True, slots=True)
class Api:
    """An API that the server offers.

    Attributes:
        routes: makes the API's routes for a service.
        errors: shape of the API's errors.
        stream: media type of the API's streams.
        unserved: path patterns of the API for which this server has no route. Their errors have the
            API's shape.
    """

    routes: Routes
    errors: ErrorShape = DEFAULT
    stream: str = EVENTS
    unserved: Sequence[str] = ()
