"""Makes a release: pip install -e '.[release]'.

    python scripts/release.py cut VERSION [--dry-run]
    python scripts/release.py build FOLDER
    python scripts/release.py seal FOLDER

`cut` checks the tree, moves the entries of "Unreleased" in CHANGELOG.md under the version, writes
the version everywhere, keeps a file of each format on disk (`tests/formats/`), commits, and tags.
It pushes nothing: a push of the tag starts `.github/workflows/release.yml`. `--dry-run` checks, and
says what it would do.

`build` makes the source distribution and a wheel of this machine in FOLDER, and seals it. `seal`
writes FOLDER/sbom.cdx.json and FOLDER/SHA256SUMS. The bill of materials (CycloneDX) has what `pip`
installs with the wheel.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONED = {
    "pyproject.toml": r'^version = "(.+)"$',
    ".github/ISSUE_TEMPLATE/bug.yml": r"^ +placeholder: heddle (\S+)$",
}
"""The files that have the version, and where."""
UNRELEASED = "## [Unreleased]\n"
_SECTION = re.compile(r"^## \[(.+?)\].*$", re.M)
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
SBOM, SUMS = "sbom.cdx.json", "SHA256SUMS"


class ReleaseError(Exception):
    """The tree cannot become a release; the message says why."""


def ordered(version: str) -> tuple[int, ...]:
    """The numbers of a version.

    Raises:
        ReleaseError: it is not MAJOR.MINOR.PATCH.
    """
    match = _VERSION.fullmatch(version)
    if match is None:
        raise ReleaseError(f"{version!r} is no version; write MAJOR.MINOR.PATCH")
    return tuple(map(int, match.groups()))


def versions(root: Path) -> dict[str, str]:
    """The version that each file of `VERSIONED` has."""
    found = {}
    for name, pattern in VERSIONED.items():
        matches = re.findall(pattern, (root / name).read_text("utf-8"), re.M)
        if len(matches) != 1:
            raise ReleaseError(f"{name} has {len(matches)} versions; it must have one")
        found[name] = matches[0]
    return found


def unreleased(changelog: str) -> str:
    """The entries under "Unreleased".

    Raises:
        ReleaseError: there is no such section, or it has no entry.
    """
    before, mark, after = changelog.partition(UNRELEASED)
    if not mark or _SECTION.search(before):
        raise ReleaseError(f"CHANGELOG.md must begin with the section {UNRELEASED.strip()}")
    following = _SECTION.search(after)
    entries = after[: following.start() if following else None].strip()
    if "\n- " not in f"\n{entries}":
        raise ReleaseError(
            "CHANGELOG.md has no entry under Unreleased; there is nothing to release"
        )
    return entries


def cut_changelog(changelog: str, version: str, day: str) -> str:
    """The changelog with its unreleased entries under a version."""
    entries = unreleased(changelog)
    title = f"## [{version}] - {day}"
    return changelog.replace(f"{UNRELEASED}\n{entries}", f"{UNRELEASED}\n{title}\n\n{entries}", 1)


def check(root: Path, version: str) -> None:
    """Check that the tree can become this version.

    Raises:
        ReleaseError: it cannot; the message says why.
    """
    new = ordered(version)
    if changed := git(root, "status", "--porcelain"):
        raise ReleaseError(f"the tree has changes; commit them first:\n{changed}")
    found = versions(root)
    if len(set(found.values())) != 1:
        raise ReleaseError(f"versions differ: {found}; make them equal")
    if git(root, "tag", "--list", f"v{version}"):
        raise ReleaseError(f"the tag v{version} exists; take a later version")
    changelog = (root / "CHANGELOG.md").read_text("utf-8")
    unreleased(changelog)
    released = [name for name in _SECTION.findall(changelog) if name != "Unreleased"]
    if released and new <= max(map(ordered, released)):
        raise ReleaseError(f"{version} is not later than {released[0]}; take a later version")


def cut(root: Path, version: str, day: str, *, is_dry: bool = False) -> None:
    """Make the commit and the tag of a version, or only say what they would be.

    Raises:
        ReleaseError: see `check`.
    """
    check(root, version)
    changelog = root / "CHANGELOG.md"
    text = cut_changelog(changelog.read_text("utf-8"), version, day)
    if is_dry:
        print(f"would write {version} to {', '.join(VERSIONED)} and tests/formats/{version}/,")
        print(f"would commit and tag v{version}, with these entries:\n")
        print(unreleased(changelog.read_text("utf-8")))
        return
    changelog.write_text(text, "utf-8")
    for name, pattern in VERSIONED.items():
        path = root / name
        content = path.read_text("utf-8")
        match = re.search(pattern, content, re.M)
        assert match is not None  # `check` has found it
        write = content[: match.start(1)] + version + content[match.end(1) :]
        path.write_text(write, "utf-8")
    formats = [sys.executable, str(root / "scripts" / "write_formats.py"), "--version", version]
    subprocess.run(formats, check=True, cwd=root)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", f"Cut version {version}")
    git(root, "tag", "--annotate", f"v{version}", "--message", f"Heddle {version}")
    print(f"tagged v{version}; publish it with: git push origin main v{version}")


def git(root: Path, *words: str) -> str:
    """The output of a git command."""
    return subprocess.check_output(["git", *words], cwd=root, text=True).strip()


def build(root: Path, folder: Path) -> None:
    """Make the source distribution and a wheel in `folder`, and seal it."""
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(root)]
    subprocess.run(command, check=True)
    seal(root, folder)


def seal(root: Path, folder: Path) -> None:
    """Write the bill of materials of a wheel in `folder`, and checksums of all its files.

    Raises:
        ReleaseError: no wheel in the folder can be installed here.
    """
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        python = Path(place, "bin", "python")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        wheels = ["--no-index", "--no-deps", "--find-links", str(folder), "heddle"]
        if subprocess.run([*pip, *wheels], check=False).returncode:
            raise ReleaseError(f"{folder} has no wheel for this machine; build one")
        subprocess.run([*pip, "heddle"], check=True)  # with what it needs
        write_sbom(root, python, folder / SBOM)
    write_sums(folder)


def write_sbom(root: Path, python: Path, path: Path) -> None:
    """Write a bill of materials of an environment in CycloneDX's JSON, the same for the same."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", str(python)]
    about = ["--pyproject", str(root / "pyproject.toml"), "--mc-type", "application"]
    form = ["--output-reproducible", "--of", "JSON", "--output-file", str(path)]
    subprocess.run([*command, *about, *form], check=True)


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS, as `sha256sum --check` reads it."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / SUMS).write_text("".join(lines), "ascii")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    commands = options.add_subparsers(dest="command", required=True)
    cutting = commands.add_parser("cut")
    cutting.add_argument("version")
    cutting.add_argument("--dry-run", action="store_true")
    for name in ("build", "seal"):
        commands.add_parser(name).add_argument("folder", type=Path)
    given = options.parse_args()
    try:
        if given.command == "cut":
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            cut(ROOT, given.version, today, is_dry=given.dry_run)
        else:
            given.folder.mkdir(parents=True, exist_ok=True)
            (build if given.command == "build" else seal)(ROOT, given.folder)
    except ReleaseError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
