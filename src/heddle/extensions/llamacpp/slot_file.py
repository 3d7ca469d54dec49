"""A file with the prefix of one slot: its tokens, and the page files of its full pages.

The content::

    152 bytes   header: magic, format, tokens, pages, snapshots, fingerprint, scope, SHA-256
    4 a token   the ids; the SHA-256 is that of the header before it and of the ids
    the rest    the page file of each page, and that of the snapshot at the end of the last page

The page files are those of the disk tier (`page_file.py`). So a :class:`DiskTier` saves to a slot
file and restores from it, as if it were its directory, and checks each page as it does there. The
tokens after the last page have no keys and values in the file: a restore computes them.
"""

from __future__ import annotations

import hashlib
import os
import struct
from contextlib import suppress
from tempfile import mkstemp
from typing import TYPE_CHECKING

from heddle.disk.directory import write_all
from heddle.disk.page_file import PageFileError, Prefix, file_bytes
from heddle.state import PAGE_TOKENS, TokenArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

FORMAT = 2
"""Version of this format. Raise it with each change, also of the format of page files."""

_MAGIC = b"HEDDLESL"
_HEADER = struct.Struct("<8sIIII32s32s32s")


class SlotFile:
    """A slot file in the place of the directory of a disk tier. See :class:`PageDirectory`.

    Make it with `create` or `open`, and close it.
    """

    def __init__(self, path: Path, descriptor: int, prefix: Prefix) -> None:
        self.path = path
        self.prefix = prefix
        self.capacity = self.bytes = _HEADER.size + len(prefix.tokens) * prefix.tokens.itemsize
        self._descriptor = descriptor
        self._places: dict[str, tuple[int, int]] = {}  # offset and size of each page file

    @classmethod
    def create(cls, directory: Path, prefix: Prefix) -> SlotFile:
        """Begin a file under a temporary name. `finish` gives it its name.

        Raises:
            OSError: the medium is full or fails.
        """
        descriptor, name = mkstemp(prefix=".", suffix=".new", dir=directory)
        file = cls(directory / name, descriptor, prefix)
        os.lseek(descriptor, file.bytes, os.SEEK_SET)
        return file

    def finish(self, path: Path) -> None:
        """Write header and ids, and give the file its name. It replaces an older file.

        Raises:
            OSError: the medium is full or fails.
        """
        snapshots = sum(prefix in self._places for prefix in self.prefix.of_snapshot().names())
        header = _header(self.prefix, len(self._places) - snapshots, snapshots)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        write_all(self._descriptor, [header, self.prefix.tokens.tobytes()])
        self.path.rename(path)

    def discard(self) -> None:
        """Remove the file, unless it is finished."""
        with suppress(OSError):
            self.path.unlink()

    @classmethod
    def open(
        cls, path: Path, prefix: Prefix, most_tokens: int, page_bytes: int, snapshot_bytes: int
    ) -> SlotFile:
        """Open a finished file. `prefix` has the expected fingerprint and scope, and no tokens.

        Raises:
            PageFileError: this is no such file, or it is damaged; the message gives the reason.
            OSError: the file cannot be read.
        """
        # A link could lead out of the directory. The open of a pipe would wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found, pages, snapshots = _read_header(descriptor, prefix, most_tokens)
            file = cls(path, descriptor, found)
            file._find_pages(pages, snapshots, page_bytes, snapshot_bytes)
            size = os.fstat(descriptor).st_size
            if file.bytes != size:
                raise PageFileError(f"it has {size} bytes and not {file.bytes}")
        except BaseException:
            os.close(descriptor)
            raise
        return file

    def _find_pages(self, pages: int, snapshots: int, page_bytes: int, snapshot_bytes: int) -> None:
        for number, name in enumerate(self.prefix.up_to(pages).names(), 1):
            self._place(name, file_bytes(self.prefix.up_to(number), page_bytes))
        if snapshots:
            last = self.prefix.up_to(pages)
            self._place(last.of_snapshot().name, file_bytes(last, snapshot_bytes))

    def _place(self, name: str, size: int) -> None:
        self._places[name] = self.bytes, size
        self.bytes += size

    # --- for the disk tier -----------------------------------------------------------------------

    @property
    def files(self) -> int:
        """Number of page files in it."""
        return len(self._places)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def touch(self, names: Iterable[str]) -> None:
        """Do nothing: it has no order of removal."""

    mark = touch

    def forget(self) -> None:
        """Hold no pages any more. The file stays."""
        self._places = {}

    sweep = forget

    def remove(self, name: str) -> None:
        """Hold a page no more. The file stays."""
        self._places.pop(name, None)

    def read(self, name: str) -> bytes:
        """The content of a page file.

        Raises:
            OSError: the file cannot be read.
        """
        offset, size = self._places.get(name, (0, 0))
        return os.pread(self._descriptor, size, offset)

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Append a page file.

        Raises:
            OSError: the medium is full or fails.
        """
        write_all(self._descriptor, parts)
        self._place(name, sum(map(len, parts)))

    def file(self, name: str) -> Path:
        """The path of the file that holds a page."""
        return self.path

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _header(prefix: Prefix, pages: int, snapshots: int) -> bytes:
    counts = len(prefix.tokens), pages, snapshots
    fields = (_MAGIC, FORMAT, *counts, prefix.fingerprint, prefix.scope)
    digest = hashlib.sha256(_HEADER.pack(*fields, b"") + prefix.tokens.tobytes())
    return _HEADER.pack(*fields, digest.digest())


def _read_header(descriptor: int, expected: Prefix, most_tokens: int) -> tuple[Prefix, int, int]:
    """The prefix in a file, and how many pages and snapshots of it the file has.

    Raises:
        PageFileError: see `SlotFile.open`.
        OSError: the file cannot be read.
    """
    header = os.pread(descriptor, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        raise PageFileError(f"it has {len(header)} bytes, fewer than its header")
    magic, version, count, pages, snapshots, fingerprint, scope, _ = _HEADER.unpack(header)
    if (magic, version) != (_MAGIC, FORMAT):
        raise PageFileError("it is no slot file of this version")
    if fingerprint != expected.fingerprint:
        raise PageFileError("it belongs to another model, KV type or version")
    if scope != expected.scope:
        raise PageFileError("it was saved with another cache_salt or API key")
    if count > most_tokens:
        raise PageFileError(f"it has {count} tokens; the context holds {most_tokens}")
    tokens: TokenArray[int] = TokenArray("i")
    ids = os.pread(descriptor, count * tokens.itemsize, _HEADER.size)
    tokens.frombytes(ids[: len(ids) - len(ids) % tokens.itemsize])
    found = Prefix(fingerprint, scope, tokens)
    damaged = len(tokens) != count or _header(found, pages, snapshots) != header
    if damaged or pages > count // PAGE_TOKENS or snapshots > min(pages, 1):
        raise PageFileError("it is damaged")
    return found, pages, snapshots
