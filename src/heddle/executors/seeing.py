"""The contract of executors that see: they run eyes beside a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from heddle.weights.mix import AS_STORED, Mix

if TYPE_CHECKING:
    from heddle.models.eyes import Eyes
    from heddle.pictures import Encoder

_QUANTIZED = "q8_0"
"""Type of the matrices of eyes if the model is quantised: with fewer bits they see badly, and they
are small."""


def eyes_mix(quantize: str) -> Mix:
    """The types of the matrices of eyes, by the setting `quantize` of the model."""
    return Mix.named(AS_STORED if quantize == AS_STORED else _QUANTIZED)


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
