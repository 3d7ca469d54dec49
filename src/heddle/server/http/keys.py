"""API keys: which clients may use a server, and which prefixes a request may find.

Keys are kept as SHA-256 digests, so that no log, error or dump can show one.
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
"""Paths that need no key: health checkers have none."""

_MOST_BYTES = 1 << 20
"""Most bytes to read of a file of keys: a device has no end."""

_DIGEST = "heddle.key_digest"
"""The name in a request's ASGI scope for the digest of its key."""


class ApiKeys:
    """The keys of one server. Falsy without keys: then every client may use the server."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode("ascii")) for key in keys]

    def __len__(self) -> int:
        return len(self._digests)

    def find(self, sent: Iterable[bytes]) -> bytes | None:
        """The digest of the first valid key among those sent, else None.

        Compares every key sent with every key of the server, in constant time.
        """
        found = None
        for candidate in map(_digest, sent):
            for digest in self._digests:
                if hmac.compare_digest(candidate, digest):
                    found = digest
        return found


def keys_of(config: ServerConfig) -> ApiKeys:
    """The keys that the settings name, those in the file included.

    Raises:
        ConfigError: the file cannot be read, holds no key, or holds one that no header can carry.
    """
    keys = list(config.api_key)
    if config.api_key_file:
        keys += _read(user_path(config.api_key_file, "api_key_file"))
    return ApiKeys(keys)


def _read(path: Path) -> list[str]:
    """Keys of a file, one on each line. Blank lines do not count."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        lines = raw.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigError(
            f"api_key_file: cannot read {str(path)!r}: {reason}", param="api_key_file"
        ) from None
    if len(raw) > _MOST_BYTES:
        raise ConfigError(
            f"api_key_file: {str(path)!r} is longer than {_MOST_BYTES} bytes; name a file with one"
            " key a line",
            param="api_key_file",
        )
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise ConfigError(
            f"api_key_file: {str(path)!r} holds no key; write one a line", param="api_key_file"
        )
    check_keys(keys, "api_key_file")
    return keys


class RequireKey:
    """Refuses requests without a valid key, before their bodies are read."""

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
                f"{wrong}; send one as `Authorization: Bearer KEY` or `x-api-key: KEY`"
            )
            await refuse(Request(scope), error)(scope, receive, send)
            return
        await self._app({**scope, _DIGEST: digest}, receive, send)


def _sent(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Keys in the headers of a request. ASGI writes the names of headers in lower case."""
    for name, value in headers:
        if name == b"x-api-key":
            yield value.strip()
        elif name == b"authorization":
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                yield key.strip()


def salt_of_key(scope: Scope, salt: str | None) -> str:
    """A cache salt that is different for each pair of key and salt. The request must have a key.

    Digests have one length and no salt is empty, so different pairs hash different bytes.
    """
    key: bytes = scope[_DIGEST]
    return sha256(key + (salt or "").encode("utf-8", "surrogatepass")).hexdigest()


def client_of(scope: Scope) -> Hashable:
    """The client of a request, as far as is known: the digest of its key, else its address."""
    address = scope.get("client")
    return scope.get(_DIGEST) or (address and address[0])


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
