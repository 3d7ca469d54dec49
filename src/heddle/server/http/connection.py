"""Cancels work when its client closes the connection, and sends bodies until then."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed the connection before its answer was complete."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Cancel `work` if the client closes the connection first.

    `receive` belongs to a request whose body has been read: only the disconnect can still arrive.

    Raises:
        ClientGoneError: the client closed the connection.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


class StreamedResponse(Response, ABC):
    """A response whose body is sent as it comes, until it ends or the client leaves."""

    def __init__(self, media_type: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]

    @abstractmethod
    async def send_body(self, send: Send) -> None:
        """Send the body, up to its last message."""

    @abstractmethod
    def close(self) -> None:
        """End what makes the body. Called once, however the response ends."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            await unless_gone(receive, self.send_body(send))
        except ClientGoneError:
            pass
        finally:
            self.close()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
