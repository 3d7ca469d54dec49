"""Messages between rank 0 and another rank, over a socket that both processes have."""

from __future__ import annotations

import struct
import threading
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

_HEAD = struct.Struct("=BQ")


class Kind(IntEnum):
    """What a message is. Rank 0 sends those up to CLOSE, the others the rest."""

    SETUP = 1
    """What to load, as JSON: see :class:`heddle.executors.ranks.setup.Setup`."""
    JOIN = 2
    """All ranks have loaded: connect to them."""
    PLAN = 3
    """A step to compute."""
    READ_PAGE = 4
    """Integers: page, pages of the windowed groups."""
    WRITE_PAGE = 5
    """Those integers, then the rank's part of the bytes."""
    READ_SNAPSHOT = 6
    WRITE_SNAPSHOT = 7
    CLOSE = 8
    HELLO = 16
    """Versions and process, as JSON."""
    LOADED = 17
    """Bytes of weights and pages that the rank holds, as JSON."""
    JOINED = 18
    BEAT = 19
    """The process lives."""
    DONE = 20
    """A step is computed: a digest of values that all ranks have alike."""
    CONTENT = 21
    """The rank's part of a page or snapshot."""
    FAILED = 22
    """The rank ends: the reason, as text."""


class ChannelClosedError(Exception):
    """The other process has ended, or closed the channel."""


class Channel:
    """One end of the socket. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """For selectors."""
        return self._connection.fileno()

    def send(self, kind: Kind, content: bytes = b"") -> None:
        """Send a message.

        Raises:
            ChannelClosedError: nobody can receive it.
        """
        try:
            with self._sending:
                self._connection.sendall(_HEAD.pack(kind, len(content)) + content)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def receive(self) -> tuple[Kind, bytes]:
        """Wait for the next message.

        Raises:
            ChannelClosedError: there will be none.
        """
        kind, length = _HEAD.unpack(self._read(_HEAD.size))
        return Kind(kind), self._read(length)

    def close(self) -> None:
        """Idempotent."""
        self._connection.close()

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self._connection.recv(min(count - len(parts), 1 << 20))
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            if not part:
                raise ChannelClosedError("the other process has closed the channel")
            parts += part
        return bytes(parts)
