"""The sizes that all decoders with attention and gated feed-forward layers have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.executor import ModelShape
from heddle.models.ops import AttentionSpec

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters

_WIDEST_WINDOW = 2**31 - 1
"""The widest window of an instruction. No sequence is so long, so a wider window is the same."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that most families need.

    Attributes:
        shape: the sizes that the engine needs.
        mlp_width: width of the feed-forward layer.
        heads: query heads, a multiple of the shape's key/value heads.
        norm_eps: epsilon of the RMS norms.
    """

    shape: ModelShape
    mlp_width: int
    heads: int
    norm_eps: float

    def attention(self, read: Hyperparameters, window: int = 0) -> AttentionSpec:
        """Attention with these heads. The checkpoint may say the factor on scores.

        Raises:
            ModelFileError: the factor is no positive number.
        """
        size = self.shape.head_dim
        scale = read.number("attention.scale", 1 / math.sqrt(size))
        return AttentionSpec(self.heads, self.shape.kv_heads, size, scale, window)


def read_sizes(hyperparameters: Hyperparameters) -> Sizes:
    """Read the sizes from hyperparameters.

    Raises:
        ModelFileError: a size is missing or contradicts another.
        UnsupportedModelError: values have another width than keys.
    """
    read = hyperparameters
    width, heads = read.integer("width"), read.integer("heads")
    kv_heads = read.integer("kv_heads", heads)
    if heads % kv_heads:
        read.fail("kv_heads", f"is {kv_heads}, which does not divide the {heads} query heads")
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


def gemma_scale(hyperparameters: Hyperparameters, sizes: Sizes, layers_of_27b: int) -> float:
    """The factor on scores in Gemma 2 and 3.

    It is 1 / sqrt(head width), and in the 27B model 1 / sqrt(model width / number of heads). GGUF
    has no key for it. llama.cpp too recognises the 27B model by its number of layers.
    """
    if hyperparameters.get("attention.scale_dim") is not None:
        return 1 / math.sqrt(hyperparameters.number("attention.scale_dim"))
    if sizes.shape.layers == layers_of_27b:
        return 1 / math.sqrt(sizes.shape.width / sizes.heads)
    return 1 / math.sqrt(sizes.shape.head_dim)


def read_windows(hyperparameters: Hyperparameters, layers: int, period: int = 1) -> list[int]:
    """Positions that each layer sees; 0 for all of them.

    The checkpoint lists the layers with a window, or says that every so many layers one sees all
    positions; else `period` is that number, and 1 means that no layer has a window.

    Raises:
        ModelFileError: there are windows and no width, or the list has not an entry for each layer.
    """
    read = hyperparameters
    windowed = read_flags(read, "window_layers", layers)
    if windowed is None:
        period = read.integer("window_period", period)
        windowed = [(layer + 1) % period > 0 for layer in range(layers)]
    if not any(windowed):
        return [0] * layers
    window = min(read.integer("window"), _WIDEST_WINDOW)
    return [window if one else 0 for one in windowed]


def read_flags(read: Hyperparameters, name: str, layers: int) -> list[bool] | None:
    """A flag for each layer; None if the checkpoint has no such list."""
    listed = read.get(name)
    if listed is None:
        return None
    if not isinstance(listed, list) or len(listed) != layers:
        read.fail(name, f"must have {layers} entries, got {listed!r}")
    return [bool(one) for one in listed]
