"""Runs the server until a signal stops it, and lets running answers end.

The first Ctrl-C or SIGTERM starts the shutdown:

1. New requests get 503, and `/health/ready` says that the server stops. Running requests get
   `ServerConfig.drain` seconds. Then the server accepts no new connections.
2. The engine closes. This ends every stream with an error that its client can read.
3. The server cancels the remaining requests: bodies that still arrive, grammars that still compile,
   clients that do not read. It answers them with an error if the answer has not begun.

A second Ctrl-C skips the wait.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import time
from typing import TYPE_CHECKING

import uvicorn

from heddle.server.http.edge import stop_admission
from heddle.server.http.listener import refused
from heddle.server.http.protocol import HTTPProtocol, most_connections
from heddle.server.http.tls import HandshakeFirst, Handshakes, tls_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from types import FrameType

    from fastapi import FastAPI

    from heddle.closing import Closing
    from heddle.config import ServerConfig

_END_SECONDS = 2
"""Seconds that answers have to end after the engine closes, and again after they are cancelled."""

_TICK = 0.1
"""Seconds between checks for a second signal. uvicorn checks for the first signal as often."""

_ACCEPTED = 128
"""Connections that the event loop accepts at once. asyncio reports the first connection after it
accepted all of them. Without free file descriptors it logs a traceback for each connection."""

_QUEUED = 2048
"""Connections that wait in the kernel until the server accepts them."""

_KEEP_ALIVE = 75
"""Seconds that an idle connection stays open. Clients close idle connections earlier, so no request
arrives at a connection that the server is closing."""


def serve(
    app: FastAPI,
    models: Closing,
    config: ServerConfig,
    listener: socket.socket,
    *,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve `app` until a signal stops the server, and close the socket.

    Closes `models` only if answers still run after `ServerConfig.drain` seconds.

    Raises:
        ConfigError: another process has listened on the address since it was bound; or the files of
            TLS cannot be used.
    """
    server = Server(app, models, config, on_ready)
    try:
        server.run(sockets=[listener])
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise refused(config, error) from None
    finally:
        listener.close()


class Server(uvicorn.Server):
    """uvicorn's server, with a shutdown that waits for streams and then ends them."""

    def __init__(
        self,
        app: FastAPI,
        models: Closing,
        config: ServerConfig,
        on_ready: Callable[[], None],
    ) -> None:
        """
        Raises:
            ConfigError: the files of TLS cannot be used.
        """
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                http=_protocol_of(config),  # type: ignore[arg-type]  # it is called, no more
                lifespan="off",
                log_config=None,
                log_level="error",  # uvicorn warns of each request that is not HTTP
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE,
                ws="none",
                proxy_headers=bool(config.trusted_proxy),
                forwarded_allow_ips=forms_of(config.trusted_proxy),
                backlog=min(_ACCEPTED, most_connections() // 4),
            )
        )
        self._models = models
        self._app = app
        self._drain = config.drain
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then call `on_ready`."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_QUEUED)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Store a signal. uvicorn would raise the signal again at the end. Here the exit code of a
        requested stop is 0.
        """
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new requests, wait for answers, then end the remaining answers."""
        stop_admission(self._app)
        deadline = time.monotonic() + self._drain
        ending = asyncio.create_task(self._end_answers(deadline))
        await self._wait_until(deadline)
        await super().shutdown(sockets)  # until no connection is left, or force_exit
        if self.force_exit:
            await ending
        ending.cancel()
        await self._abort_connections()

    async def _abort_connections(self) -> None:
        """Abort the connections whose clients read too slowly to take the end of their answers."""
        for connection in self.server_state.connections.copy():
            connection.transport.abort()
        await asyncio.sleep(0)  # the event loop closes their sockets in its next round

    async def _wait_until(self, deadline: float) -> None:
        """Wait until no request runs, or for a second signal, until a time of `time.monotonic`."""
        while self.server_state.tasks and time.monotonic() < deadline and not self.force_exit:
            await asyncio.sleep(_TICK)

    async def _end_answers(self, deadline: float) -> None:
        """Wait until the deadline, then end all answers, so that uvicorn waits no longer."""
        while time.monotonic() < deadline and not self.force_exit:
            await asyncio.sleep(_TICK)
        # Not awaited yet: `close` returns when pages are on disk. Answers end long before.
        closing = asyncio.create_task(asyncio.to_thread(self._models.close))
        await self._wait_for_answers()
        for task in self.server_state.tasks:
            task.cancel()
        await self._wait_for_answers()
        self.force_exit = True
        await closing

    async def _wait_for_answers(self) -> None:
        if tasks := self.server_state.tasks.copy():
            await asyncio.wait(tasks, timeout=_END_SECONDS)


def forms_of(networks: Sequence[str]) -> list[str]:
    """Networks as a socket shows them: one that hears IPv6 too shows IPv4 as ::ffff:ADDRESS."""
    known = [ipaddress.ip_network(text) for text in networks]
    mapped = [
        f"::ffff:{one.network_address}/{96 + one.prefixlen}" for one in known if one.version == 4
    ]
    return [*map(str, known), *mapped]


def _protocol_of(config: ServerConfig) -> Callable[..., asyncio.Protocol]:
    """Makes the protocol of each new connection."""
    tls = tls_of(config)
    if tls is None:
        return HTTPProtocol
    handshakes = Handshakes(tls, most_connections() // 4)
    return lambda **options: HandshakeFirst(handshakes, HTTPProtocol(**options))
