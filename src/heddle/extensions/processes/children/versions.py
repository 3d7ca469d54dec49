"""Versions and the digest of the model's files, which parent and child must have alike."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heddle.weights.checkpoint import Checkpoint


def program_version() -> dict[str, str]:
    """Versions of the program and of torch."""
    return {"heddle": version("heddle"), "torch": _torch_version()}


def files_digest(checkpoint: Checkpoint) -> str:
    """A digest of the model's files: names, sizes, times of the last change."""
    stamps = sorted((str(path), stamp) for path, stamp in checkpoint.stamps.items())
    return hashlib.sha256(repr(stamps).encode()).hexdigest()


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"
