"""TLS: the certificate in the settings, and connections that begin with a handshake.

uvicorn can speak TLS itself. But then asyncio makes a protocol only after the handshake, so nothing
would limit connections that never complete it, except 60 s of patience. So this module accepts
plain connections and upgrades them: it knows all connections that wait, and closes the oldest.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.errors import ConfigError
from heddle.folders import user_path

if TYPE_CHECKING:
    from heddle.config import ServerConfig

_SHUTDOWN_SECONDS = 2.0
"""Seconds that a closing connection waits for the client's `close_notify`."""


def tls_of(config: ServerConfig) -> ssl.SSLContext | None:
    """The certificate and key in the settings; None without them.

    Raises:
        ConfigError: one of the two is missing, cannot be read, is not PEM, or does not fit the
            other.
    """
    if not (config.tls_cert or config.tls_key):
        return None
    for given, missing in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if not getattr(config, missing):
            raise ConfigError(f"{given} needs {missing}; set both or neither", param=missing)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    paths = {name: user_path(getattr(config, name), name) for name in ("tls_cert", "tls_key")}
    for name, path in paths.items():
        try:
            with path.open("rb") as file:
                file.read(1)
        except OSError as error:
            reason = f"cannot read {str(path)!r}: {error.strerror}"
            raise ConfigError(f"{name}: {reason}", param=name) from None
    try:
        context.load_cert_chain(paths["tls_cert"], paths["tls_key"], password=_refuse_password)
    except ssl.SSLError as error:
        raise _unusable(config, error) from None
    return context


def _refuse_password() -> str:
    raise ConfigError(
        "tls_key: the key has a password, and a server cannot ask for it; write the key without"
        " one, for example with `openssl pkey -in KEY -out PLAIN`",
        param="tls_key",
    )


def _unusable(config: ServerConfig, error: ssl.SSLError) -> ConfigError:
    """The error for files that OpenSSL refuses. It does not say which of both it means."""
    if error.reason == "KEY_VALUES_MISMATCH":
        reason = "the key does not belong to the certificate"
    else:
        reason = (
            "they must be PEM files, one with the certificate and those that sign it, and one with"
            f" its private key ({error.reason or error})"
        )
    return ConfigError(
        f"tls_cert {config.tls_cert!r} and tls_key {config.tls_key!r} cannot be used: {reason}",
        param="tls_cert",
    )


class Handshakes:
    """The TLS connections of one server that have not completed their handshake."""

    SECONDS: ClassVar[float] = 10
    """Longest time of a handshake."""

    def __init__(self, context: ssl.SSLContext, most: int) -> None:
        """`most` handshakes may run at once. For one more, the oldest connection is closed."""
        self._context = context
        self._most = most
        self._waiting: dict[asyncio.Transport, None] = {}  # in order of their arrival

    async def run(self, plain: asyncio.Transport, protocol: asyncio.Protocol) -> Any:
        """Shake hands on `plain`. Returns the secure transport; None if the handshake fails.

        `protocol` gets what the client sends right after the handshake.
        """
        self._waiting[plain] = None
        if len(self._waiting) > self._most:
            next(iter(self._waiting)).abort()
        try:
            return await asyncio.get_running_loop().start_tls(
                plain,
                protocol,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self.SECONDS,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        except OSError:  # not TLS, no common cipher, too slow, or the client has left
            return None
        finally:
            del self._waiting[plain]


class HandshakeFirst(asyncio.Protocol):
    """A connection until its handshake is complete. Then another protocol takes over.

    `start_tls` may deliver bytes before it returns: a client sends its request together with the
    end of the handshake. This protocol keeps them.
    """

    def __init__(self, handshakes: Handshakes, following: asyncio.Protocol) -> None:
        """`following` takes over."""
        self._handshakes = handshakes
        self._following = following
        self._early = bytearray()  # at most one read of a socket
        self._task: asyncio.Task[None] | None = None  # the event loop refers to it only weakly

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._task = asyncio.get_running_loop().create_task(self._begin(transport))

    def data_received(self, data: bytes) -> None:
        """asyncio."""
        self._early += data

    async def _begin(self, plain: asyncio.Transport) -> None:
        secure = await self._handshakes.run(plain, self)
        if secure is None or secure.is_closing():
            plain.abort()
            return
        secure.set_protocol(self._following)
        self._following.connection_made(secure)
        if self._early:
            self._following.data_received(bytes(self._early))
