"""Files of weights that are open for reading.

A file is read and never mapped. Another process may truncate it at any time. A read then returns
fewer bytes, which is an error for the caller; an access to a map would end the process.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from heddle.errors import ModelFileError, ModelSourceError

if TYPE_CHECKING:
    from types import TracebackType

_PIECE = 16 << 20
"""Bytes that one system call reads: copying a piece costs no second buffer of the whole."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What tells a file's content from an earlier one of the same path.

    A write changes the time, another file in its place the numbers. `size` is in bytes.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """The stamp of what `os.stat` tells."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class OpenFile(ABC):
    """A model file that is open. Use as a context manager, or call :meth:`close`.

    Attributes:
        path: where it was opened.
        stamp: what it was when it was opened.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Takes over `descriptor`, the open file."""
        self.path = path
        self._descriptor: int | None = descriptor
        self.stamp = FileStamp.of(os.fstat(descriptor))
        try:
            self._read_header()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _read_header(self) -> None:
        """Read and check what the file says of its tensors."""

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the file and read its header.

        Raises:
            ModelSourceError: there is no such file, or it cannot be read.
            ModelFileError: it has another format, or is truncated, corrupt or hostile.
            UnsupportedModelError: it has a version of the format that is not supported.
        """
        path = Path(path)
        if not path.is_file():  # a pipe or a device would block or be endless
            raise ModelSourceError(f"{path} is not a file")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ModelSourceError(f"cannot read {path}: {error.strerror}") from error
        return cls(path, descriptor)

    @property
    def descriptor(self) -> int:
        """The open file's, for readers of tensors that want no copy in between."""
        if self._descriptor is None:
            raise ValueError(f"{self.path} is closed")
        return self._descriptor

    def read(self, start: int, size: int, field: str) -> memoryview:
        """The bytes [start, start + size). `field` names them in errors.

        Raises:
            ModelFileError: the file ends before they do.
            ModelSourceError: the file cannot be read.
        """
        content = bytearray(size)
        done = 0
        while done < size:
            try:
                # (preadv would save a copy, and macOS before 11 has none.)
                piece = os.pread(self.descriptor, min(_PIECE, size - done), start + done)
            except OSError as error:
                raise ModelSourceError(f"cannot read {self.path}: {error.strerror}") from error
            if not piece:
                raise ModelFileError(
                    f"{self.path}: {field} needs {size} bytes at byte {start}, and the file now"
                    f" ends at byte {start + done}: it was truncated while it was read; load it"
                    " again once it is whole",
                    field=field,
                )
            content[done : done + len(piece)] = piece
            done += len(piece)
        return memoryview(content).toreadonly()

    def check_unchanged(self) -> None:
        """Check that everything that was read since :meth:`open` belongs together.

        Raises:
            ModelFileError: somebody has written to the file since.
        """
        found = FileStamp.of(os.fstat(self.descriptor))
        if found != self.stamp:
            raise ModelFileError(
                f"{self.path} changed while it was read: it had {self.stamp.size:,} bytes, now"
                f" {found.size:,}; load it again once it is whole",
                field="file",
            )

    def close(self) -> None:
        """Close the file. What was read of it stays readable. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
