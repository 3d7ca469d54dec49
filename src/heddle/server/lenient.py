"""Unknown fields of a body under `--lenient`: ignored, and named in the answer's Warning header.

Load generators and old clients send fields that no one here knows. Values that are wrong, and
fields that are known and not supported, are refused as ever.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel
from starlette.datastructures import MutableHeaders

if TYPE_CHECKING:
    from pydantic import ValidationError
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

S = TypeVar("S", bound=BaseModel)

_IGNORED = "heddle.ignored_fields"
"""Where a request's ASGI scope has the list of fields that were ignored."""
_MOST_NAMED = 20
_MOST_FAULTS = 1000
_HARMLESS = re.compile(r"[^A-Za-z0-9_.-]")


class TellIgnored:
    """Adds the header to answers whose request had unknown fields."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        ignored: list[str] = []

        async def send_with_warning(message: Message) -> None:
            if message["type"] == "http.response.start" and ignored:
                text = f'299 heddle "ignored unknown parameters: {", ".join(ignored)}"'
                MutableHeaders(scope=message)["warning"] = text
            await send(message)

        await self._app({**scope, _IGNORED: ignored}, receive, send_with_warning)


def parse_leniently(raw: bytes, schema: type[S], error: ValidationError, scope: Scope) -> S:
    """The body without its unknown fields, after `error` was found with them.

    Raises:
        pydantic.ValidationError: something else is wrong.
    """
    parsed = schema.model_validate_json(raw, extra="ignore")
    few = error.error_count() <= _MOST_FAULTS
    names = _names(error) if few else ["too many to name"]
    scope[_IGNORED].extend(names[:_MOST_NAMED])
    return parsed


def _names(error: ValidationError) -> list[str]:
    """Names of the unknown fields, each once, of characters and a length that a header may have."""
    found = (
        str(fault["loc"][-1])
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
        if fault["type"] == "extra_forbidden"
    )
    return list(dict.fromkeys(_HARMLESS.sub("?", name[:40]) for name in found))
