"""The sizes that every decoder of attention and gated feed-forward layers has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.step import ModelShape

if TYPE_CHECKING:
    from heddle.weights.checkpoint import Hyperparameters


@dataclass(frozen=True, slots=True)
class Sizes:
    """What most families read first.

    Attributes:
        mlp_width: of the feed-forward layer.
        heads: query heads, a multiple of the shape's key/value heads.
        norm_eps: of the RMS norms.
    """

    shape: ModelShape
    mlp_width: int
    heads: int
    norm_eps: float


def read_sizes(hyperparameters: Hyperparameters) -> Sizes:
    """The sizes under their canonical names.

    Raises:
        ModelFileError: one is missing or contradicts another.
        UnsupportedModelError: values have another width than keys.
    """
    read = hyperparameters
    width, heads = read.integer("width"), read.integer("heads")
    kv_heads = read.integer("kv_heads", heads)
    if heads % kv_heads:
        read.fail("kv_heads", f"is {kv_heads}, which {heads} heads cannot share")
    head_dim = read.integer("key_dim", width // heads)
    value_dim = read.integer("value_dim", head_dim)
    if value_dim != head_dim:
        label = read.label("value_dim")
        raise UnsupportedModelError(
            f"{label}: heads with keys of {head_dim} and values of {value_dim} elements are not"
            " supported",
            param=label,
        )
    shape = ModelShape(
        layers=read.integer("layers"),
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=read.integer("vocabulary"),
        context=read.integer("context"),
        width=width,
    )
    return Sizes(shape, read.integer("mlp_width"), heads, read.number("norm_eps"))
