"""A directory of page files with a byte budget: names, sizes, order of removal, and file calls.

One process owns the directory at a time, by a lock that ends with the process. So only one index
exists, and the budget holds. This module writes a file under a temporary name and then renames it,
so a file with its final name is complete. Nothing calls fsync: a cache may lose files, and the
digest shows the reader a file that a power failure has damaged.

This module counts, reads and removes only files with names of page files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from heddle.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_SUFFIX = ".page"
_NAME = re.compile(r"[0-9a-f]{64}\.page(\.new)?")


class DirectoryInUseError(Exception):
    """Another process, or another engine of this process, uses the directory."""


class PageDirectory:
    """Page files by name, least recently used first.

    Any thread may use `in`, `touch`, `forget` and the totals. Only one thread may use the rest.

    Args:
        path: the directory. It is created with mode 0700 if it is missing; files have mode 0600.
        capacity: most bytes of all files together.

    Raises:
        ConfigError: the directory cannot be created or used, or other users may write to it.
        DirectoryInUseError: another process or engine uses it.
    """

    def __init__(self, path: Path, capacity: int) -> None:
        self.path = path
        self.capacity = capacity
        self.bytes: int = 0
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # the least recently used first
        self._latest = 0  # newest time given to a file, ns
        with private_directory(path, "prefix_cache_dir"):
            self._descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._take()
            except BaseException:
                self.close()
                raise

    def _take(self) -> None:
        """Lock the directory and read its index.

        Raises:
            DirectoryInUseError: another process or engine holds the lock.
        """
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DirectoryInUseError(f"{self.path} is in use by another process") from error
        self._scan()

    def close(self) -> None:
        """Release the directory."""
        os.close(self._descriptor)

    # --- the index -------------------------------------------------------------------------------

    @property
    def files(self) -> int:
        """Number of files."""
        return len(self._sizes)

    def __contains__(self, name: str) -> bool:
        return name in self._sizes

    def touch(self, names: Iterable[str]) -> None:
        """Mark these files as used now, the last one most recently. Skip unknown names."""
        with self._lock:
            for name in names:
                if name in self._sizes:
                    self._sizes.move_to_end(name)

    def forget(self) -> None:
        """Empty the index. The caller must call `sweep` later."""
        with self._lock:
            self._sizes.clear()
            self.bytes = 0

    def _pop(self, name: str | None = None) -> str | None:
        """Remove `name`, or the least recently used file, from the index. None if there is none."""
        with self._lock:
            if name is None:
                name = next(iter(self._sizes), None)
            if name is None or name not in self._sizes:
                return None
            self.bytes -= self._sizes.pop(name)
            return name

    # --- the files -------------------------------------------------------------------------------

    def read(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            OSError: the file cannot be read.
        """
        with self.file(name).open("rb", buffering=0) as file:
            return file.read(
                self._sizes.get(name, 0) + 1
            )  # one byte more shows whether it has grown

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Write a file. Removes the least recently used files to make room.

        Raises:
            OSError: the medium is full or fails. No part of the file remains.
        """
        size = sum(map(len, parts))
        if size > self.capacity or name in self._sizes:
            return
        self._make_room(size)
        path = self.file(name)
        temporary = path.with_suffix(_SUFFIX + ".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            try:
                write_all(descriptor, parts)
                now = self._now()
                os.utime(descriptor, ns=(now, now))
            finally:
                os.close(descriptor)
            temporary.rename(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        with self._lock:
            self._sizes[name] = size
            self.bytes += size

    def remove(self, name: str) -> None:
        """Remove a file. If this fails, the file still leaves the index."""
        if self._pop(name) is not None:
            with contextlib.suppress(OSError):
                self.file(name).unlink()

    def mark(self, names: Iterable[str]) -> None:
        """Mark files as used, as `touch` does, and also set their times on disk.

        Raises:
            OSError: the time of a file cannot be set.
        """
        for name in names:
            if name in self._sizes:
                self.touch([name])
                now = self._now()
                with contextlib.suppress(
                    FileNotFoundError
                ):  # a later read reports the missing file
                    os.utime(self.file(name), ns=(now, now))

    def sweep(self) -> None:
        """Remove every file.

        Raises:
            OSError: a file cannot be removed.
        """
        self.forget()
        for file, _ in self._page_files():
            file.unlink(missing_ok=True)

    def _scan(self) -> None:
        """Index the files. Remove incomplete files, and the oldest ones beyond the budget."""
        found = []
        for file, status in self._page_files():
            if file.suffix == _SUFFIX:
                found.append((status.st_mtime_ns, file.stem, status.st_size))
            else:
                file.unlink()
        for latest, name, size in sorted(found):
            self._latest = latest
            self._sizes[name] = size
            self.bytes += size
        self._make_room(0)

    def _page_files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for file in self.path.iterdir():
            if _NAME.fullmatch(file.name) and stat.S_ISREG((status := file.lstat()).st_mode):
                yield file, status

    def _make_room(self, size: int) -> None:
        while self.bytes + size > self.capacity:
            name = self._pop()
            if name is None:
                return
            self.file(name).unlink(missing_ok=True)

    def file(self, name: str) -> Path:
        """The path of a page file."""
        return self.path / (name + _SUFFIX)

    def _now(self) -> int:
        """A time later than all earlier ones, even if the clock goes back. Times order the
        files."""
        self._latest = max(time.time_ns(), self._latest + 1)
        return self._latest


@contextlib.contextmanager
def private_directory(path: Path, setting: str) -> Iterator[None]:
    """Make the directory of a setting if it is missing, with mode 0700, and use it in the block.

    Raises:
        ConfigError: the directory cannot be made or used, or other users may write to it: they
            could change any answer.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise ConfigError(
                f"{setting} {path} belongs to another user, or others may write to it; name a"
                f" directory that this user owns, or run chmod 700 {path}",
                param=setting,
            )
        yield
    except OSError as error:
        raise ConfigError(
            f"{setting} {path} cannot be used: {error.strerror}; name a directory that this user"
            " can write to",
            param=setting,
        ) from error


def write_all(descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
    """Write all parts, in order."""
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
