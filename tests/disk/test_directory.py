"""A directory of page files: budget, order, lock, permissions, and foreign files."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from heddle.disk import directory as module
from heddle.disk.directory import DirectoryInUseError, PageDirectory
from heddle.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def name(number: int) -> str:
    return f"{number:064x}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a" / "cache"


@pytest.fixture
def directory(path: Path) -> Iterator[PageDirectory]:
    directory = PageDirectory(path, 1000)
    yield directory
    directory.close()


def there(directory: PageDirectory) -> list[int]:
    """Numbers of the files. Checks that index and directory agree."""
    names = {file.stem for file in directory.path.glob("*.page")}
    assert names == set(directory._sizes)
    sizes = sum(file.stat().st_size for file in directory.path.glob("*.page"))
    assert (directory.files, directory.bytes) == (len(names), sizes)
    assert directory.bytes <= directory.capacity
    return sorted(int(found, 16) for found in names)


def reopened(directory: PageDirectory, capacity: int = 1000) -> PageDirectory:
    """The directory as the next process opens it; the old lock is released."""
    directory.close()
    opened = PageDirectory(directory.path, capacity)
    directory._descriptor = opened._descriptor
    return opened


def test_a_written_file_is_read_back(directory: PageDirectory) -> None:
    directory.write(name(1), [b"one", memoryview(b" and two")])
    assert name(1) in directory
    assert directory.read(name(1)) == b"one and two"
    directory.remove(name(1))
    directory.remove(name(1))
    assert there(directory) == []


def test_only_this_user_may_read_it(directory: PageDirectory) -> None:
    old = os.umask(0)
    try:
        directory.write(name(1), [b"x"])
    finally:
        os.umask(old)
    modes = [file.stat().st_mode for file in (directory.path, *directory.path.iterdir())]
    assert [stat.S_IMODE(mode) for mode in modes] == [0o700, 0o600, 0o600]


def test_the_least_recently_used_file_is_removed_first(directory: PageDirectory) -> None:
    for number in range(4):
        directory.write(name(number), [bytes(250)])
    directory.touch([name(1), name(0), name(9)])
    directory.write(name(4), [bytes(400)])
    assert there(directory) == [0, 1, 4]
    directory.write(name(5), [bytes(200)])
    assert there(directory) == [0, 4, 5]


def test_a_file_larger_than_the_budget_is_not_written(directory: PageDirectory) -> None:
    directory.write(name(1), [bytes(1000)])
    directory.write(name(2), [bytes(1001)])
    assert there(directory) == [1]


def test_the_order_of_use_survives_a_restart(directory: PageDirectory) -> None:
    for number in range(4):
        directory.write(name(number), [bytes(250)])
    directory.mark([name(2), name(7), name(0)])
    directory = reopened(directory)
    assert there(directory) == [0, 1, 2, 3]
    directory.write(name(4), [bytes(500)])
    assert there(directory) == [0, 2, 4]
    assert there(reopened(directory, 750)) == [0, 4]


def test_the_order_of_use_survives_a_clock_that_stops_or_goes_back(
    directory: PageDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are in reverse order: of two files with equal times the first name is removed."""
    clock = [50]
    monkeypatch.setattr(module.time, "time_ns", lambda: clock[0])
    for number in (4, 3, 2):
        directory.write(name(number), [bytes(250)])
    clock[0] = 7
    directory = reopened(directory)  # the next process continues after the latest file time
    directory.write(name(1), [bytes(250)])
    directory.mark([name(3)])
    found = [directory.file(name(number)).stat().st_mtime_ns for number in (4, 2, 1, 3)]
    assert found == sorted(set(found))
    assert there(reopened(directory, 500)) == [1, 3]


def test_marking_a_removed_file_raises_nothing(directory: PageDirectory) -> None:
    directory.write(name(1), [b"x"])
    directory.file(name(1)).unlink()
    directory.mark([name(1)])
    with pytest.raises(FileNotFoundError):
        directory.read(name(1))


def test_half_written_files_are_removed_and_foreign_files_stay(directory: PageDirectory) -> None:
    directory.write(name(1), [b"x"])
    half = directory.path / f"{name(2)}.page.new"
    half.write_bytes(b"half")
    foreign = [directory.path / "notes.txt", directory.path / f"{name(3)[1:]}.page"]
    for file in foreign:
        file.write_bytes(bytes(5000))
    foreign += [directory.path / f"{name(4)}.page", directory.path / f"{name(5)}.page"]
    foreign[2].mkdir()
    foreign[3].symlink_to(foreign[0])
    directory = reopened(directory)
    assert (directory.files, directory.bytes) == (1, 1)
    assert not half.exists()
    directory.sweep()
    assert not directory.file(name(1)).exists()
    assert all(file.exists() for file in foreign)


def test_a_file_that_cannot_be_removed_leaves_the_index(directory: PageDirectory) -> None:
    directory.write(name(1), [b"x"])
    directory.file(name(1)).unlink()
    directory.file(name(1)).mkdir()
    directory.remove(name(1))
    assert (name(1) in directory, directory.bytes) == (False, 0)


def test_a_file_that_grew_is_not_read_to_its_end(directory: PageDirectory) -> None:
    directory.write(name(1), [b"abc"])
    directory.file(name(1)).write_bytes(bytes(10_000))
    assert len(directory.read(name(1))) == 4


@pytest.mark.parametrize("after", [0, 3])
def test_a_failed_write_leaves_no_file(
    directory: PageDirectory, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The disk is full at the first write, or after some bytes."""
    real, written = os.write, 0

    def write(descriptor: int, data: memoryview) -> int:
        nonlocal written
        if written == after:
            raise OSError(errno.ENOSPC, "No space left on device")
        written += real(descriptor, data[: after - written])
        return written

    monkeypatch.setattr(module.os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        directory.write(name(1), [b"abcdef"])
    monkeypatch.undo()
    assert [file.name for file in directory.path.iterdir()] == ["lock"]
    directory.write(name(1), [b"abcdef"])
    assert directory.read(name(1)) == b"abcdef"


def test_a_write_may_take_several_calls(
    directory: PageDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(module.os, "write", lambda descriptor, data: real(descriptor, data[:2]))
    directory.write(name(1), [b"abc", b"de"])
    assert directory.read(name(1)) == b"abcde"


def test_a_directory_is_locked_within_a_process(directory: PageDirectory) -> None:
    with pytest.raises(DirectoryInUseError):
        PageDirectory(directory.path, 1000)
    there(reopened(directory))


@pytest.mark.parametrize("step", ["flock", "scan"])
def test_a_directory_that_cannot_be_opened_stays_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as broken:
        target = (module.fcntl, "flock") if step == "flock" else (PageDirectory, "_scan")
        broken.setattr(*target, refuse)
        with pytest.raises(ConfigError, match="No locks available"):
            PageDirectory(tmp_path, 1000)
    PageDirectory(tmp_path, 1000).close()


def test_a_directory_is_locked_across_processes(directory: PageDirectory) -> None:
    code = (
        "import sys, pathlib; from heddle.disk.directory import *\n"
        "try: PageDirectory(pathlib.Path(sys.argv[1]), 1000)\n"
        "except DirectoryInUseError: sys.exit(7)\n"
    )
    command = [sys.executable, "-c", code, str(directory.path)]
    assert subprocess.run(command, check=False, timeout=60).returncode == 7
    directory.close()
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    reopened_here = PageDirectory(directory.path, 1000)  # closing the first one released its lock
    directory._descriptor = reopened_here._descriptor


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match=r"others may write to it.*chmod 700") as refused:
        PageDirectory(tmp_path, 1000)
    assert refused.value.param == "prefix_cache_dir"
    tmp_path.chmod(0o755)
    PageDirectory(tmp_path, 1000).close()


def test_a_path_that_is_not_a_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        with pytest.raises(ConfigError, match="cannot be used"):
            PageDirectory(path, 1000)
