"""Saving and restoring pages: which are served, which are dropped, and when the tier ends."""

from __future__ import annotations

import errno
import logging
import threading
from array import array
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from heddle.disk import tier as module
from heddle.disk.directory import PageDirectory
from heddle.disk.tier import DiskTier, WarmPage
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from heddle.disk.tier import Restore

PAGE_BYTES = 100
FILE_BYTES = 16 + 88 + 4 * PAGE_TOKENS + PAGE_BYTES  # of a first page


class Memory:
    """Pages filled with their own number until something is written."""

    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}

    def read_page(self, page: int, windows: Sequence[int] = ()) -> memoryview:
        return memoryview(self.pages.get(page, bytes([page]) * PAGE_BYTES))

    def write_page(self, page: int, content: memoryview, windows: Sequence[int] = ()) -> None:
        self.pages[page] = bytes(content)


def tokens(pages: int, salt: int = 0) -> array[int]:
    return array("i", [salt + number for number in range(pages * PAGE_TOKENS)])


class Host:
    """A tier without a thread, run by the test, in a directory that outlives it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start()

    def start(self, capacity: int = 10**6, fingerprint: bytes = b"f" * 32) -> None:
        self.memory = Memory()
        self.read = 0
        self.directory = PageDirectory(self.path, capacity)
        self.tier = DiskTier(
            self.directory, self.memory, PAGE_BYTES, fingerprint, self.on_read, threaded=False
        )

    def restart(self, *warm: WarmPage, **arguments: object) -> None:
        self.tier.close(warm)
        self.start(**arguments)

    def on_read(self) -> None:
        self.read += 1

    def work(self) -> int:
        done = 0
        while self.tier.work():
            done += 1
        return done

    def save(self, pages: int, salt: str | None = None, kind: int = 0) -> None:
        """Page i of the prefix has bytes i + 1; they are saved from the last to the first."""
        for page in range(pages, 0, -1):
            self.tier.save(WarmPage(salt, tokens(page, kind), page))
        self.work()

    def found(self, pages: int = 9, first: int = 0, salt: str | None = None, kind: int = 0) -> int:
        """Number of the page where the prefix on disk ends; 0 if none is found."""
        restore = self.tier.find(salt, tokens(pages, kind), first)
        return 0 if restore is None else len(restore.names)

    def begin(self, pages: int = 9, first: int = 0) -> Restore:
        restore = self.tier.find(None, tokens(pages), first)
        assert restore is not None
        self.tier.begin(restore)
        return restore

    def restored(self, pages: int = 9, first: int = 0) -> list[int]:
        """Numbers of the restored pages."""
        restore = self.begin(pages, first)
        got = []
        while not restore.ended or restore.ready:
            self.work()
            while restore.ready:
                self.tier.load(restore, 77)
                got.append(self.memory.pages[77][0])
                assert self.memory.pages[77] == bytes([got[-1]]) * PAGE_BYTES
        return got

    def file(self, page: int) -> Path:
        return self.directory.file(self.tier._prefix(None, tokens(page)).name)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "cache")
    yield host
    host.tier.close()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Messages since the last call."""
    caplog.set_level(logging.WARNING)

    def taken() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return taken


def test_pages_are_restored_in_order(host: Host) -> None:
    host.save(5)
    assert host.restored() == [1, 2, 3, 4, 5]
    assert host.restored(pages=3, first=1) == [2, 3]
    stats = host.tier.stats()
    assert (stats.hits, stats.restored_tokens, stats.writes) == (2, 7 * PAGE_TOKENS, 5)
    assert (stats.files, stats.errors, stats.dropped) == (5, 0, 0)
    assert stats.bytes == sum(FILE_BYTES + 4 * PAGE_TOKENS * page for page in range(5))
    assert host.read == 7


def test_pages_are_restored_after_a_restart(host: Host) -> None:
    host.save(2)
    host.restart(WarmPage(None, tokens(3), 3), WarmPage(None, tokens(4), 4))
    assert host.restored() == [1, 2, 3, 4]
    host.restart(fingerprint=b"g" * 32)
    assert host.found() == 0
    assert host.tier.stats().files == 4


def test_only_the_same_salt_finds_them(host: Host) -> None:
    host.save(2, salt="one")
    host.restart()
    assert host.found(salt="one") == 2
    assert [host.found(salt=salt) for salt in (None, "", "two")] == [0, 0, 0]
    assert all(b"one" not in file.read_bytes() for file in host.path.iterdir())


def test_only_the_same_tokens_find_them(host: Host) -> None:
    host.save(3)
    host.save(3, kind=1)
    assert host.found(kind=2) == 0
    assert host.found(pages=2) == 2
    other = tokens(3)
    other[PAGE_TOKENS] = -1
    restore = host.tier.find(None, other, 0)
    assert restore is not None
    assert len(restore.names) == 1
    assert host.tier.find(None, other, 1) is None


def test_a_lookup_ends_at_the_first_missing_page(host: Host) -> None:
    host.save(4)
    host.directory.remove(host.tier._prefix(None, tokens(3)).name)
    assert host.found() == 2
    assert host.found(first=2) == 0
    assert host.found(first=3) == 4, "the tree has the page before"


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(file.read_bytes()[:-1] + b"!"),
        lambda file: file.write_bytes(file.read_bytes() * 2),
        lambda file: file.unlink(),
    ],
)
def test_a_damaged_file_is_skipped_with_one_warning(host: Host, warnings, damage) -> None:
    host.save(4)
    damage(host.file(3))
    assert host.restored() == [1, 2]
    assert [text.count(str(host.file(3))) for text in warnings()] == [1]
    assert host.restored() == [1, 2]
    assert warnings() == []
    assert host.tier.stats().errors == 1
    host.save(4)
    assert host.restored() == [1, 2, 3, 4]


def test_a_file_under_another_name_is_skipped(host: Host, warnings) -> None:
    host.save(2)
    host.save(1, kind=1)
    stranger = host.tier._prefix(None, tokens(1, 1)).name
    host.file(1).write_bytes(host.directory.read(stranger))
    restore = host.begin()
    host.work()
    assert (restore.ended, len(restore.ready)) == (True, 0)
    assert len(warnings()) == 1


def test_a_full_disk_ends_the_tier_with_one_warning(host: Host, warnings, monkeypatch) -> None:
    host.save(2)
    restore = host.begin()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(host.directory, "write", full)
    host.save(6)
    assert len(warnings()) == 1
    stats = host.tier.stats()
    assert (stats.enabled, stats.files, stats.errors) == (False, 2, 1)
    assert "No space left on device" in (stats.reason or "")
    assert restore.ended
    host.save(6)
    host.save(6, kind=1)
    assert host.found() == 0
    host.tier.close([WarmPage(None, tokens(9), 9)])
    assert warnings() == []
    monkeypatch.undo()
    host.start()
    assert host.restored() == [1, 2]


def test_a_disk_that_is_full_at_close_gives_one_warning(host: Host, warnings, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(host.directory, "write", full)
    host.tier.close([WarmPage(None, tokens(pages), pages) for pages in (1, 2)])
    assert len(warnings()) == 1
    host.start()


def test_pages_that_wait_for_a_write_are_bounded(host: Host, monkeypatch) -> None:
    monkeypatch.setattr(host.tier, "_most_saves", 2)
    for page in (3, 2, 1):
        host.tier.save(WarmPage(None, tokens(page), page))
        host.tier.save(WarmPage(None, tokens(3), 3))
    assert host.tier.stats().dropped == 1
    host.work()
    assert host.tier.stats().writes == 2
    assert host.found() == 0
    assert host.found(first=1) == 3


def test_save_copies_the_page_at_once(host: Host) -> None:
    host.tier.save(WarmPage(None, tokens(1), 1))
    host.memory.pages[1] = bytes(PAGE_BYTES)
    host.work()
    assert host.restored() == [1]


def test_pages_read_ahead_are_bounded(host: Host, monkeypatch) -> None:
    host.save(6)
    monkeypatch.setattr(host.tier, "_most_ahead", 2)
    restore = host.begin()
    host.work()
    assert len(restore.ready) == 2
    host.tier.load(restore, 50)
    host.work()
    assert len(restore.ready) == 2
    assert host.restored() == [1, 2, 3, 4, 5, 6]


def test_reads_go_before_writes(host: Host) -> None:
    host.save(1)
    host.tier.save(WarmPage(None, tokens(1, 5), 9))
    restore = host.begin()
    assert host.tier.work()
    assert restore.ready
    assert host.tier.stats().writes == 1


def test_a_cancelled_restore_reads_no_more_pages(host: Host) -> None:
    host.save(3)
    restore = host.begin()
    host.tier.work()
    host.tier.cancel(restore)
    host.work()
    assert (len(restore.ready), restore.ended) == (1, True)
    host.tier.cancel(restore)


def test_a_page_read_during_the_cancel_of_its_restore_is_dropped(host: Host, monkeypatch) -> None:
    host.save(1)
    restore = host.begin()
    read = host.directory.read

    def cancelled(name: str) -> bytes:
        host.tier.cancel(restore)
        return read(name)

    monkeypatch.setattr(host.directory, "read", cancelled)
    host.work()
    assert (len(restore.ready), restore.ended) == (0, True)


def test_the_budget_holds_and_recently_used_pages_stay(host: Host) -> None:
    first = FILE_BYTES
    host.restart(capacity=4 * first)
    for kind in range(4):
        host.save(1, kind=kind)
    assert host.restored() == [1]
    host.save(1, kind=4)
    host.work()
    assert [host.found(kind=kind) for kind in range(5)] == [1, 0, 1, 1, 1]
    host.save(1, kind=2)
    host.restart(capacity=2 * first)
    assert [host.found(kind=kind) for kind in range(5)] == [0, 0, 1, 0, 1]


def test_the_first_pages_of_a_prefix_are_removed_last(host: Host) -> None:
    host.save(3)
    host.restored()
    host.work()
    host.restart(capacity=2 * FILE_BYTES + 4 * PAGE_TOKENS)
    assert host.found() == 2


def test_close_keeps_the_most_useful_pages(host: Host) -> None:
    host.save(1, kind=1)
    host.restart(capacity=2 * FILE_BYTES + 4 * PAGE_TOKENS)
    warm = [WarmPage(None, tokens(page), page) for page in (1, 2, 3, 4)]
    host.restart(*warm, capacity=2 * FILE_BYTES + 4 * PAGE_TOKENS)
    assert (host.found(), host.found(kind=1)) == (2, 0)
    host.restart(capacity=FILE_BYTES)
    assert host.restored() == [1]


def test_close_keeps_no_page_after_its_time_limit(host: Host, monkeypatch) -> None:
    monkeypatch.setattr(module, "_CLOSE_SECONDS", -1.0)
    host.tier.close([WarmPage(None, tokens(page), page) for page in (1, 2)])
    assert host.tier.stats().dropped == 2
    host.start()
    assert host.found() == 0


def test_a_flush_leaves_no_file(host: Host) -> None:
    host.save(2)
    host.tier.save(WarmPage(None, tokens(3), 3))
    restore = host.begin()
    host.tier.work()
    host.tier.flush()
    assert (restore.ended, host.found(), host.tier.stats().bytes) == (True, 0, 0)
    host.tier.save(WarmPage(None, tokens(1, 8), 8))
    host.work()
    assert [host.found(), host.found(kind=8)] == [0, 1]
    assert len(list(host.path.glob("*.page"))) == 1


def test_a_flush_removes_a_file_that_is_being_written(host: Host, monkeypatch) -> None:
    write = host.directory.write

    def interrupted(*arguments: object) -> None:
        host.tier.flush()
        write(*arguments)
        assert host.found() == 0

    monkeypatch.setattr(host.directory, "write", interrupted)
    host.save(1)
    assert list(host.path.glob("*.page*")) == []
    assert host.tier.stats().files == 0


def test_a_page_saved_before_the_sweep_of_a_flush_is_written_again(host: Host, monkeypatch) -> None:
    write = host.directory.write

    def interrupted(*arguments: object) -> None:
        host.tier.flush()
        write(*arguments)

    host.tier.save(WarmPage(None, tokens(1), 1))
    with monkeypatch.context() as patch:
        patch.setattr(host.directory, "write", interrupted)
        host.tier.work()
    host.tier.save(WarmPage(None, tokens(1), 1))  # before the sweep
    host.work()
    assert host.found() == 1


def test_a_flush_that_fails_ends_the_tier(host: Host, warnings, monkeypatch) -> None:
    def refuse() -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    host.save(1)
    monkeypatch.setattr(host.directory, "sweep", refuse)
    host.tier.flush()
    host.work()
    assert "Read-only file system" in warnings()[0]
    assert host.found() == 0


def test_a_read_without_progress_ends_the_tier(host: Host, warnings, monkeypatch) -> None:
    host.save(1)
    restore = host.begin()
    host.tier.check(restore)
    assert not restore.ended
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    host.tier.check(restore)
    assert restore.ended
    assert len(warnings()) == 1
    assert host.tier.stats().reason


def test_a_restore_that_waits_for_other_reads_does_not_end_the_tier(
    host: Host, monkeypatch
) -> None:
    for kind in (0, 1):
        host.save(3, kind=kind)
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=0.0)
    monkeypatch.setattr(module, "time", clock)
    first = host.begin()
    second = host.tier.find(None, tokens(3, 1), 0)
    assert second is not None
    host.tier.begin(second)
    for page in (1, 2, 3):
        clock.now += module.PATIENCE - 1.0  # a slow disk that reads the second restore later
        host.tier.work()
        host.tier.check(second)
        assert (len(first.ready), len(second.ready), second.ended) == (page, 0, False)
    clock.now += module.PATIENCE + 1.0
    host.tier.check(second)
    assert second.ended
    assert "not read" in (host.tier.stats().reason or "")


def test_the_tier_thread_reads_writes_and_ends(tmp_path: Path) -> None:
    memory, read = Memory(), threading.Semaphore(0)

    def opened() -> DiskTier:
        directory = PageDirectory(tmp_path / "cache", 10**6)
        return DiskTier(directory, memory, PAGE_BYTES, b"f" * 32, read.release)

    tier = opened()
    for page in (2, 1):
        tier.save(WarmPage(None, tokens(page), page))
    tier.close([WarmPage(None, tokens(3), 3)])
    assert tier._thread is not None
    assert not tier._thread.is_alive()
    tier = opened()
    restore = tier.find(None, tokens(3), 0)
    assert restore is not None
    tier.begin(restore)
    for page in (41, 42, 43):
        assert read.acquire(timeout=60)
        tier.load(restore, page)
    assert [memory.pages[page][0] for page in (41, 42, 43)] == [1, 2, 3]
    tier.close()


def test_a_bug_in_the_tier_thread_ends_only_the_tier(tmp_path: Path, warnings) -> None:
    directory = PageDirectory(tmp_path / "cache", 10**6)
    read = threading.Semaphore(0)
    tier = DiskTier(directory, Memory(), PAGE_BYTES, b"f" * 32, read.release)
    directory.write = None  # type: ignore[assignment,method-assign]
    tier.save(WarmPage(None, tokens(1), 1))
    assert read.acquire(timeout=60)
    assert "it failed" in (tier.stats().reason or "")
    assert len(warnings()) == 2
    tier.save(WarmPage(None, tokens(1), 1))
    tier.close()
