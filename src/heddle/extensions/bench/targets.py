"""Decides which servers a load may reach."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from heddle.errors import ConfigError
from heddle.extensions.bench.process import server_process
from heddle.extensions.bench.remote import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.extensions.bench.exchange import Server


def is_url(target: str) -> bool:
    """Whether `target` is an address of a server. Otherwise it names a model."""
    return target.startswith(("http://", "https://"))


def external_server(
    target: str,
    model: str | None,
    key: str | None,
    protect: str,
    *,
    external: bool,
    force: bool,
) -> Server | None:
    """The server at `target`, if it may get a load; None if `target` names a model.

    The arguments are options of the command. `protect` is a list separated by commas; see
    `check_target`.

    Raises:
        ConfigError: the URL must not get a load, or `model` is given without a URL.
        PeerError: as `connect`.
    """
    if not is_url(target):
        if model is not None:
            raise ConfigError("--model names a model of the server at URL; there is no URL")
        return None
    entries = [each.strip() for each in protect.split(",") if each.strip()]
    check_target(target, entries, external=external, force=force)
    return connect("server", target, model, pid=server_process(target), key=key)


def check_target(url: str, protect: Sequence[str], *, external: bool, force: bool) -> None:
    """Refuse a URL that must not get a load. Nothing is sent to it.

    Args:
        url: address of a server that this program did not start.
        protect: ports, hosts, or HOST:PORT. A host is also protected under its other names that
            have the same address.
        external: allow servers that this program did not start.
        force: allow protected servers, too.

    Raises:
        ConfigError: the URL must not get a load, or an entry of `protect` is none of the three.
    """
    host, port = _address(url)
    for entry in protect:
        if _covers(entry, host, port) and not force:
            raise ConfigError(
                f"{url} is protected by --protect {entry}; load another server, or add --force"
            )
    if not (external or force):
        raise ConfigError(
            f"this command did not start the server at {url}, and a load disturbs its users; add"
            " --external if it may get the load"
        )


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        parts, port = None, 0
    if parts is None or not parts.hostname:
        raise ConfigError(f"{url!r} is not an http or https address, such as http://127.0.0.1:8080")
    return parts.hostname, port


def _covers(entry: str, host: str, port: int) -> bool:
    if entry.isdecimal():
        return int(entry) == port
    try:
        parts = urlsplit(f"//{entry}")
        name, wanted = parts.hostname, parts.port
    except ValueError:
        name, wanted = None, None
    if not name or parts.path:
        raise ConfigError(f"--protect: {entry!r} is not a port, a host or HOST:PORT")
    return wanted in (None, port) and bool(_names(name) & _names(host))


def _names(host: str) -> set[str]:
    """The host's name and its addresses."""
    name = host.lower().rstrip(".")
    try:
        found = socket.getaddrinfo(name, None)
    except OSError:
        return {name}
    return {name} | {str(address[0]) for *_, address in found}
