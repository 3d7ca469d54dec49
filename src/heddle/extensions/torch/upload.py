"""Brings tensors of a checkpoint to a torch device, a chunk of rows at a time.

All chunks go through one staging buffer, which is pinned where the device is a GPU. So the host
holds no whole tensor, except one that the files do not store as it is claimed.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.cores import usable_cores
from heddle.errors import ModelFileError
from heddle.extensions.quantise.quantiser import Quantiser
from heddle.extensions.torch.blocks import empty_fields, fields_of
from heddle.weights.checkpoint import non_finite_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from heddle.extensions.torch.division.claims import Indices
    from heddle.weights.checkpoint import Checkpoint, FilePlace, TensorInfo
    from heddle.weights.tensor_types import TensorType

STAGING_BYTES = 32 << 20
"""Bytes of the staging buffer. A longer row gets a longer buffer."""


_PIECE = 4 << 20
"""Bytes that a thread reads in one system call."""

_READERS = 8
"""Most threads that read: one copies a few GB/s out of the system's cache, and the disk waits for
it."""


class Uploader:
    """Reads tensors in chunks, quantises those that get another type, and uploads them."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        *,
        allow_nonfinite: bool,
        progress: Callable[[int], None],
        threads: int = 0,
    ) -> None:
        """The uploader calls `progress` with the bytes of the files read so far, after each chunk.

        `threads` of the processor quantise; 0: one per core.
        """
        self._checkpoint = checkpoint
        self._device = device
        self._allow_nonfinite = allow_nonfinite
        self._progress = progress
        self._threads = threads
        self._quantiser: Quantiser | None = None
        self._staging = self._buffer(0)
        self._read = 0

    def fields(
        self,
        tensor: TensorInfo,
        kind: TensorType,
        rows: Indices | None = None,
        columns: Indices | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """The tensor's rows as type `kind` on the device: all axes but the last are rows.

        With `rows` or `columns`, some of them; columns are in whole blocks of both types.

        Raises:
            ModelFileError: the file cannot be read; a tensor to be quantised has a weight that is
                not finite.
        """
        every = math.prod(tensor.shape[:-1])
        wanted = np.arange(every) if rows is None else rows
        held = tensor.shape[-1] if columns is None else len(columns)
        fields = empty_fields(len(wanted), held, kind, self._device)
        row_bytes = tensor.nbytes // every
        is_made = not (tensor.has_place or self._checkpoint.reads_parts(tensor.name))
        made = self._checkpoint.read(tensor.name) if is_made else None
        done = 0
        for first, last in _runs(wanted, max(1, STAGING_BYTES // row_bytes)):
            begin, end = first * row_bytes, last * row_bytes
            staged = self._staged(end - begin)
            if made is not None:
                staged[:] = made[begin:end]
            elif tensor.has_place:
                self._fill(tensor, begin, staged)
            else:
                staged[:] = self._checkpoint.read(tensor.name, begin, end - begin)
            if columns is not None:
                staged = self._cut(tensor, staged, last - first, columns)
            if kind is not tensor.type:
                staged = self._quantised(tensor, kind, staged, first)
            raw = self._staging[: staged.size].to(self._device).reshape(last - first, -1)
            for field, own in zip(fields, fields_of(raw, kind), strict=True):
                field[done : done + last - first] = own
            done += last - first
            self._read += end - begin
            self._progress(self._read)
        return fields

    def _cut(
        self, tensor: TensorInfo, staged: NDArray[np.uint8], rows: int, columns: Indices
    ) -> NDArray[np.uint8]:
        """Keep some blocks of each row in the staging buffer."""
        size = tensor.type.block_elements
        blocks = columns[::size] // size
        kept = staged.reshape(rows, -1, tensor.type.block_bytes)[:, blocks].ravel()
        staged = self._staged(kept.size)
        staged[:] = kept
        return staged

    def _staged(self, size: int) -> NDArray[np.uint8]:
        """The first `size` bytes of the staging buffer."""
        if self._staging.numel() < size:
            self._staging = self._buffer(size)
        staged: NDArray[np.uint8] = self._staging[:size].numpy()
        return staged

    def _buffer(self, size: int) -> torch.Tensor:
        pinned = self._device.type == "cuda"
        return torch.empty(max(size, STAGING_BYTES), dtype=torch.uint8, pin_memory=pinned)

    def _quantised(
        self, tensor: TensorInfo, kind: TensorType, raw: NDArray[np.uint8], first: int
    ) -> NDArray[np.uint8]:
        """Replace rows in the staging buffer, from row `first` on, by rows of type `kind`."""
        if self._quantiser is None:
            self._quantiser = Quantiser(self._threads)
        encoded, row = self._quantiser.rows(tensor, raw, kind)
        if row is not None and not self._allow_nonfinite:
            raise non_finite_weights(self._checkpoint, tensor, f"row {first + row}")
        staged = self._staged(encoded.size)
        staged[:] = encoded
        return staged

    def _fill(self, tensor: TensorInfo, begin: int, out: NDArray[np.uint8]) -> None:
        """Read the tensor's bytes from `begin` on, as many as `out` has."""
        if not tensor.slices:
            assert tensor.place is not None, "the caller has checked that there is a place"
            return self._fill_from(tensor, tensor.place, begin, out)
        size, done = tensor.nbytes // len(tensor.slices), 0
        while done < out.size:
            index, start = divmod(begin + done, size)
            part = out[done : done + size - start]
            self._fill_from(tensor, tensor.slices[index], start, part)
            done += part.size
        return None

    def _fill_from(
        self, tensor: TensorInfo, place: FilePlace, begin: int, out: NDArray[np.uint8]
    ) -> None:
        def read(first: int) -> None:
            self._read_piece(
                tensor, place.descriptor, place.offset + begin + first, out[first : first + _PIECE]
            )

        firsts = range(0, out.size, _PIECE)
        if len(firsts) < 2:
            for first in firsts:
                read(first)
            return
        with ThreadPoolExecutor(min(_READERS, len(firsts), usable_cores())) as readers:
            for _ in readers.map(read, firsts):
                pass  # raises what a thread has raised

    def _read_piece(
        self, tensor: TensorInfo, descriptor: int, at: int, out: NDArray[np.uint8]
    ) -> None:
        done = 0
        while done < out.size:
            try:  # (preadv would save a copy, and not every system has it)
                piece = os.pread(descriptor, out.size - done, at + done)
            except OSError as error:
                raise self._unreadable(tensor, str(error.strerror)) from error
            if not piece:
                raise self._unreadable(tensor, f"the file ends at byte {at + done}")
            out[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
            done += len(piece)

    def _unreadable(self, tensor: TensorInfo, reason: str) -> ModelFileError:
        """The error of a file that cannot be read, or of one that somebody has changed."""
        self._checkpoint.check_unchanged()
        return ModelFileError(
            f"{self._checkpoint.path}: tensor {tensor.label} cannot be read: {reason}",
            field=tensor.label,
        )


def _runs(rows: Indices, most: int) -> Iterator[tuple[int, int]]:
    """Consecutive rows, at most so many at a time: the first, and the one after the last."""
    ends = np.flatnonzero(np.diff(rows) != 1) + 1
    for run in np.split(rows, ends):
        for first in range(int(run[0]), int(run[-1]) + 1, most):
            yield first, min(first + most, int(run[-1]) + 1)
