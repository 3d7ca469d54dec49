"""Messages between a process and its child, over a socket that only these two have."""

from __future__ import annotations

import select
import struct
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    import socket

    from heddle.extensions.processes.children.messages import Message

MessageT = TypeVar("MessageT")

_HEAD = struct.Struct("=I")
"""The length of a message: at most 4 GiB."""

_ENCODER = msgspec.msgpack.Encoder()


class ChannelClosedError(Exception):
    """The other process has ended, or closed the channel."""


class ChannelSilentError(Exception):
    """The other process has sent nothing for too long."""


class Channel(Generic[MessageT]):
    """One end of the socket. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket, received: Any) -> None:
        """`received` is the union of the messages that this end takes."""
        self._connection = connection
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(received)
        self._sending = threading.Lock()
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            ChannelClosedError: nobody can receive it.
        """
        content = bytearray(_HEAD.size)
        _ENCODER.encode_into(message, content, _HEAD.size)
        _HEAD.pack_into(content, 0, len(content) - _HEAD.size)
        try:
            with self._sending:
                self._connection.sendall(content)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def has_message(self, seconds: float) -> bool:
        """Whether a message, or the end of the channel, comes within so many seconds."""
        return bool(self._readable.poll(seconds * 1e3))

    def receive(self, seconds: float | None = None) -> MessageT:
        """Wait for the next message.

        Raises:
            ChannelClosedError: there will be none.
            ChannelSilentError: nothing came for `seconds`.
            msgspec.MsgspecError: the message is none that this end takes.
        """
        (length,) = _HEAD.unpack(self._read(_HEAD.size, seconds))
        return self._decoder.decode(self._read(length, seconds))

    def close(self) -> None:
        """Idempotent. The other process has ended, so that no thread sends for long."""
        with self._sending:
            self._connection.close()

    def _read(self, count: int, seconds: float | None) -> bytearray:
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
        return parts
