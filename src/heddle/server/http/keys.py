"""API keys: they admit clients, and can separate their prefix caches.

The server keeps SHA-256 digests of keys, so that no log, error or dump can show a key.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import TYPE_CHECKING

from starlette.requests import Request

from heddle.config import check_keys, user_path
from heddle.errors import AuthenticationError, ConfigError
from heddle.server.http.errors import refuse

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

    from heddle.config import ServerConfig

OPEN_PATHS = frozenset({"/health"})
"""Paths that need no key, because health checkers have none."""

_MOST_BYTES = 1 << 20
"""Most bytes of a key file. Without a limit, the read of a device would not end."""

_DIGEST = "heddle.key_digest"
"""Key of the digest of the API key in a request's ASGI scope."""


class ApiKeys:
    """The API keys of one server. Falsy without keys: then the server admits every client."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode("ascii")) for key in keys]

    def __len__(self) -> int:
        return len(self._digests)

    def find(self, sent: Iterable[bytes]) -> bytes | None:
        """The digest of the last valid key among the keys in `sent`; None if no key is valid.

        Compares every sent key with every key of the server, in constant time.
        """
        found = None
        for candidate in map(_digest, sent):
            for digest in self._digests:
                if hmac.compare_digest(candidate, digest):
                    found = digest
        return found


def keys_of(config: ServerConfig) -> ApiKeys:
    """The keys in the settings and in the key file.

    Raises:
        ConfigError: the file cannot be read, has no key, or has a key that no header can carry.
    """
    keys = list(config.api_key)
    if config.api_key_file:
        keys += _read(user_path(config.api_key_file, "api_key_file"))
    return ApiKeys(keys)


def _read(path: Path) -> list[str]:
    """The keys in a file, one per line. Blank lines do not count."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        lines = raw.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"api_key_file: cannot read {str(path)!r}: {reason}", param="api_key_file"
        ) from None
    if len(raw) > _MOST_BYTES:
        raise ConfigError(
            f"api_key_file: {str(path)!r} is longer than {_MOST_BYTES} bytes; name a text file with"
            " one key per line",
            param="api_key_file",
        )
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise ConfigError(
            f"api_key_file: {str(path)!r} has no key; write one key per line",
            param="api_key_file",
        )
    check_keys(keys, "api_key_file")
    return keys


class RequireKey:
    """Middleware that refuses requests without a valid key before it reads their bodies."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        sent = list(_sent(scope["headers"]))
        digest = self._keys.find(sent)
        if digest is None:
            wrong = "the API key is not valid here" if sent else "an API key is missing"
            error = AuthenticationError(
                f"{wrong}; send a valid key as `Authorization: Bearer KEY` or `x-api-key: KEY`"
            )
            await refuse(Request(scope), error)(scope, receive, send)
            return
        await self._app({**scope, _DIGEST: digest}, receive, send)


def _sent(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """The keys in a request's headers. ASGI writes header names in lower case."""
    for name, value in headers:
        if name == b"x-api-key":
            yield value.strip()
        elif name == b"authorization":
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                yield key.strip()


def salt_of_key(scope: Scope, salt: str | None) -> str:
    """A cache salt that differs for each pair of key and salt. The request must have a key.

    All digests have the same length and no salt is empty, so different pairs hash different bytes.
    """
    key: bytes = scope[_DIGEST]
    return sha256(key + (salt or "").encode("utf-8", "surrogatepass")).hexdigest()


def client_of(scope: Scope) -> Hashable:
    """Identifies the client of a request: the digest of its key, else its address."""
    address = scope.get("client")
    return scope.get(_DIGEST) or (address and address[0])


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
