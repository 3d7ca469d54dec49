"""The base class of objects that hold files, memory or threads."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Closing(ABC):
    """A context manager that calls `close` at its end."""

    @abstractmethod
    def close(self) -> None:
        """Free what the object holds. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_file(path: Path, error: Callable[[str], Exception], advice: str = "") -> int:
    """Open a file to read it; returns its descriptor. A pipe or a device would block or be endless.

    Raises:
        Exception: what `error` makes, if there is no such file, or if it cannot be read.
    """
    if not path.is_file():
        raise error(f"{path} is not a file{advice}")
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as cause:
        raise error(f"cannot read {path}: {cause.strerror}") from cause
