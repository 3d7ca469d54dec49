"""uvicorn's HTTP protocol, with a limit to how long the head of a request may take.

uvicorn has none: connections that send nothing, or a header now and then, would stay for ever, and
each takes a file descriptor. What comes after the head has limits of its own, the keep-alive of
uvicorn, `body_timeout` and `send_timeout`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio


class HeadTimeoutProtocol(H11Protocol):
    """Closes a connection whose next request has begun, or never did, and has no whole head yet."""

    HEAD_SECONDS: ClassVar[float] = 30

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """asyncio."""
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        """asyncio."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the head is there, or was none
            self._stop()
        elif self._timer is None:
            self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio."""
        self._stop()
        super().connection_lost(exc)

    def _start(self) -> None:
        self._timer = self.loop.call_later(self.HEAD_SECONDS, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
