"""The kinds of eyes: the tower and the cutter of each, from the checkpoint of the eyes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.vision.projections import Matrix, TwoLayers
from heddle.extensions.vision.scenes import Cutter, bucketed
from heddle.extensions.vision.tower import WHOLE, WINDOW, Tower, spatial_rope
from heddle.weights.tensor_types import dequantize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from heddle.extensions.vision.eyes import EyesCheckpoint
    from heddle.pictures import Scene

    Floats = NDArray[np.float32]

_ACTIVATIONS = ("gelu", "gelu_erf", "gelu_quick", "silu", "relu")


@dataclass(frozen=True, slots=True)
class Kind:
    """The eyes of one checkpoint.

    Attributes:
        tower: the encoder.
        cutter: makes what it reads.
    """

    tower: Tower
    cutter: Cutter

    def patches(self, tile: Floats) -> int:
        """The number of patches of a tile."""
        height, width, _ = tile.shape
        patches: int = (height // self.cutter.patch) * (width // self.cutter.patch)
        return patches

    def grid(self, tiles: Sequence[Floats]) -> tuple[int, int]:
        """Rows of the text model from top to bottom, and from left to right, of the first tile."""
        height, width, _ = tiles[0].shape
        side = self.cutter.patch * self.cutter.merge
        return height // side, width // side

    def count(self, tiles: Sequence[Floats]) -> int:
        """The number of rows of a picture with these tiles."""
        return sum(self.patches(tile) for tile in tiles) // self.tower.fold

    def scenes(self, tiles: Sequence[Floats]) -> list[Scene]:
        """What the tower reads of a picture's tiles."""
        return [self.cutter.scene(tile) for tile in tiles]

    def arrange(self, tiles: Sequence[Floats]) -> Callable[[Floats], Floats] | None:
        """What makes the picture's rows from those of the tower; None: they are the same."""
        return self.cutter.arranged(tiles[0]) if len(tiles) == 1 else None


def kind_of(eyes: EyesCheckpoint) -> Kind:
    """The eyes of a checkpoint. It reads the vectors of positions, and nothing else.

    Raises:
        UnsupportedModelError: the kind, or a value, is not supported.
        ModelFileError: a value or a tensor is missing, or contradicts another.
    """
    build = _KINDS.get(eyes.architecture)
    if build is None:
        known = ", ".join(sorted(_KINDS))
        raise UnsupportedModelError(
            f"eyes of kind {eyes.architecture!r} are not supported; supported: {known}",
            param="vision_config",
        )
    return build(eyes)


@dataclass(frozen=True, slots=True)
class _Read:
    """What all kinds read of a checkpoint."""

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
    def of(cls, eyes: EyesCheckpoint) -> _Read:
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

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.width // self.heads

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

    def rows(self, name: str) -> int:
        """The rows of the matrix `name`."""
        return self.shape(name)[0]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the tensor `name`."""
        tensor = self.eyes.tensors.get(f"{name}.weight")
        if tensor is None:
            label = self.eyes.label(f"{name}.weight")
            raise ModelFileError(f"{self.eyes.path}: tensor {label} is missing", field=label)
        return tensor.shape

    def values(self, name: str) -> Floats:
        """The values of the tensor `name`."""
        shape = self.shape(name)
        tensor = self.eyes.tensors[f"{name}.weight"]
        found = dequantize(self.eyes.read(tensor.name), tensor.type, shape)
        if not np.isfinite(found).all():
            raise ModelFileError(
                f"{self.eyes.path}: tensor {tensor.label} has infinite or NaN weights",
                field=tensor.label,
            )
        return found.astype(np.float32)

    def positions(self, rows: int = 0) -> Floats:
        """The vectors of positions, as many as `rows` says, if it says so."""
        table = self.values("positions")
        table = table.reshape(-1, self.width)
        if rows and len(table) != rows:
            self.eyes.hyperparameters.fail(
                "image_size", f"makes {rows} positions, but the files have {len(table)}"
            )
        return table


def _side(read: _Read) -> int:
    """Patches of a side of a whole tile."""
    return read.eyes.hyperparameters.integer("image_size") // read.patch


def _idefics3(eyes: EyesCheckpoint) -> Kind:
    read = _Read.of(eyes)
    side = _side(read)
    tower = Tower(
        3 * read.patch**2,
        *(read.width, read.inner, read.heads, read.eps),
        (WHOLE,) * read.layers,
        read.row_width,
        Matrix(read.width, read.fold, read.row_width),
        has_positions=True,
        activation=read.activation("activation"),
    )
    return Kind(tower, Cutter(read.patch, read.merge, bucketed(read.positions(side**2), side)))


def _qwen2_vl(eyes: EyesCheckpoint) -> Kind:
    read = _Read.of(eyes)
    values = eyes.hyperparameters
    full = values.get("full_layers")
    windows = values.integer("window", 0) // read.merge if full is not None else 0
    is_full = [full is None or i in full for i in range(read.layers)]  # type: ignore[operator]
    tower = Tower(
        3 * read.patch**2,
        *(read.width, read.inner, read.heads, read.eps),
        tuple(WHOLE if one or not windows else WINDOW for one in is_full),
        read.row_width,
        TwoLayers(
            *(read.width, read.fold, read.rows("projection.up"), read.row_width),
            norms="patch",
            norm_eps=read.eps,
        ),
        rope=spatial_rope(read.head, values.number("rope.base", 10_000.0)),
        activation=read.activation("activation"),
    )
    return Kind(tower, Cutter(read.patch, read.merge, window=windows))


_KINDS: dict[str, Callable[[EyesCheckpoint], Kind]] = {
    "idefics3": _idefics3,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_vl,
}
