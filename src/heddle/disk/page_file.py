"""The format of page files, and the check that a file holds the expected page.

Each full KV page has one file: 0.6 to 0.9 MB for the measured models in f16. At this size, a file
for each page costs little, and prefixes differ by pages. The name of a file is a digest of
everything that determines its content. The content::

    16 bytes   XXH3 (128 bits) of everything after it
    88 bytes   magic, format, tokens, page bytes, fingerprint, scope
    4 a token  the ids of the sequence from its first token to the page's last
    the rest   the page

The ids of a page with tokens of pictures are followed by 32 bytes for each of these pictures: the
digest of what the eyes read. Its tokens then have a number from FIRST_KEY on in place of an id.

The reader does not parse a file. It knows each byte of the header and of the ids, and compares them
with the file. So it compares tokens, not digests of tokens. It refuses a file of another model,
salt, format or length in the same way as a file with a flipped bit. Files never contain the salt
itself.

The checksum finds damage, not forgery: a user who can write there can write a checksum, too. One
core computes SHA-256 at 1.8 GB/s, which took half of the time of a restore, and XXH3 at 47 GB/s.
Names stay SHA-256, because no two prefixes may have the same name.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from heddle.state import FIRST_KEY, PAGE_TOKENS, PICTURE_KEYS, TokenArray

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = 2
"""Version of this format. Raise it with each change."""


_MAGIC = b"HEDDLEKV"
_HEADER = struct.Struct("<8sIIQ32s32s")
_CHECKSUM_BYTES = xxhash.xxh3_128().digest_size


class PageFileError(Exception):
    """A file does not contain the page that its name identifies."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Everything that determines the content of pages: tokens up to the end of a full page.

    Attributes:
        fingerprint: 32 bytes that identify model, KV type, layout and arithmetic of pages.
        scope: 32 bytes that identify the salt; see :func:`scope_of`.
        tokens: token ids; their number is a multiple of PAGE_TOKENS.
    """

    fingerprint: bytes
    scope: bytes
    tokens: TokenArray[int]

    @property
    def name(self) -> str:
        """The name of the file of the last page."""
        return hashlib.sha256(self.fingerprint + self.scope + self.ids()).hexdigest()

    def ids(self) -> bytes:
        """The tokens as files have them."""
        if max(self.tokens, default=0) < FIRST_KEY:
            return self.tokens.tobytes()
        return b"".join(self._ids_of_pages())

    def _ids_of_pages(self) -> Iterator[bytes]:
        for start in range(0, len(self.tokens), PAGE_TOKENS):
            page = self.tokens[start : start + PAGE_TOKENS]
            keys = list(dict.fromkeys(key for key in page if key >= FIRST_KEY))
            for place, token in enumerate(page):
                if token >= FIRST_KEY:
                    page[place] = FIRST_KEY + keys.index(token)
            yield page.tobytes() + b"".join(map(PICTURE_KEYS.content_of, keys))

    def names(self) -> Iterator[str]:
        """The names of the files of all pages, in order."""
        digest = hashlib.sha256(self.fingerprint + self.scope)
        for ids in self._ids_of_pages():
            digest.update(ids)
            yield digest.hexdigest()

    def of_snapshot(self) -> Prefix:
        """The prefix that identifies the snapshots at the ends of the pages."""
        fingerprint = hashlib.sha256(b"snapshot" + self.fingerprint).digest()
        return Prefix(fingerprint, self.scope, self.tokens)

    def up_to(self, pages: int) -> Prefix:
        """The prefix of the first `pages` pages."""
        return Prefix(self.fingerprint, self.scope, self.tokens[: pages * PAGE_TOKENS])

    def header(self, page_bytes: int) -> bytes:
        """The bytes between the checksum and the page in the file of the last page."""
        fields = (_MAGIC, FORMAT, len(self.tokens), page_bytes, self.fingerprint, self.scope)
        return _HEADER.pack(*fields) + self.ids()


def scope_of(salt: str | None) -> bytes:
    """32 bytes that identify a salt. The salt None has its own scope."""
    if salt is None:
        return hashlib.sha256(b"none").digest()
    # A salt comes from JSON, so it may contain half a surrogate pair.
    return hashlib.sha256(b"salt" + salt.encode("utf-8", "surrogatepass")).digest()


def file_bytes(prefix: Prefix, page_bytes: int) -> int:
    """Size of the file of the last page."""
    return _CHECKSUM_BYTES + _HEADER.size + len(prefix.ids()) + page_bytes


def parts_of(prefix: Prefix, page: memoryview) -> tuple[bytes, bytes, memoryview]:
    """The parts of the file of the last page, in order."""
    header = prefix.header(len(page))
    checksum = xxhash.xxh3_128(header)
    checksum.update(page)
    return checksum.digest(), header, page


def page_in(content: bytes, prefix: Prefix, page_bytes: int) -> memoryview:
    """The page in the content of a file, if it is the last page of `prefix`, bit for bit.

    Raises:
        PageFileError: the content is not this page; the message gives the reason.
    """
    expected = file_bytes(prefix, page_bytes)
    if len(content) != expected:
        raise PageFileError(f"it has {len(content)} bytes and not {expected}")
    view = memoryview(content)
    header = prefix.header(page_bytes)
    end = _CHECKSUM_BYTES + len(header)
    if view[_CHECKSUM_BYTES:end] != header:
        raise PageFileError("it belongs to another model, format, salt or prefix")
    if xxhash.xxh3_128(view[_CHECKSUM_BYTES:]).digest() != view[:_CHECKSUM_BYTES]:
        raise PageFileError("it is damaged")
    return view[end:]
