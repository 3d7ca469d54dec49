"""What an architecture file must offer, and the typed reading of model metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from heddle.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.kernels.ops import Batch, Loader, Ops

T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the engine must know of a model to size its memory."""

    layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int


class Model(Protocol):
    """An architecture bound to one file's hyperparameters. Holds no tensors."""

    @property
    def shape(self) -> ModelShape: ...

    def load(self, loader: Loader[Any]) -> Any:
        """Claim every tensor; returns the weights `forward` takes."""
        ...

    def forward(self, ops: Ops[Any, Any], weights: Any, batch: Batch[Any]) -> Any:
        """Logits (R, vocabulary) of the batch's sampled rows."""
        ...


def metadata_number(
    metadata: Mapping[str, object], key: str, kind: type[T], default: T | None = None
) -> T:
    """A positive number from model metadata.

    Raises:
        ModelFileError: the key is missing without a default, or is no positive number.
    """
    value = metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ModelFileError(f"{key} must be a positive number, got {value!r}", field=key)
    return kind(value)
