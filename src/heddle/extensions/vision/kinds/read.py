"""What all kinds of eyes read of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.vision.tower import WHOLE, Tower, spatial_rope
from heddle.weights.tensor_types import dequantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from heddle.extensions.vision.eyes import EyesCheckpoint
    from heddle.extensions.vision.tower import Projection
    from heddle.models.ops import RopeSpec
    from heddle.weights.checkpoint import TensorInfo

    Floats = NDArray[np.float32]

_ACTIVATIONS = ("gelu", "gelu_erf", "gelu_quick", "silu", "relu")


@dataclass(frozen=True, slots=True)
class Read:
    """Values that all kinds have, and ways to the others.

    Attributes:
        eyes: the checkpoint.
        layers, width, inner, heads, eps, patch, merge: hyperparameters of it.
        row_width: elements of the hidden state of the text model.
    """

    eyes: EyesCheckpoint
    layers: int
    width: int
    inner: int
    heads: int
    eps: float
    patch: int
    merge: int
    row_width: int

    @classmethod
    def of(cls, eyes: EyesCheckpoint) -> Read:
        """Read a checkpoint.

        Raises:
            ModelFileError: a value is missing, or contradicts another.
        """
        read = eyes.hyperparameters
        width, heads = read.integer("width"), read.integer("heads")
        if width % heads:
            read.fail("heads", f"is {heads}, which does not divide the width of {width}")
        return cls(
            eyes,
            read.integer("layers"),
            width,
            read.integer("mlp_width"),
            heads,
            read.number("norm_eps"),
            read.integer("patch"),
            read.integer("merge", 1),
            read.integer("text_width"),
        )

    @property
    def fold(self) -> int:
        """Patches that become one row."""
        return self.merge**2

    def tower(self, projection: Projection, row_width: int = 0) -> Tower:
        """A tower without positions; rows have `row_width` columns, if not those of the text."""
        return Tower(
            3 * self.patch**2,
            *(self.width, self.inner, self.heads, self.eps),
            (WHOLE,) * self.layers,
            row_width or self.row_width,
            projection,
            activation=self.activation("activation"),
        )

    def rope(self, **how: bool) -> RopeSpec:
        """The rotation by rows and columns; `how` as for :func:`spatial_rope`."""
        values, head = self.eyes.hyperparameters, self.width // self.heads
        if head % 4:
            values.fail("heads", f"makes heads of {head} elements; rotations need a multiple of 4")
        base = values.number("rope.base", 10_000.0)
        return spatial_rope(head, base, **how)

    def activation(self, name: str, default: str = "gelu") -> str:
        """The activation that the hyperparameter `name` names."""
        read = self.eyes.hyperparameters
        found = str(read.get(name, default))
        if found not in _ACTIVATIONS:
            label = read.label(name)
            raise UnsupportedModelError(
                f"{label} {found!r} is not supported; supported: {', '.join(_ACTIVATIONS)}",
                param=label,
            )
        return found

    def features(self, name: str, *, begin: int = 1) -> tuple[int, ...]:
        """The layers that the hyperparameter `name` lists, where the first one has number 1.

        There it has number `begin`. There are none if the hyperparameter is missing.

        Raises:
            UnsupportedModelError: the layers do not ascend, or the state before them is listed.
        """
        values = self.eyes.hyperparameters
        listed = values.get(name, [])
        assert isinstance(listed, list), "`EyesHyperparameters` has checked it"
        if listed != sorted({one for one in listed if one >= begin}):
            label = values.label(name)
            raise UnsupportedModelError(
                f"{label} {listed} is not supported; supported: layers from {begin} on, ascending",
                param=label,
            )
        return tuple(one + 1 - begin for one in listed)

    def has(self, name: str) -> bool:
        """Whether there is the tensor `name`."""
        return f"{name}.weight" in self.eyes.tensors

    def rows(self, name: str) -> int:
        """The rows of the matrix `name`."""
        return self._tensor(f"{name}.weight").shape[0]

    def values(self, name: str) -> Floats:
        """The values of the tensor `name`, in full."""
        tensor = self._tensor(name)
        found = dequantize(self.eyes.read(tensor.name), tensor.type, tensor.shape)
        if not np.isfinite(found).all():
            raise ModelFileError(
                f"{self.eyes.path}: tensor {tensor.label} has infinite or NaN weights",
                field=tensor.label,
            )
        return found.astype(np.float32)

    def vector(self, name: str, width: int) -> Floats:
        """The vector `name`, which has so many elements."""
        found = self.values(name).reshape(-1)
        if len(found) != width:
            label = self.eyes.label(name)
            raise ModelFileError(
                f"{self.eyes.path}: tensor {label} must have {width} elements, got {len(found)}",
                field=label,
            )
        return found

    def positions(self, *, beside: int = 0) -> tuple[Floats, int]:
        """The vectors of positions, and the side of their square, beside which there are others."""
        table = self.values("positions.weight")
        side = isqrt(max(len(table) - beside, 0))
        if (
            table.ndim != 2
            or table.shape[1] != self.width
            or not side
            or len(table) != side**2 + beside
        ):
            label = self.eyes.label("positions.weight")
            raise ModelFileError(
                f"{self.eyes.path}: tensor {label} has shape {table.shape}; it must have vectors of"
                f" {self.width} elements of a square, and {beside} beside it",
                field=label,
            )
        return table, side

    def _tensor(self, name: str) -> TensorInfo:
        tensor = self.eyes.tensors.get(name)
        if tensor is None:
            label = self.eyes.label(name)
            raise ModelFileError(f"{self.eyes.path}: tensor {label} is missing", field=label)
        return tensor
