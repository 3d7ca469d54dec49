"""An open engram table that knows its file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle._native import Engram
from heddle.extensions.engrams.bias import EngramFile

if TYPE_CHECKING:
    from pathlib import Path


class OpenTable(Engram):
    """A table, and its file: samplers in another process open it again."""

    def __init__(self, path: Path, descriptor: int, vocabulary: int) -> None:
        """Raises as :class:`Engram`."""
        super().__init__(descriptor, vocabulary)
        self.file = EngramFile(path.absolute(), EngramFile.stamp_of(descriptor), vocabulary)
