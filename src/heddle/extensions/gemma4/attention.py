"""What the attention of Gemma 3n and 4 has beside Gemma 3's: shared keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.ops import RopeSpec

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters


def local_rope(read: Hyperparameters, head_dim: int) -> RopeSpec:
    """The rotation in layers with a window.

    Raises:
        ModelFileError: a hyperparameter is wrong.
    """
    dim = read.integer("rope.local_dim", head_dim)
    if dim > head_dim or dim % 2:
        read.fail("rope.local_dim", f"must be even and at most {head_dim}, got {dim}")
    base = read.number("rope.local_base", 10_000.0)
    return RopeSpec(dim, base, read.flag("rope.interleaved", False))


def key_sources(read: Hyperparameters, windows: list[int]) -> list[int | None]:
    """The layer whose keys and values each layer reads; None if it has its own.

    The last layers read those of the last layer with the same window that has its own.

    Raises:
        ModelFileError: there is no such layer.
    """
    own = len(windows) - read.count("shared_layers")
    if own < 1:
        read.fail("shared_layers", f"must be less than the {len(windows)} layers")
    last = {window: layer for layer, window in enumerate(windows[:own])}
    lacking = next((layer for layer in range(own, len(windows)) if windows[layer] not in last), 0)
    if lacking:
        read.fail("shared_layers", f"leaves no layer whose keys layer {lacking} can read")
    return [None] * own + [last[window] for window in windows[own:]]
