"""What a page file holds, and the proof that it holds what was asked for.

One file per full KV page: 0.6 to 0.9 MB for the models measured in f16, few enough to open one
each, and the unit in which prefixes part. It is named by a digest of all that decides its content::

    32 bytes   SHA-256 of everything after it
    88 bytes   magic, format, tokens, page bytes, fingerprint, scope
    4 a token  the ids of the sequence from its first token to the page's last
    the rest   the page

A file is not parsed. Whoever asks knows each byte of the header and of the ids, and the file must
hold just those: so tokens are compared and not their digests, and a file of another model, salt,
format or length is refused as one with a flipped bit is. The salt itself is never written.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = 1
"""To be raised with any change to this file."""

Run = array  # of C ints: token ids

_MAGIC = b"HEDDLEKV"
_HEADER = struct.Struct("<8sIIQ32s32s")
_DIGEST_BYTES = hashlib.sha256().digest_size


class PageFileError(Exception):
    """A file does not hold the page it is named for."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """What decides the content of pages: the sequence up to some full page of it.

    Attributes:
        fingerprint: 32 bytes that stand for model, KV type, layout and arithmetic of pages.
        scope: 32 bytes that stand for the salt; see :func:`scope_of`.
        tokens: token ids, whole pages of them.
    """

    fingerprint: bytes
    scope: bytes
    tokens: Run[int]

    @property
    def name(self) -> str:
        """The name of the last page's file."""
        return hashlib.sha256(self.fingerprint + self.scope + self.tokens.tobytes()).hexdigest()

    def names(self) -> Iterator[str]:
        """The names of the files of all its pages, the first page's first."""
        digest = hashlib.sha256(self.fingerprint + self.scope)
        ids = self.tokens.tobytes()
        step = PAGE_TOKENS * self.tokens.itemsize
        for start in range(0, len(ids), step):
            digest.update(ids[start : start + step])
            yield digest.hexdigest()

    def up_to(self, pages: int) -> Prefix:
        """Its first so many pages."""
        return Prefix(self.fingerprint, self.scope, self.tokens[: pages * PAGE_TOKENS])

    def header(self, page_bytes: int) -> bytes:
        """What stands in the last page's file between the digest and the page."""
        fields = (_MAGIC, FORMAT, len(self.tokens), page_bytes, self.fingerprint, self.scope)
        return _HEADER.pack(*fields) + self.tokens.tobytes()


def scope_of(salt: str | None) -> bytes:
    """32 bytes that stand for a salt: equal if the salts are, and no salt is one of its own."""
    if salt is None:
        return hashlib.sha256(b"none").digest()
    # JSON may hold half a surrogate pair, and so may a salt.
    return hashlib.sha256(b"salt" + salt.encode("utf-8", "surrogatepass")).digest()


def file_bytes(prefix: Prefix, page_bytes: int) -> int:
    """Size of the file of the prefix's last page."""
    header = _HEADER.size + len(prefix.tokens) * prefix.tokens.itemsize
    return _DIGEST_BYTES + header + page_bytes


def parts_of(prefix: Prefix, page: memoryview) -> tuple[bytes, bytes, memoryview]:
    """What to write, one after the other, to keep the prefix's last page."""
    header = prefix.header(len(page))
    digest = hashlib.sha256(header)
    digest.update(page)
    return digest.digest(), header, page


def page_in(content: bytes, prefix: Prefix, page_bytes: int) -> memoryview:
    """The page that a file's content holds, if that is the prefix's last one, bit for bit.

    Raises:
        PageFileError: saying what else it is.
    """
    expected = file_bytes(prefix, page_bytes)
    if len(content) != expected:
        raise PageFileError(f"it has {len(content)} bytes and not {expected}")
    whole = memoryview(content)
    header = prefix.header(page_bytes)
    end = _DIGEST_BYTES + len(header)
    if whole[_DIGEST_BYTES:end] != header:
        raise PageFileError("it belongs to another model, format, salt or prefix")
    if hashlib.sha256(whole[_DIGEST_BYTES:]).digest() != whole[:_DIGEST_BYTES]:
        raise PageFileError("it is damaged")
    return whole[end:]
