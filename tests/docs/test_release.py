"""How a tree becomes a release, and what it comes with."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from release import ROOT as REPOSITORY
from release import (
    ReleaseError,
    check,
    cut,
    cut_changelog,
    git,
    ordered,
    unreleased,
    versions,
    write_sbom,
    write_sums,
)

CHANGELOG = """# Changelog

## [Unreleased]

### Added

- A thing.

## [0.1.0] - 2026-11-24

- The first.
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with what a release changes."""
    files = {
        "pyproject.toml": '[project]\nname = "heddle"\nversion = "0.1.0"\nother = "0.1.0"\n',
        ".github/ISSUE_TEMPLATE/bug.yml": "body:\n  placeholder: heddle 0.1.0\n",
        "CHANGELOG.md": CHANGELOG,
        "scripts/write_formats.py": "import pathlib, sys\npathlib.Path(sys.argv[2]).touch()\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    for name, value in [("user.name", "A"), ("user.email", "a@b.c"), ("commit.gpgsign", "false")]:
        git(tmp_path, "config", name, value)
    commit(tmp_path)
    return tmp_path


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Change")


def test_a_release_has_its_version_everywhere_and_a_tag(root: Path) -> None:
    cut(root, "0.2.0", "2026-12-01")
    assert set(versions(root).values()) == {"0.2.0"}
    assert 'other = "0.1.0"' in (root / "pyproject.toml").read_text()
    title = "## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n### Added\n\n- A thing.\n\n## [0.1.0]"
    assert title in (root / "CHANGELOG.md").read_text()
    assert git(root, "status", "--porcelain") == ""
    assert (root / "0.2.0").exists()  # by its write_formats.py
    assert git(root, "rev-parse", "v0.2.0^{commit}") == git(root, "rev-parse", "HEAD")
    with pytest.raises(ReleaseError, match="no entry under Unreleased"):
        check(root, "0.3.0")


def test_a_dry_run_changes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = git(root, "rev-parse", "HEAD")
    cut(root, "0.2.0", "2026-12-01", is_dry=True)
    assert "tag v0.2.0" in capsys.readouterr().out
    assert git(root, "rev-parse", "HEAD") == before
    assert git(root, "tag") == git(root, "status", "--porcelain") == ""


@pytest.mark.parametrize("version", ["0.1.0", "0.0.9"])
def test_a_version_must_be_later(root: Path, version: str) -> None:
    with pytest.raises(ReleaseError, match=r"is not later than 0\.1\.0"):
        check(root, version)


def test_versions_are_ordered_by_number() -> None:
    assert ordered("0.10.0") > ordered("0.9.1")
    with pytest.raises(ReleaseError, match=r"'v1\.0' is no version"):
        ordered("v1.0")


def test_a_tree_with_changes_is_no_release(root: Path) -> None:
    (root / "new").touch()
    with pytest.raises(ReleaseError, match=r"has changes.*\n.*new"):
        check(root, "0.2.0")


def test_versions_must_agree(root: Path) -> None:
    (root / ".github/ISSUE_TEMPLATE/bug.yml").write_text("  placeholder: heddle 0.0.9\n")
    commit(root)
    with pytest.raises(ReleaseError, match="versions differ"):
        check(root, "0.2.0")


def test_a_tag_is_not_moved(root: Path) -> None:
    git(root, "tag", "v0.2.0")
    with pytest.raises(ReleaseError, match=r"the tag v0\.2\.0 exists"):
        check(root, "0.2.0")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# Changelog\n\n## [0.1.0]\n\n- The first.\n", "must begin with"),
        ("## [0.1.0]\n\n## [Unreleased]\n\n- A thing.\n", "must begin with"),
        ("## [Unreleased]\n\n### Added\n\n## [0.1.0]\n\n- The first.\n", "no entry"),
    ],
)
def test_a_changelog_without_entries_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ReleaseError, match=reason):
        unreleased(text)


def test_the_changelog_of_the_repository_can_be_cut() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")
    new = cut_changelog(text, "99.0.0", "2099-01-01")
    assert len(new) == len(text) + len("## [99.0.0] - 2099-01-01\n\n")
    assert len(set(versions(REPOSITORY).values())) == 1
    assert re.search(r"## \[99\.0\.0\] - 2099-01-01\n\n### ", new)


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "b.whl").write_bytes(b"b")
    (tmp_path / "a.tar.gz").write_bytes(b"a")
    for _ in range(2):  # the second time, its own file is there
        write_sums(tmp_path)
    lines = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert lines[1] == f"{hashlib.sha256(b'b').hexdigest()}  b.whl"
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, check=True)
    assert [line.split()[1] for line in lines] == ["a.tar.gz", "b.whl"]


def test_the_bill_of_materials_names_what_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx_py", reason="needs the extra `release`")
    write_sbom(REPOSITORY, Path(sys.executable), tmp_path / "sbom.json")
    found = json.loads((tmp_path / "sbom.json").read_text())
    assert found["bomFormat"] == "CycloneDX"
    assert found["metadata"]["component"]["name"] == "heddle"
    assert {"numpy", "tokenizers"} <= {one["name"] for one in found["components"]}
