"""Messages between a process and its child, over a socket that only these two have."""

from __future__ import annotations

import select
import struct
import threading
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

_HEAD = struct.Struct("=BQ")


class Life(IntEnum):
    """Messages about the life of a child. Other kinds of messages begin at 16."""

    HELLO = 1
    """The child's versions, as JSON. It is the first message."""
    BEAT = 2
    """The child lives."""
    FAILED = 3
    """The child ends: the reason, as text."""
    CLOSE = 4
    """The parent asks the child to end."""


class ChannelClosedError(Exception):
    """The other process has ended, or closed the channel."""


class ChannelSilentError(Exception):
    """The other process has sent nothing for too long."""


class Channel:
    """One end of the socket. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)

    def send(self, kind: int, content: bytes | memoryview = b"") -> None:
        """Send a message.

        Raises:
            ChannelClosedError: nobody can receive it.
        """
        try:
            with self._sending:
                self._connection.sendall(_HEAD.pack(kind, len(content)) + content)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def has_message(self, seconds: float) -> bool:
        """Whether a message, or the end of the channel, comes within so many seconds."""
        return bool(self._readable.poll(seconds * 1e3))

    def receive(self, seconds: float | None = None) -> tuple[int, bytes]:
        """Wait for the next message.

        Raises:
            ChannelClosedError: there will be none.
            ChannelSilentError: nothing came for `seconds`.
        """
        kind, length = _HEAD.unpack(self._read(_HEAD.size, seconds))
        return kind, self._read(length, seconds)

    def close(self) -> None:
        """Idempotent. The other process has ended, so that no thread sends for long."""
        with self._sending:
            self._connection.close()

    def _read(self, count: int, seconds: float | None) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            if seconds is not None and not self.has_message(seconds):
                raise ChannelSilentError
            try:
                part = self._connection.recv(min(count - len(parts), 1 << 20))
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            if not part:
                raise ChannelClosedError("the other process has closed the channel")
            parts += part
        return bytes(parts)
