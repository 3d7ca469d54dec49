"""Access by keys: checks keys before bodies are read, and guards admin routes.

An admin route changes the server for all clients: it loads or unloads models, or drops the prefix
cache. A route becomes an admin route by one dependency:

    @router.post("/models/load", dependencies=[ADMIN])

The dependency runs before the route, so a refused client cannot make the server read a body. The
OpenAPI description follows from it, too (`is_admin_route`).

Who may use admin routes:

- With admin keys (`--admin-key`, `--admin-key-file`): requests with an admin key.
- Without admin keys, if the server has no API keys and listens on a loopback address: requests
  whose `Host`, and `Origin` if they have one, is this machine. A web page that points its own name
  at 127.0.0.1 (DNS rebinding), or a reverse proxy for the outside world, sends another `Host`.
- Otherwise nobody.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from fastapi import Depends
from fastapi.routing import APIRoute
from starlette.requests import Request  # noqa: TC002  FastAPI reads annotations of dependencies

from heddle.errors import AuthenticationError, ForbiddenError
from heddle.server.http.listener import is_loopback, is_loopback_address
from heddle.server.http.record import record_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from starlette.datastructures import Headers
    from starlette.routing import BaseRoute

    from heddle.server.http.keys import Key, Keys

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/ready"})
"""Paths that need no key, because health checkers have none."""


class OpenRoute(APIRoute):
    """A route that needs no key, as a file of a page."""


_AUTHORITY = re.compile(
    r"(?:(?P<name>localhost)|(?P<v4>[0-9.]+)|\[(?P<v6>[0-9a-f:.]*:[0-9a-f:.]*)\])(?::(?P<port>[0-9]{1,5}))?",
    re.IGNORECASE,
)

_HOW = "send a valid key as `Authorization: Bearer KEY` or `x-api-key: KEY`"


class Access:
    """The rights of the clients of one server.

    Attributes:
        looks: whether the server has keys, so that requests may have one.
    """

    def __init__(self, keys: Keys, host: str) -> None:
        """`host` is the address that the server listens on."""
        self._is_loopback = is_loopback(host)
        self.use(keys)

    def use(self, keys: Keys) -> None:
        """Know these keys from now on. Any thread may call this."""
        self._admits_local_admins = False  # also while the keys change
        self._keys = keys
        self.looks = not keys.admits_all or keys.has_admin
        self._admits_local_admins = self._is_loopback and not self.looks

    def key_of(self, headers: Iterable[tuple[bytes, bytes]]) -> Key | None:
        """The key of a request with these headers; None without one, if the server needs none.

        Raises:
            AuthenticationError: the server has API keys, and the request has no valid key.
        """
        sent = list(_sent(headers))
        key = self._keys.find(sent)
        if key is None and not self._keys.admits_all:
            raise _not_admitted(sent)
        return key

    def check_admin(self, request: Request) -> None:
        """
        Raises:
            AuthenticationError: the request has no key, or an unknown key.
            ForbiddenError: the request has an ordinary key, or admin routes are off.
        """
        key = record_of(request.scope).key
        if key is not None and key.is_admin:
            return
        if self._keys.has_admin:
            if key is None:
                raise _not_admitted(list(_sent(request.scope["headers"])), "admin key")
            raise ForbiddenError("this route needs an admin key, and the request has an API key")
        if not self._admits_local_admins:
            raise ForbiddenError(
                "admin routes are off, because this server has API keys or listens beyond loopback,"
                " and has no admin key; set --admin-key-file, HEDDLE_ADMIN_KEY or --admin-key"
            )
        for header, text in _foreign(request.headers):
            raise ForbiddenError(
                f"without an admin key, admin routes are open to this machine only, and the"
                f" request's {header} is {text[:100]!r}; send it to 127.0.0.1, or set"
                " --admin-key-file"
            )


def check_admin(request: Request) -> None:
    """
    Raises:
        AuthenticationError, ForbiddenError: the request may not do what admin routes do.
    """
    access: Access = request.app.state.access
    access.check_admin(request)


ADMIN = Depends(check_admin)
"""Makes a route an admin route: `@router.post(path, dependencies=[ADMIN])`."""


def is_admin_route(route: BaseRoute) -> bool:
    """Whether a route is an admin route."""
    return isinstance(route, APIRoute) and ADMIN in route.dependencies


def _foreign(headers: Headers) -> Iterator[tuple[str, str]]:
    """The headers by which a request does not come from this machine, each with its text."""
    hosts, origins = headers.getlist("host"), headers.getlist("origin")
    if len(hosts) != 1 or not _is_this_machine(hosts[0]):
        yield "Host", ", ".join(hosts)
    for origin in origins:
        if not _is_this_machine(origin.removeprefix("https://").removeprefix("http://")):
            yield "Origin", origin


def _is_this_machine(authority: str) -> bool:
    """Whether HOST[:PORT] is a loopback address or localhost.

    A parser of URLs would take userinfo, paths and more, and find a host in them.
    """
    match = _AUTHORITY.fullmatch(authority)
    if match is None or not 0 < int(match["port"] or 1) < 1 << 16:
        return False
    if match["name"]:
        return True
    try:
        address = ipaddress.ip_address(match["v4"] or match["v6"])
    except ValueError:
        return False
    return is_loopback_address(address)


def _not_admitted(sent: list[bytes], what: str = "API key") -> AuthenticationError:
    wrong = f"the {what} is not valid here" if sent else f"an {what} is missing"
    return AuthenticationError(f"{wrong}; {_HOW}")


def _sent(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """The keys in a request's headers. ASGI writes header names in lower case."""
    for name, value in headers:
        if name == b"x-api-key":
            yield value.strip()
        elif name == b"authorization":
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                yield key.strip()
