"""API keys: they admit clients, and can separate their prefix caches. Admin keys allow more.

The server keeps SHA-256 digests of keys, so that no log, error or dump can show a key. A key may
have a name, written `NAME: KEY`, which logs show.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from heddle.config import check_keys
from heddle.errors import ConfigError
from heddle.folders import user_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from heddle.config import ServerConfig

_MOST_BYTES = 1 << 20
"""Most bytes of a key file. Without a limit, the read of a device would not end."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the server, without the key itself.

    Attributes:
        digest: SHA-256 of the key.
        name: the name that logs show; None without one.
        is_admin: whether the key opens admin routes.
    """

    digest: bytes
    name: str | None = None
    is_admin: bool = False

    @classmethod
    def parse(cls, text: str, *, is_admin: bool = False) -> Key:
        """The key that `KEY` or `NAME: KEY` means."""
        named = text.split()
        name = named[0].removesuffix(":") if len(named) > 1 else None
        return cls(_digest(named[-1].encode("ascii")), name, is_admin)


class Keys:
    """The keys of one server."""

    def __init__(self, api: Iterable[str], admin: Iterable[str] = ()) -> None:
        """Both hold texts for :meth:`Key.parse`."""
        ordinary = [Key.parse(text) for text in api]
        self.admits_all = not ordinary
        """Whether the server has no API keys, and admits every client."""
        self._all = [*ordinary, *(Key.parse(text, is_admin=True) for text in admin)]

    @property
    def count(self) -> int:
        """How many keys there are, admin keys included."""
        return len(self._all)

    @property
    def has_admin(self) -> bool:
        """Whether the server has an admin key."""
        return any(key.is_admin for key in self._all)

    def find(self, sent: Iterable[bytes]) -> Key | None:
        """The last valid key among the keys in `sent`; None if no key is valid.

        Compares every sent key with every key of the server, in constant time.
        """
        found = None
        for candidate in map(_digest, sent):
            for key in self._all:
                if hmac.compare_digest(candidate, key.digest):
                    found = key
        return found


def keys_of(config: ServerConfig) -> Keys:
    """The keys in the settings and in the key files.

    Raises:
        ConfigError: a file cannot be read, has no key, or has a key that no header can carry.
    """
    return Keys(
        [*config.api_key, *_read(config.api_key_file, "api_key_file")],
        [*config.admin_key, *_read(config.admin_key_file, "admin_key_file")],
    )


def _read(file: str, param: str) -> Sequence[str]:
    """The keys in a file, one per line; none without a file. Blank lines do not count."""
    if not file:
        return ()
    path = user_path(file, param)
    keys = [line.strip() for line in _text(path, param).splitlines() if line.strip()]
    if not keys:
        raise ConfigError(f"{param}: {str(path)!r} has no key; write one key per line", param=param)
    check_keys(keys, param)
    return keys


def _text(path: Path, param: str) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{param}: cannot read {str(path)!r}: {reason}", param=param) from None
    if len(raw) > _MOST_BYTES:
        raise ConfigError(
            f"{param}: {str(path)!r} is longer than {_MOST_BYTES} bytes; name a text file with one"
            " key per line",
            param=param,
        )
    return text


def salt_of_key(key: Key, salt: str | None) -> str:
    """A cache salt that differs for each pair of key and salt.

    All digests have the same length and no salt is empty, so different pairs hash different bytes.
    """
    return sha256(key.digest + (salt or "").encode("utf-8", "surrogatepass")).hexdigest()


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
