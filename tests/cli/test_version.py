"""`heddle --version`: commit, levels and extras."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from heddle import _native
from heddle.cli import version

if TYPE_CHECKING:
    from pathlib import Path


class Installed:
    """A distribution with these files and requirements."""

    version = "1.2.3"

    def __init__(self, told: str | None = None, *requires: str) -> None:
        self.requires, self._told = requires, told

    def read_text(self, _name: str) -> str | None:
        return self._told


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "_SOURCE", tmp_path)
    monkeypatch.setattr(version, "_BUILT", tmp_path / "commit")


def described(monkeypatch: pytest.MonkeyPatch, *installed: Any) -> list[str]:
    monkeypatch.setattr(version, "distribution", lambda _name: Installed(*installed))
    return version.described().splitlines()


def test_version_levels_and_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    requires = (
        "numpy>=1",
        "pytest>=8 ; extra == 'test'",
        'no-such-package>=1; extra == "gpu"',
        "hypothesis>=2; python_version > '3' and extra == \"gpu\"",
        "pytest; extra == 'kv-events'",
    )
    first, levels, extras = described(monkeypatch, None, *requires)
    assert first == "heddle 1.2.3"
    assert levels == f"levels {', '.join(_native.isa_levels())}"
    assert extras == "extras test, kv-events"
    assert described(monkeypatch)[-1] == "extras none"


def test_the_commit_of_a_package_of_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    told = '{"url": "u", "vcs_info": {"vcs": "git", "commit_id": "0123456789abcdef"}}'
    assert described(monkeypatch, told)[0] == "heddle 1.2.3, commit 0123456789ab"
    assert described(monkeypatch, '{"dir_info": {}, "url": "u"}')[0] == "heddle 1.2.3"


def test_the_commit_of_a_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "commit").write_text("01234567\n")
    assert described(monkeypatch)[0] == "heddle 1.2.3, commit 01234567"


def test_the_commit_of_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", tmp_path, *name, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("a")
    git("add", ".")
    git("commit", "-m", "a")
    first = described(monkeypatch)[0]
    commit = first.removeprefix("heddle 1.2.3, commit ")
    git("cat-file", "commit", commit)
    (tmp_path / "file").write_text("b")
    assert described(monkeypatch)[0] == f"{first}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert described(monkeypatch)[0] == "heddle 1.2.3", "without git"
