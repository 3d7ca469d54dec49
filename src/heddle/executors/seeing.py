"""The contract of executors that see: they run eyes beside a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from heddle.models.eyes import Eyes
    from heddle.pictures import Encoder


@runtime_checkable
class SeeingExecutor(Protocol):
    """An executor whose sequences may have pictures."""

    def make_encoder(self, eyes: Eyes, checkpoint: Any, most: int) -> Encoder:
        """Load eyes from the checkpoint of their tensors. They see `most` patches at a time.

        Raises:
            ModelFileError, UnsupportedModelError: the file cannot be served.
            OutOfMemoryError: there is too little memory.
        """
        ...
