"""Hints: fields that this server ignores and that cannot make an answer wrong.

They ask for speed, price, effort, storage or bookkeeping. Agents and editors send them to every
server. The server accepts a hint and names it in the answer's `x-heddle-ignored` header. A field
that constrains the answer is never a hint: the server supports it or refuses it by name
(`lenient.py`). The table of vendors' fields (`generate/vendor_fields/`) says which they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import AfterValidator, ValidationInfo
from starlette.datastructures import MutableHeaders

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-heddle-ignored"

_IGNORED = "heddle.ignored_fields"
"""Key of the list of ignored fields in a request's ASGI scope."""


@dataclass(frozen=True, slots=True)
class Notes:
    """Findings of the validation of a body; the context of pydantic's validators.

    Attributes:
        ignored: names of the fields without effect.
        lenient: whether refused fields have no effect, unless an answer without them is wrong.
    """

    ignored: list[str]
    lenient: bool = False


def hint(*neutral: object, path: str = "") -> AfterValidator:
    """A validator that notes the field as ignored, unless its value is null or in `neutral`.

    `path` is the full name of a field inside of an object.
    """

    def note(value: object, info: ValidationInfo) -> object:
        # Types are compared too: in Python False == 0 and True == 1.
        asks = value is not None and not any(
            type(value) is type(ok) and value == ok for ok in neutral
        )
        if asks and info.context is not None:
            info.context.ignored.append(path or info.field_name)
        return value

    return AfterValidator(note)


def ignore(scope: Scope, name: str) -> None:
    """Note a field of a request as ignored, in addition to those that validation notes."""
    ignored(scope).append(name)


def ignored(scope: Scope) -> list[str]:
    """The list of ignored fields."""
    names: list[str] = scope.setdefault(_IGNORED, [])
    return names


class TellIgnored:
    """Middleware that names ignored fields in the header of the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        names: list[str] = []

        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start" and names:
                MutableHeaders(scope=message)[HEADER] = ", ".join(dict.fromkeys(names))
            await send(message)

        await self._app({**scope, _IGNORED: names}, receive, send_with_header)
