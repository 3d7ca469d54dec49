"""Files of weights that are open for reading.

A file is read and never mapped. Another process may truncate it at any time. A read then returns
fewer bytes, which is an error for the caller; an access to a map would end the process.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from heddle.closing import Closing, open_file
from heddle.errors import ModelFileError, ModelSourceError

_PIECE = 16 << 20
"""Bytes of one system call: reading in pieces needs no second buffer of the full size."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Tells whether the file at a path has changed since an earlier stamp.

    A write changes the time. Another file in its place changes device or inode. `size` is in bytes.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """The stamp of a result of `os.stat`."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class OpenFile(Closing):
    """An open model file. Use it as a context manager, or call :meth:`close`.

    Attributes:
        path: path at which it was opened.
        stamp: stamp of the file when it was opened.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Take over `descriptor`, the open file, and read the header."""
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
        """Read and check the description of the tensors."""

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the file and read its header.

        Raises:
            ModelSourceError: there is no such file, or it cannot be read.
            ModelFileError: the file has another format, or is truncated, corrupt or hostile.
            UnsupportedModelError: the version of the format is not supported.
        """
        path = Path(path)
        return cls(path, open_file(path, ModelSourceError))

    @property
    def descriptor(self) -> int:
        """Descriptor of the open file, for readers that read tensors without a copy."""
        if self._descriptor is None:
            raise ValueError(f"{self.path} is closed")
        return self._descriptor

    def read(self, start: int, size: int, field: str) -> memoryview:
        """Read the bytes [start, start + size). `field` names them in errors.

        Raises:
            ModelFileError: the file ends before `start + size`.
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
        """Check that the file has not changed since :meth:`open`, so that all reads are consistent.

        Raises:
            ModelFileError: the file has changed.
        """
        found = FileStamp.of(os.fstat(self.descriptor))
        if found != self.stamp:
            raise ModelFileError(
                f"{self.path} changed while it was read: it had {self.stamp.size:,} bytes, now"
                f" {found.size:,}; load it again once it is whole",
                field="file",
            )

    def close(self) -> None:
        """Close the file. Bytes that were read stay valid. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()
