"""Saves and restores pages in its own thread. Ends when the disk fails.

The engine thread passes evicted pages (`save`) and asks for pages that a prompt needs (`begin`).
Neither call waits. The tier's thread reads, verifies and writes. It reads first, because a request
waits for reads. The engine thread passes copies of pages, so no file call sees memory that a step
may write to.

A failure here only costs time. If the tier cannot read a page, or finds another page, the restore
ends with one warning and the engine computes the tokens. If the medium refuses writes, is full, or
does not answer, the tier ends with one warning.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Protocol, TypeAlias

from heddle.disk.page_file import PageFileError, Prefix, file_bytes, page_in, parts_of, scope_of
from heddle.state import PAGE_TOKENS, TokenArray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from heddle.executor import PageMemory

_log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds that a file call may take while a request waits for a page. Then the tier ends."""

_SAVE_BYTES = 64 << 20  # most bytes of pages that wait for writing; the tier drops more pages
_AHEAD_BYTES = 8 << 20  # most bytes of one restore's pages that wait for loading
_CLOSE_SECONDS = 5.0  # for the last writes: Docker kills a stopped container after ten seconds


@dataclass(frozen=True, slots=True)
class WarmPage:
    """A full page in memory.

    Attributes:
        salt: salt of the prefix.
        tokens: the prefix up to the end of the page.
        page: page id in the group of all positions.
        windows: page ids for the same tokens in the windowed groups.
        snapshot: snapshot of the fixed-size state at the end of the page; None without one.
    """

    salt: str | None
    tokens: TokenArray[int]
    page: int
    windows: tuple[int, ...] = ()
    snapshot: int | None = None


@dataclass(slots=True, eq=False)
class Restore:
    """Pages of one prefix that the tier reads from disk. Only the tier writes to this object.

    If layers keep fixed-size state, the snapshot at the end of the last page comes last.

    Attributes:
        tier: the tier that reads the pages.
        prefix: the prefix up to the end of the last page.
        names: names of the files of all pages of the prefix, then of the snapshot if there is one.
        first: number of the first page to read.
        next: number of the page to read next. The snapshot counts as a page.
        ready: pages that were read and are not loaded yet, in order.
        loaded: number of pages loaded.
        ended: whether no more pages come after `ready`.
        asked: time of the request for the next page, on the monotonic clock.
    """

    tier: DiskTier
    prefix: Prefix
    names: list[str]
    first: int
    next: int
    ready: deque[memoryview] = field(default_factory=deque)
    loaded: int = 0
    ended: bool = False
    asked: float = 0.0

    @property
    def pages(self) -> int:
        """Number of pages of the prefix."""
        return len(self.prefix.tokens) // PAGE_TOKENS

    @property
    def awaits_snapshot(self) -> bool:
        """Whether the snapshot comes next."""
        return self.first + self.loaded == self.pages < len(self.names)

    @property
    def is_complete(self) -> bool:
        """Whether all pages, and the snapshot if there is one, are loaded."""
        return self.first + self.loaded == len(self.names)


@dataclass(frozen=True, slots=True)
class DiskStats:
    """Figures of the disk tier at one moment, and totals since the start.

    Attributes:
        enabled: whether the tier saves and restores pages.
        reason: why the tier has ended; None if it has not.
        files: files in the directory.
        bytes: bytes of these files.
        capacity_bytes: most bytes that the files may have.
        hits: restores that loaded at least one page.
        restored_tokens: tokens whose pages were loaded from files.
        writes: pages written.
        dropped: pages not written, because too many waited or the time to close had passed.
        errors: files that could not be read or were not the expected page, and failed writes.
    """

    enabled: bool
    reason: str | None
    files: int
    bytes: int
    capacity_bytes: int
    hits: int
    restored_tokens: int
    writes: int
    dropped: int
    errors: int


@dataclass(frozen=True, slots=True)
class _File:
    """A file to write. `read` returns its content. `prefix` determines the content."""

    prefix: Prefix
    name: str
    content_bytes: int
    read: Callable[[], memoryview]


_Content: TypeAlias = bytes  # the name `bytes` is a size in a store


class PageStore(Protocol):
    """Page files by name, as `heddle.disk.directory.PageDirectory` keeps them."""

    path: Path
    capacity: int
    bytes: int

    @property
    def files(self) -> int: ...
    def __contains__(self, name: str, /) -> bool: ...
    def touch(self, names: Iterable[str], /) -> None: ...
    def mark(self, names: Iterable[str], /) -> None: ...
    def forget(self) -> None: ...
    def sweep(self) -> None: ...
    def remove(self, name: str, /) -> None: ...
    def read(self, name: str, /) -> _Content: ...
    def write(self, name: str, parts: Sequence[_Content | memoryview], /) -> None: ...
    def file(self, name: str, /) -> Path: ...
    def close(self) -> None: ...


class DiskTier:
    """Saves and restores pages of one model in one directory.

    Only the engine thread calls the methods, with two exceptions: any thread may call `stats`, and
    the tier's thread calls `work`.

    Args:
        directory: the directory. The tier closes it.
        memory: the executor's memory; the tier copies pages from it and to it.
        page_bytes: bytes of a page.
        fingerprint: see :class:`Prefix`.
        on_read: function that the tier's thread calls when a restore has a new page or has ended.
        threaded: whether the tier starts a thread. If not, the owner calls `work`.
        snapshot_bytes: bytes of a snapshot of fixed-size state; 0 if no layer has such a state.
    """

    def __init__(
        self,
        directory: PageStore,
        memory: PageMemory,
        page_bytes: int,
        fingerprint: bytes,
        on_read: Callable[[], None] = lambda: None,
        *,
        threaded: bool = True,
        snapshot_bytes: int = 0,
    ) -> None:
        self._directory = directory
        self._memory = memory
        self._page_bytes = page_bytes
        self._fingerprint = fingerprint
        self._snapshot_bytes = snapshot_bytes
        self._on_read = on_read
        self._most_saves = max(1, _SAVE_BYTES // max(1, page_bytes + snapshot_bytes))
        self._most_ahead = max(1, _AHEAD_BYTES // max(1, page_bytes))
        self._hits = self._restored = self._writes = self._dropped = self._errors = 0
        self._worked = 0.0  # end of the last job, by the monotonic clock
        # Guarded by the lock:
        self._lock = threading.Lock()
        self._work_to_do = threading.Condition(self._lock)
        self._reason: str | None = None  # why the tier has ended
        self._restores: list[Restore] = []  # restores with pages to read
        self._saves: dict[str, tuple[Prefix, memoryview]] = {}  # pages to write, in order
        self._used: list[str] = []  # files to mark as used, in order
        self._sweep = False
        self._closing = False
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._run, name="heddle-disk", daemon=True)
            self._thread.start()

    # --- for the cache manager -------------------------------------------------------------------

    def save(self, page: WarmPage) -> None:
        """Copy a page, and the snapshot at its end, and write them later.

        Drops them if too many pages wait for writing.
        """
        for file in self._files_of(page):
            with self._lock:
                if self._reason is not None or file.name in self._saves:
                    continue
                if file.name in self._directory and not self._sweep:
                    self._use([file.name])
                elif len(self._saves) >= self._most_saves:
                    self._dropped += 1
                else:
                    self._saves[file.name] = file.prefix, file.read()
                    self._work_to_do.notify()

    def find(self, salt: str | None, tokens: TokenArray[int], first: int) -> Restore | None:
        """Find the files of pages of `tokens` from page `first` on, without a gap.

        The number of `tokens` is a multiple of PAGE_TOKENS. None if page `first` has no file.
        """
        if self._reason is not None or self._sweep or not self._directory.files:
            return None
        prefix = self._prefix(salt, tokens)
        names: list[str] = []
        for name in prefix.names():
            if len(names) >= first and name not in self._directory:
                break
            names.append(name)
        if self._snapshot_bytes:
            return self._find_snapshot(prefix, names, first)
        if len(names) <= first:
            return None
        return Restore(self, prefix.up_to(len(names)), names, first, first)

    def _find_snapshot(self, prefix: Prefix, names: list[str], first: int) -> Restore | None:
        """Find the files up to the last page with a snapshot; see `find`."""
        states = list(prefix.of_snapshot().names())
        for pages in range(len(names), first, -1):
            if states[pages - 1] in self._directory:
                found = [*names[:pages], states[pages - 1]]
                return Restore(self, prefix.up_to(pages), found, first, first)
        return None

    def begin(self, restore: Restore) -> None:
        """Start to read the files of a restore."""
        restore.asked = time.monotonic()
        with self._lock:
            self._restores.append(restore)
            # Mark the first pages as the newest: without them, a restore finds no other page.
            self._use(restore.names[::-1])
            self._work_to_do.notify()

    def load(self, restore: Restore, page: int, windows: Sequence[int] = ()) -> None:
        """Copy the next ready page to memory page `page` and to the pages of the windows."""
        with self._lock:
            content = restore.ready.popleft()
            restore.asked = time.monotonic()
            self._work_to_do.notify()  # it can read further ahead
        self._memory.write_page(page, content, windows)
        self._hits += restore.loaded == 0
        self._restored += PAGE_TOKENS
        restore.loaded += 1

    def load_snapshot(self, restore: Restore, snapshot: int) -> None:
        """Copy the ready snapshot to `snapshot`. The restore is then complete."""
        with self._lock:
            content = restore.ready.popleft()
        self._memory.write_snapshot(snapshot, content)
        restore.loaded += 1

    def check(self, restore: Restore) -> None:
        """End the tier if the next page of `restore` is late."""
        if restore.ready or restore.ended:
            return
        # Other jobs may come first, so count from the end of the last job.
        if time.monotonic() - max(restore.asked, self._worked) > PATIENCE:
            self._give_up(f"a page was not read within {PATIENCE:.0f} s")

    def cancel(self, restore: Restore) -> None:
        """Cancel a restore: its sequence no longer waits for it."""
        with self._lock:
            self._end(restore)

    def flush(self) -> None:
        """Drop all pages in the directory, including pages of other models."""
        with self._lock:
            for restore in list(self._restores):
                self._end(restore)
            self._saves.clear()
            self._used.clear()
            self._directory.forget()
            self._sweep = True
            self._work_to_do.notify()

    def close(self, warm: Iterable[WarmPage] = ()) -> None:
        """Finish the waiting jobs, write the `warm` pages too, and release the directory.

        The most useful `warm` pages come first. The tier writes pages in this order, until the
        directory is full or the time is over.
        """
        deadline = time.monotonic() + _CLOSE_SECONDS
        with self._lock:
            for restore in list(self._restores):
                self._end(restore)
            self._closing = True
            self._work_to_do.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
            # Nothing can end a thread in a file call. The directory stays locked until it returns.
            if self._thread.is_alive():
                self._give_up("a file call did not end in time")
                return
        while self.work():
            pass
        if self._reason is None:
            try:
                self._keep(warm, deadline)
            except OSError as error:
                self._failed_to_write(error)
        self._directory.close()

    def stats(self) -> DiskStats:
        """Figures of the disk tier. Any thread may call this."""
        return DiskStats(
            enabled=self._reason is None,
            reason=self._reason,
            files=self._directory.files,
            bytes=self._directory.bytes,
            capacity_bytes=self._directory.capacity,
            hits=self._hits,
            restored_tokens=self._restored,
            writes=self._writes,
            dropped=self._dropped,
            errors=self._errors,
        )

    # --- in the tier's thread --------------------------------------------------------------------

    def work(self) -> bool:
        """Do the most urgent job. False if there is none."""
        with self._lock:
            job = self._next_job()
        if job is None:
            return False
        self._do(job)
        return True

    def _do(self, job: Callable[[], None]) -> None:
        job()
        self._worked = time.monotonic()

    def _run(self) -> None:
        try:
            while True:
                with self._lock:
                    while (job := self._next_job()) is None and not self._closing:
                        self._work_to_do.wait()
                if job is None:
                    return
                self._do(job)
        except Exception as cause:
            _log.exception("the disk tier's thread ends")
            self._give_up(f"it failed: {cause}")
            self._on_read()

    def _next_job(self) -> Callable[[], None] | None:
        if self._sweep:
            return self._do_sweep
        for restore in self._restores:
            if len(restore.ready) < self._most_ahead:
                return partial(self._read, restore)
        if self._used:
            return self._mark
        if self._saves:
            return self._write
        return None

    def _read(self, restore: Restore) -> None:
        page = self._page(restore)
        with self._lock:
            if page is not None and not restore.ended:
                restore.ready.append(page)
                restore.next += 1
            if page is None or restore.next == len(restore.names):
                self._end(restore)
        self._on_read()

    def _page(self, restore: Restore) -> memoryview | None:
        """Read the next page. If its file has other content, remove the file and return None."""
        number = restore.next
        name = restore.names[number]
        prefix, size = restore.prefix.up_to(number + 1), self._page_bytes
        if number == restore.pages:
            prefix, size = restore.prefix.of_snapshot(), self._snapshot_bytes
        try:
            content = self._directory.read(name)
            return page_in(content, prefix, size)
        except OSError as error:
            problem = str(error.strerror)
        except PageFileError as error:
            problem = str(error)
        if not restore.ended:  # a flush ends restores and removes their files
            _log.warning("%s is skipped: %s", self._directory.file(name), problem)
            self._errors += 1
            self._directory.remove(name)
        return None

    def _write(self) -> None:
        with self._lock:
            name, (prefix, page) = next(iter(self._saves.items()))
        try:
            self._directory.write(name, parts_of(prefix, page))
            self._writes += 1
        except OSError as error:
            self._failed_to_write(error)
        with self._lock:
            self._saves.pop(name, None)

    def _mark(self) -> None:
        with self._lock:
            used, self._used = self._used, []
        try:
            self._directory.mark(used)
        except OSError as error:
            self._failed_to_write(error)

    def _do_sweep(self) -> None:
        try:
            self._directory.sweep()
        except OSError as error:
            self._failed_to_write(error)
        self._sweep = False

    # --- both ------------------------------------------------------------------------------------

    def _prefix(self, salt: str | None, tokens: TokenArray[int]) -> Prefix:
        return Prefix(self._fingerprint, scope_of(salt), tokens)

    def _files_of(self, page: WarmPage) -> Iterator[_File]:
        """The files of a page: the file of the page itself, and of its snapshot if there is one."""
        prefix, memory = self._prefix(page.salt, page.tokens), self._memory
        read_page = partial(memory.read_page, page.page, page.windows)
        yield _File(prefix, prefix.name, self._page_bytes, read_page)
        if page.snapshot is not None:
            prefix = prefix.of_snapshot()
            read_snapshot = partial(memory.read_snapshot, page.snapshot)
            yield _File(prefix, prefix.name, self._snapshot_bytes, read_snapshot)

    def _use(self, names: list[str]) -> None:
        self._directory.touch(names)
        self._used += names
        self._work_to_do.notify()

    def _end(self, restore: Restore) -> None:
        restore.ended = True
        if restore in self._restores:
            self._restores.remove(restore)

    def _keep(self, warm: Iterable[WarmPage], deadline: float) -> None:
        room, names = self._directory.capacity, []
        files = chain.from_iterable(map(self._files_of, warm))
        for file in files:
            room -= file_bytes(file.prefix, file.content_bytes)
            late = time.monotonic() > deadline
            if room < 0 or late:
                self._dropped += 1 + sum(1 for _ in files)
                break
            names.append(file.name)
            self._directory.touch(names[-1:])
            if file.name not in self._directory:
                self._directory.write(file.name, parts_of(file.prefix, file.read()))
                self._writes += 1
        self._directory.mark(reversed(names))

    def _failed_to_write(self, error: OSError) -> None:
        self._errors += 1
        self._give_up(f"{self._directory.path} cannot be written to: {error.strerror}")

    def _give_up(self, reason: str) -> None:
        with self._lock:
            for restore in list(self._restores):
                self._end(restore)
            self._saves.clear()
            self._used.clear()
            first, self._reason = self._reason is None, self._reason or reason
        if first:
            _log.warning("the prefix cache continues without its disk tier: %s", reason)
