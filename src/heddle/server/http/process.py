"""Serving until told to stop: the listening socket, and an end that running streams survive.

The first Ctrl-C or SIGTERM closes the door: no new connections, and what runs gets
`ServerConfig.drain` seconds. Then the engine closes, which ends every stream with an error its
client can read. What is left after that (a body that still arrives, a grammar that compiles, a
client that does not read) is cancelled, which answers it as well where it can be. A second Ctrl-C
skips the waiting.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from typing import TYPE_CHECKING

import uvicorn

from heddle.errors import ConfigError
from heddle.server.http.protocol import HTTPProtocol, most_connections

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from fastapi import FastAPI

    from heddle.config import ServerConfig
    from heddle.engine import Engine

_LAST_WORDS = 2
"""Seconds that answers have to end once the engine is closed, and once more when cancelled."""

_TICK = 0.1
"""Seconds between looks for a second signal, as often as uvicorn looks for the first."""

_SEND_BUFFER = 256 * 1024
"""Bytes that the kernel keeps for a client that does not read: 1,000 tokens of a stream. By itself
it would keep 4 MB for each."""

_ACCEPTED = 128
"""Connections that the event loop accepts in one go. asyncio accepts so many before it tells of the
first, and where file descriptors run out it logs a traceback for each of the others."""

_QUEUED = 2048
"""Connections that wait in the kernel to be accepted."""

_KEEP_ALIVE = 75
"""Seconds an idle connection stays open: longer than clients keep theirs, so that it is they who
close it and no request meets a closing socket."""


def bind(config: ServerConfig) -> socket.socket:
    """A socket that holds the address but does not listen yet.

    Made before a model is loaded, so that a busy port is found at once; clients are refused, not
    kept waiting, until the server is ready.

    Raises:
        ConfigError: the address is in use, not allowed or not one of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _refused(config, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit these two:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            listener.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, config.send_timeout * 1000
            )
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _refused(config, error) from None
    return listener


def url(listener: socket.socket) -> str:
    """Where a bound socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    app: FastAPI,
    engine: Engine,
    config: ServerConfig,
    listener: socket.socket,
    *,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve `app` until a signal says stop, and close the socket.

    Closes `engine` only to end answers that outlast `ServerConfig.drain`.

    Raises:
        ConfigError: another process began to listen on the address since it was bound.
    """
    server = Server(app, engine, config, on_ready)
    try:
        server.run(sockets=[listener])
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise _refused(config, error) from None
    finally:
        listener.close()


class Server(uvicorn.Server):
    """uvicorn, with a shutdown that first lets streams end and then ends them."""

    def __init__(
        self,
        app: FastAPI,
        engine: Engine,
        config: ServerConfig,
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                http=HTTPProtocol,
                lifespan="off",
                log_config=None,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE,
                ws="none",
                backlog=min(_ACCEPTED, most_connections() // 4),
            )
        )
        self._engine = engine
        self._drain = config.drain
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say so when connections are accepted."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_QUEUED)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal. uvicorn would raise it again at the end; here a stop asked for is no
        failure, and the exit code is 0.
        """
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the door, wait for the streams, end those that are left."""
        ending = asyncio.create_task(self._end_answers())
        await super().shutdown(sockets)  # until no connection is left, or force_exit
        if self.force_exit:
            await ending
        ending.cancel()

    async def _end_answers(self) -> None:
        """Give answers the time they have, then end them. uvicorn waits for no one after that."""
        deadline = time.monotonic() + self._drain
        while time.monotonic() < deadline and not self.force_exit:
            await asyncio.sleep(_TICK)
        # Not awaited: it returns when pages are on disk, and answers end long before.
        closing = asyncio.create_task(asyncio.to_thread(self._engine.close))
        await self._wait_for_answers()
        for task in self.server_state.tasks:
            task.cancel()
        await self._wait_for_answers()
        self.force_exit = True
        await closing

    async def _wait_for_answers(self) -> None:
        if tasks := self.server_state.tasks.copy():
            await asyncio.wait(tasks, timeout=_LAST_WORDS)


def _refused(config: ServerConfig, error: OSError) -> ConfigError:
    place = f"{config.host} port {config.port}"
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"{place} is in use; choose another with --port", param="port")
    return ConfigError(f"cannot listen on {place}: {error.strerror or error}", param="host")
