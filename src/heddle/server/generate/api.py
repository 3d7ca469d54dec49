"""What an API package exports: its routes, and the shape of its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from heddle.server.http.error_shape import DEFAULT, ErrorShape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastapi import APIRouter

    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service

Routes: TypeAlias = "Callable[[Service, Dispatcher], Sequence[APIRouter]]"


@dataclass(frozen=True, slots=True)
class Api:
    """One API that is served.

    Attributes:
        routes: makes the routes for one service.
        errors: the shape of its errors.
        unserved: path patterns that belong to the API and are not served. Their errors have the
            API's shape.
    """

    routes: Routes
    errors: ErrorShape = DEFAULT
    unserved: Sequence[str] = ()
