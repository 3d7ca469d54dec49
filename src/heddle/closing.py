"""The context manager of objects that hold files, memory or threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context manager that calls `close` at its end."""

    @abstractmethod
    def close(self) -> None:
        """Free what the object holds. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
