"""Saving and restoring pages beside the engine: a thread with two queues, and when to give up.

The engine thread hands over what is evicted (`save`) and asks for what a prompt needs (`restore`);
neither waits. The tier's own thread reads, verifies and writes, reading first: someone waits for
that. Pages cross over as copies, so that no file call ever sees memory that a step may write to.

Whatever goes wrong here costs time and nothing else. A page that cannot be read, or is not what was
asked for, ends its restore with one warning, and the tokens are computed. A medium that refuses
to be written to, is full, or does not answer ends the tier, with one warning.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from heddle.disk.page_file import PageFileError, Prefix, file_bytes, page_in, parts_of, scope_of
from heddle.step import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from heddle.disk.directory import PageDirectory
    from heddle.disk.page_file import Run
    from heddle.step import PageMemory

_log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds that a file call may take while a page is waited for; then the tier is given up."""

_SAVE_BYTES = 64 << 20  # of pages that wait to be written; more are dropped
_AHEAD_BYTES = 8 << 20  # of pages of one restore that wait to be loaded
_CLOSE_SECONDS = 5.0  # for what is written at the end: a stopped container is killed after ten


@dataclass(slots=True, eq=False)
class Restore:
    """Pages of one prefix on their way from disk. Written by its tier alone.

    Attributes:
        prefix: what they hold, up to the last of them.
        names: of their files and of those of the pages before; page i has `names[i]`.
        next: number of the page to be read next.
        ready: pages that were read, in order, and wait to be loaded.
        loaded: pages that were.
        ended: nothing comes after `ready`.
        asked: when the page that is waited for was asked for, by the monotonic clock.
    """

    prefix: Prefix
    names: list[str]
    next: int
    ready: deque[memoryview] = field(default_factory=deque)
    loaded: int = 0
    ended: bool = False
    asked: float = 0.0


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
    ) -> None:
        self._directory = directory
        self._memory = memory
        self._page_bytes = page_bytes
        self._fingerprint = fingerprint
        self._on_read = on_read
        self._most_saves = max(1, _SAVE_BYTES // page_bytes)
        self._most_ahead = max(1, _AHEAD_BYTES // page_bytes)
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

    def save(self, salt: str | None, tokens: Run[int], page: int) -> None:
        """Keep a page in which these tokens end, whole pages of them. Copies it and returns.

        Dropped if too many pages wait to be written.
        """
        prefix = self._prefix(salt, tokens)
        name = prefix.name
        with self._lock:
            if self._reason is not None or name in self._saves:
                return
            if name in self._directory and not self._sweep:
                self._use([name])
            elif len(self._saves) >= self._most_saves:
                self._dropped += 1
            else:
                self._saves[name] = prefix, self._memory.read_page(page)
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
        if len(names) <= first:
            return None
        return Restore(prefix.up_to(len(names)), names, first)

    def begin(self, restore: Restore) -> None:
        """Read what was found."""
        restore.asked = time.monotonic()
        with self._lock:
            self._restores.append(restore)
            self._use(restore.names[::-1])  # the first pages last: without them no other is found
            self._work_to_do.notify()

    def load(self, restore: Restore, page: int) -> None:
        """Put the page that is ready into memory page `page`."""
        with self._lock:
            content = restore.ready.popleft()
            restore.asked = time.monotonic()
            self._work_to_do.notify()  # there is room to read ahead
        self._memory.write_page(page, content)
        self._hits += restore.loaded == 0
        self._restored += PAGE_TOKENS
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

    def close(self, warm: Iterable[tuple[str | None, Run[int], int]] = ()) -> None:
        """Finish what was handed over, keep the `warm` pages too, and let go of the directory.

        They are given as to `save`, the most useful first, and kept in that order as long as they
        fit and there is time.
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
        try:
            content = self._directory.read(name)
            return page_in(content, restore.prefix.up_to(number + 1), self._page_bytes)
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

    def _use(self, names: list[str]) -> None:
        self._directory.touch(names)
        self._used += names
        self._work_to_do.notify()

    def _end(self, restore: Restore) -> None:
        restore.ended = True
        if restore in self._restores:
            self._restores.remove(restore)

    def _keep(self, warm: Iterable[tuple[str | None, Run[int], int]], deadline: float) -> None:
        room, names = self._directory.capacity, []
        pages = iter(warm)
        for salt, tokens, page in pages:
            prefix = self._prefix(salt, tokens)
            room -= file_bytes(prefix, self._page_bytes)
            late = time.monotonic() > deadline
            if room < 0 or late:
                self._dropped += 1 + sum(1 for _ in pages)
                break
            names.append(prefix.name)
            self._directory.touch(names[-1:])
            if prefix.name not in self._directory:
                self._directory.write(names[-1], parts_of(prefix, self._memory.read_page(page)))
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
