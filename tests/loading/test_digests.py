"""Digests of model files: kept on disk, and only for content that cannot have changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from heddle.errors import ModelFileError
from heddle.loading import digests
from heddle.loading.digests import digest_of_files
from heddle.weights.files import FileStamp

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of kept digests. Files count as settled at once."""
    monkeypatch.setenv("HEDDLE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(digests, "_SETTLED", -3600.0)
    return tmp_path / "home" / "digests"


def digest(path: Path) -> str:
    """The digest of a file as it is now, as in a new process."""
    digests._digest_of_files.cache_clear()
    return digest_of_files({path: FileStamp.of(path.stat())})


def test_a_second_process_reads_no_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = digest(file)
    monkeypatch.setattr(digests, "_read_all", lambda _: pytest.fail("reads the file"))
    assert digest(file) == first


def test_other_content_with_the_same_size_and_time_is_read(file: Path) -> None:
    """As after `cp --preserve` of a finetune over its parent."""
    first, times = digest(file), file.stat()
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert FileStamp.of(file.stat()) == FileStamp.of(times)
    assert digest(file) != first


def test_a_file_that_changed_a_moment_ago_is_read_again(
    file: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_SETTLED", 10.0)
    digest(file)
    assert not kept.exists()


def test_a_file_that_changes_during_the_reading_has_no_digest(
    file: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: object) -> str:
        file.write_bytes(b"other weights")
        return "0" * 64

    monkeypatch.setattr(digests, "_read_all", read)
    with pytest.raises(ModelFileError, match="has changed"):
        digest(file)
    assert not kept.exists()


@pytest.mark.parametrize("content", [b"", b"0" * 63, b"g" * 64, b"\xff" * 64, b"0" * 65])
def test_a_damaged_digest_is_made_again(file: Path, kept: Path, content: bytes) -> None:
    first = digest(file)
    [place] = kept.iterdir()
    place.write_bytes(content)
    assert digest(file) == first
    assert place.read_text("ascii") == first


def test_a_folder_that_takes_no_files_is_no_error(file: Path, kept: Path) -> None:
    kept.parent.mkdir()
    kept.write_text("a file where the folder should be")
    assert len(digest(file)) == 64


def test_the_oldest_digests_make_room(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_MOST_KEPT", 2)
    for number in range(4):
        path = tmp_path / str(number)
        path.write_bytes(b"%d" % number)
        digest(path)
        for one in kept.iterdir():
            os.utime(one, ns=(0, one.stat().st_mtime_ns - 10**9))
    assert len(list(kept.iterdir())) == 2
