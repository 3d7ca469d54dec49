"""Digests of the content of model files, kept on disk so that a start need not read every byte.

A kept digest holds for files that are the same by device, inode, size, and both times. No program
can set the time of change (`st_ctime`), so content that was written later never has it. A kept
digest is a file of the folder `digests` beside downloads; deleting it costs one more reading.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from heddle.cores import usable_cores
from heddle.errors import ModelFileError
from heddle.folders import cache_home
from heddle.weights.files import FileStamp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1
"""Version of how digests are computed and kept. Raise it with each change. Digests of
other versions are not found, and make room in time."""

_PART = 64 * 1024**2
"""Bytes of a file that one thread digests."""
_BLOCK = 1024**2
"""Bytes that a thread reads at once."""

_SETTLED = 10.0
"""Seconds after the last change from which a digest is kept. Times of files have steps, so a write
within the same step as the reading would not show."""
_MOST_KEPT = 256
"""Most digests on disk, of 64 bytes each."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


def digest_of_files(stamps: Mapping[Path, FileStamp]) -> str:
    """A digest of the content of files that have these stamps.

    One core digests 1.6 GB/s from memory. A digest that was kept takes no reading.

    Raises:
        ModelFileError: a file has another stamp, so its content is not what was loaded.
        OSError: a file cannot be read.
    """
    return _digest_of_files(tuple(sorted(stamps.items(), key=lambda item: item[0])))


@lru_cache(maxsize=16)
def _digest_of_files(files: tuple[tuple[Path, FileStamp], ...]) -> str:
    identity = _identity(files)
    kept = cache_home() / "digests" / identity
    with suppress(OSError, UnicodeDecodeError):
        if _DIGEST.fullmatch(found := kept.read_text("ascii")):
            return found
    digest = _read_all(files)
    # Checked after the reading, so that a change before or during the reading is seen.
    if _identity(files) == identity and _is_settled(files):
        with suppress(OSError):
            _keep(kept, digest)
    return digest


def _identity(files: tuple[tuple[Path, FileStamp], ...]) -> str:
    """What the system says of the files, as a name of a file.

    Raises:
        ModelFileError: a file has another stamp.
    """
    rows = []
    for path, stamp in files:
        status = path.stat()
        if FileStamp.of(status) != stamp:
            raise ModelFileError(
                f"{path} has changed since it was loaded; load it again", field="file"
            )
        rows.append((stamp, status.st_ctime_ns))
    return hashlib.sha256(f"{FORMAT} {rows}".encode()).hexdigest()


def _is_settled(files: tuple[tuple[Path, FileStamp], ...]) -> bool:
    return all(path.stat().st_ctime < time.time() - _SETTLED for path, _ in files)


def _keep(place: Path, digest: str) -> None:
    """Write a digest to `place`, at once or not at all. The oldest digests make room."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f"{place.name}.{os.getpid()}")
    part.write_text(digest, "ascii")
    part.replace(place)
    kept = sorted(place.parent.iterdir(), key=lambda one: one.stat().st_mtime)
    for oldest in kept[:-_MOST_KEPT]:
        oldest.unlink(missing_ok=True)


def _read_all(files: tuple[tuple[Path, FileStamp], ...]) -> str:
    """The digest of the files, from all their bytes."""
    parts = [(path, start) for path, stamp in files for start in range(0, stamp.size, _PART)]
    with ThreadPoolExecutor(min(usable_cores(), len(parts) or 1)) as threads:
        digests = list(threads.map(_digest_of_part, parts))
    sizes = [stamp.size for _, stamp in files]
    return hashlib.sha256(f"{sizes} ".encode() + b"".join(digests)).hexdigest()


def _digest_of_part(part: tuple[Path, int]) -> bytes:
    path, start = part
    digest, left = hashlib.sha256(), _PART
    with path.open("rb") as file:
        file.seek(start)
        while left and (block := file.read(min(left, _BLOCK))):
            digest.update(block)
            left -= len(block)
    return digest.digest()
