"""Saving and restoring pages beside the engine: a thread with two queues, and when to give up.

The engine thread hands over what is evicted (`save`) and asks for what a prompt needs (`restore`);
neither waits. The tier's own thread reads, verifies and writes, reading first: someone waits for
that. Pages cross over as copies, so that no file call ever sees memory that a step may write to.

Whatever goes wrong here costs time and nothing else. A page that cannot be read, or is not what was
asked for, ends its restore with one warning, and the tokens are computed. A medium that refuses
to be written to, is full, or does not answer ends the tier, with one warning.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from heddle.disk.page_file import PageFileError, Prefix, file_bytes, page_in, parts_of, scope_of
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from heddle.disk.directory import PageDirectory
    from heddle.disk.page_file import Run
    from heddle.step import PageMemory

_log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds that a file call may take while a page is waited for; then the tier is given up."""

_SAVE_BYTES = 64 << 20  # of pages that wait to be written; more are dropped
_AHEAD_BYTES = 8 << 20  # of pages of one restore that wait to be loaded
_CLOSE_SECONDS = 5.0  # for what is written at the end: a stopped container is killed after ten


@dataclass(frozen=True, slots=True)
class WarmPage:
    """A full page in memory.

    Attributes:
        salt: of its prefix.
        tokens: the prefix, from its first token to the page's last.
        page: page id, of the group of all positions.
        windows: page ids for the same tokens, of the windowed groups.
        snapshot: of the fixed-size state at the end of the page; None without one.
    """

    salt: str | None
    tokens: Run[int]
    page: int
    windows: tuple[int, ...] = ()
    snapshot: int | None = None


@dataclass(slots=True, eq=False)
class Restore:
    """Pages of one prefix on their way from disk. Written by its tier alone.

    Where layers keep a state of fixed size, the snapshot at the end of the last page comes last.

    Attributes:
        prefix: what they hold, up to the last of them.
        names: of their files and of those of the pages before; page i has `names[i]`, and the
            snapshot the last name.
        first: number of the first page that is read.
        next: number of the page to be read next; the snapshot counts as one.
        ready: pages that were read, in order, and wait to be loaded.
        loaded: pages that were.
        ended: nothing comes after `ready`.
        asked: when the page that is waited for was asked for, by the monotonic clock.
    """

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
        """Pages of the prefix."""
        return len(self.prefix.tokens) // PAGE_TOKENS

    @property
    def awaits_snapshot(self) -> bool:
        """Whether what comes next is the snapshot."""
        return self.first + self.loaded == self.pages < len(self.names)

    @property
    def is_complete(self) -> bool:
        """Whether all of it was loaded."""
        return self.first + self.loaded == len(self.names)


@dataclass(frozen=True, slots=True)
class DiskStats:
    """The disk tier at one moment, and totals since the start.

    Attributes:
        enabled: whether pages are saved and restored.
        reason: why they are not; None if they are.
        files, bytes, capacity_bytes: what the directory holds, and may hold.
        hits: restores that brought at least one page.
        restored_tokens: how many tokens were taken from files.
        writes: pages written.
        dropped: pages that were not, because too many waited to be, or the time to close was up.
        errors: files that could not be read or did not hold what they should, and failed writes.
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
    """A file to be written: what decides its content, its name, and how to get the content."""

    prefix: Prefix
    name: str
    content_bytes: int
    read: Callable[[], memoryview]


class DiskTier:
    """Pages of one model in one directory.

    All methods are for the engine thread, but for `stats`, which any may call, and `work`.

    Args:
        directory: closed by the tier.
        memory: where pages are copied from and to.
        page_bytes: size of one.
        fingerprint: see :class:`Prefix`.
        on_read: called in the tier's thread when a restore has got further, or has ended.
        threaded: whether there is a thread. Without one its owner calls `work`.
        snapshot_bytes: size of a snapshot of fixed-size state; 0 if no layer keeps such a state.
    """

    def __init__(
        self,
        directory: PageDirectory,
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
        self._snapshot_fingerprint = hashlib.sha256(b"snapshot" + fingerprint).digest()
        self._on_read = on_read
        self._most_saves = max(1, _SAVE_BYTES // max(1, page_bytes + snapshot_bytes))
        self._most_ahead = max(1, _AHEAD_BYTES // max(1, page_bytes))
        self._hits = self._restored = self._writes = self._dropped = self._errors = 0
        self._worked = 0.0  # when a job was last done, by the monotonic clock
        # Guarded by the lock:
        self._lock = threading.Lock()
        self._work_to_do = threading.Condition(self._lock)
        self._reason: str | None = None  # why the tier has ended
        self._restores: list[Restore] = []  # with pages to read
        self._saves: dict[str, tuple[Prefix, memoryview]] = {}  # in order
        self._used: list[str] = []  # files to be marked so, in order
        self._sweep = False
        self._closing = False
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._run, name="heddle-disk", daemon=True)
            self._thread.start()

    # --- for the cache manager -------------------------------------------------------------------

    def save(self, page: WarmPage) -> None:
        """Keep a page, and the snapshot at its end. Copies them and returns.

        Dropped if too many pages wait to be written.
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

    def find(self, salt: str | None, tokens: Run[int], first: int) -> Restore | None:
        """What is there of the pages of `tokens` from number `first` on, whole pages of them.

        As many as there are in one row; None without any.
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
        return Restore(prefix.up_to(len(names)), names, first, first)

    def _find_snapshot(self, prefix: Prefix, names: list[str], first: int) -> Restore | None:
        """The same up to the last snapshot that is there."""
        states = list(self._snapshot_prefix(prefix).names())
        for pages in range(len(names), first, -1):
            if states[pages - 1] in self._directory:
                found = [*names[:pages], states[pages - 1]]
                return Restore(prefix.up_to(pages), found, first, first)
        return None

    def begin(self, restore: Restore) -> None:
        """Read what was found."""
        restore.asked = time.monotonic()
        with self._lock:
            self._restores.append(restore)
            self._use(restore.names[::-1])  # the first pages last: without them no other is found
            self._work_to_do.notify()

    def load(self, restore: Restore, page: int, windows: Sequence[int] = ()) -> None:
        """Put the page that is ready into memory page `page`, and into those of the windows."""
        with self._lock:
            content = restore.ready.popleft()
            restore.asked = time.monotonic()
            self._work_to_do.notify()  # there is room to read ahead
        self._memory.write_page(page, content, windows)
        self._hits += restore.loaded == 0
        self._restored += PAGE_TOKENS
        restore.loaded += 1

    def load_snapshot(self, restore: Restore, snapshot: int) -> None:
        """Put the snapshot that is ready where it belongs. The restore is complete then."""
        with self._lock:
            content = restore.ready.popleft()
        self._memory.write_snapshot(snapshot, content)
        restore.loaded += 1

    def check(self, restore: Restore) -> None:
        """Give up if its next page does not come."""
        if restore.ready or restore.ended:
            return
        if time.monotonic() - max(restore.asked, self._worked) > PATIENCE:  # others come first
            self._give_up(f"a page was not read within {PATIENCE:.0f} s")

    def cancel(self, restore: Restore) -> None:
        """No one waits for it any more."""
        with self._lock:
            self._end(restore)

    def flush(self) -> None:
        """Drop all that is there, of other models as well."""
        with self._lock:
            for restore in list(self._restores):
                self._end(restore)
            self._saves.clear()
            self._used.clear()
            self._directory.forget()
            self._sweep = True
            self._work_to_do.notify()

    def close(self, warm: Iterable[WarmPage] = ()) -> None:
        """Finish what was handed over, keep the `warm` pages too, and let go of the directory.

        They come the most useful first, and are kept in that order as long as they fit and there is
        time.
        """
        deadline = time.monotonic() + _CLOSE_SECONDS
        with self._lock:
            for restore in list(self._restores):
                self._end(restore)
            self._closing = True
            self._work_to_do.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
            if self._thread.is_alive():  # in a file call; the directory stays locked until it ends
                self._give_up("it did not end in time")
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
        """Figures."""
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
        """Do what is most urgent; false if there is nothing to do."""
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
        """The page to be read next; None if its file does not hold it, and then it is removed."""
        number = restore.next
        name = restore.names[number]
        prefix, size = restore.prefix.up_to(number + 1), self._page_bytes
        if number == restore.pages:
            prefix, size = self._snapshot_prefix(restore.prefix), self._snapshot_bytes
        try:
            content = self._directory.read(name)
            return page_in(content, prefix, size)
        except OSError as error:
            problem = str(error.strerror)
        except PageFileError as error:
            problem = str(error)
        if not restore.ended:  # by a flush, which takes files away
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

    def _prefix(self, salt: str | None, tokens: Run[int]) -> Prefix:
        return Prefix(self._fingerprint, scope_of(salt), tokens)

    def _snapshot_prefix(self, prefix: Prefix) -> Prefix:
        """What decides the content of snapshots at the ends of the prefix's pages."""
        return Prefix(self._snapshot_fingerprint, prefix.scope, prefix.tokens)

    def _files_of(self, page: WarmPage) -> Iterator[_File]:
        """What is written to keep a page."""
        prefix, memory = self._prefix(page.salt, page.tokens), self._memory
        read_page = partial(memory.read_page, page.page, page.windows)
        yield _File(prefix, prefix.name, self._page_bytes, read_page)
        if page.snapshot is not None:
            prefix = self._snapshot_prefix(prefix)
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
            _log.warning("the prefix cache goes on without its disk tier: %s", reason)
