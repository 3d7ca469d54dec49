"""Versions and the digest of the model's files, which parent and child must have alike."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError
from heddle.loading.digests import digest_of_files
from heddle.models.build import family_of
from heddle.weights.formats import open_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.weights.checkpoint import Checkpoint


def program_version() -> dict[str, str]:
    """Versions of the program and of torch."""
    return {"heddle": version("heddle"), "torch": _torch_version()}


def files_digest(checkpoint: Checkpoint, *, elsewhere: bool = False) -> str:
    """A digest of the model's files, which a child must have alike.

    It covers names, sizes and times of the last change; for children `elsewhere`, on other
    machines, the content.

    Raises:
        ModelFileError: a file has changed since it was opened, or cannot be read.
    """
    if elsewhere:
        try:
            return digest_of_files(checkpoint.stamps)
        except OSError as error:
            problem = f"{checkpoint.path} cannot be read: {error}"
            raise ModelFileError(problem, field="file") from error
    stamps = sorted((str(path), stamp) for path, stamp in checkpoint.stamps.items())
    return hashlib.sha256(repr(stamps).encode()).hexdigest()


@contextmanager
def open_same(path: str, digest: str, *, elsewhere: bool = False) -> Iterator[Checkpoint]:
    """Open the model's files: those that the parent has open, or this machine's copy.

    Raises:
        ModelFileError: they changed meanwhile, the copy differs, or as `open_checkpoint`.
    """
    with open_checkpoint(Path(path), None, family_of) as checkpoint:
        if files_digest(checkpoint, elsewhere=elsewhere) != digest:
            raise ModelFileError(
                f"{path} has other content on {gethostname()} than on the machine of rank 0; put"
                " the same files on all machines"
                if elsewhere
                else f"{path} changed while it was loaded; load it again once it is whole",
                field="file",
            )
        yield checkpoint


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"
