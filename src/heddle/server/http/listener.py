"""Binds the address on which a server listens, and says who hears it.

It imports no web framework: a server binds first, so that a busy port is an error at once.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import TYPE_CHECKING

from heddle.errors import ConfigError

if TYPE_CHECKING:
    from heddle.config import ServerConfig

_SEND_BUFFER = 256 * 1024
"""Bytes that the kernel buffers for a client that does not read: 1,000 tokens of a stream. The
kernel's default is 4 MB."""


def bind(config: ServerConfig) -> socket.socket:
    """Bind a socket to the address of `config`. The socket does not listen yet.

    Callers bind before they load a model, so that a busy port is an error at once. Until the server
    listens, the kernel refuses connections.

    Raises:
        ConfigError: the address is in use, not allowed, or not an address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise refused(config, error) from None
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
        raise refused(config, error) from None
    return listener


def url(listener: socket.socket, config: ServerConfig) -> str:
    """The URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if config.tls_cert else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a server that listens on `host` hears this machine only. Looks names up."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    addresses = (ipaddress.ip_address(str(row[4][0]).partition("%")[0]) for row in found)
    return all(is_loopback_address(address) for address in addresses)


def is_loopback_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address, or the IPv4 address that it maps, is one of this machine."""
    mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:127.0.0.1
    return (mapped or address).is_loopback


def refused(config: ServerConfig, error: OSError) -> ConfigError:
    """The error of a server that cannot listen on the address of `config`."""
    place = f"{config.host} port {config.port}"
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"{place} is in use; choose another port with --port", param="port")
    return ConfigError(f"cannot listen on {place}: {error.strerror or error}", param="host")
