"""One commit of a repository in the cache, in the layout that `huggingface_hub` documents.

models--ORG--NAME/blobs/DIGEST                  the files, by their digests
models--ORG--NAME/snapshots/COMMIT/PATH         links to them
models--ORG--NAME/refs/REVISION                 the commit that a branch or tag was
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = re.compile(r"[0-9a-f]{40}")


def is_commit(revision: str) -> bool:
    """Whether a revision is a commit, which never changes."""
    return COMMIT.fullmatch(revision) is not None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A commit of a repository.

    Attributes:
        folder: the repository's folder in the cache.
        commit: its 40 hexadecimal digits.
    """

    folder: Path
    commit: str

    @classmethod
    def cached(cls, folder: Path, revision: str) -> Self | None:
        """The commit that the cache has for a revision; None if it has none."""
        commit = revision
        if not is_commit(revision):
            try:
                commit = (folder / "refs" / revision).read_text("ascii").strip()
            except (OSError, UnicodeDecodeError):
                return None
        found = cls(folder, commit)
        return found if is_commit(commit) and found.path.is_dir() else None

    @property
    def path(self) -> Path:
        """The folder with the files under their own names."""
        return self.folder / "snapshots" / self.commit

    def files(self) -> list[str]:
        """The names of the files that are there."""
        paths = self.path.rglob("*")
        return sorted(path.relative_to(self.path).as_posix() for path in paths if path.is_file())

    def blob(self, digest: str) -> Path:
        """The place of a file by its digest."""
        return self.folder / "blobs" / digest

    def link(self, name: str, digest: str) -> None:
        """Give a blob the name that it has in this commit."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"{target.name}.{os.getpid()}.link")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(self.blob(digest), target.parent))
        temporary.replace(target)

    def remember(self, revision: str) -> None:
        """Make this the commit that the cache has for a revision."""
        if is_commit(revision):
            return
        reference = self.folder / "refs" / revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        temporary = reference.with_name(f"{reference.name}.{os.getpid()}")
        temporary.write_text(self.commit, "ascii")
        temporary.replace(reference)


def snapshots(folder: Path) -> list[tuple[str, Snapshot]]:
    """The commits that a repository's folder has, each with a revision that means it."""
    references = folder / "refs"
    named = {
        path.read_text("ascii", "replace").strip(): path.relative_to(references).as_posix()
        for path in sorted(references.rglob("*"))
        if path.is_file()
    }
    commits = sorted(path.name for path in folder.glob("snapshots/*") if is_commit(path.name))
    return [(named.get(commit, commit), Snapshot(folder, commit)) for commit in commits]
