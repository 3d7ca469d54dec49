"""The order of rows of queries and keys, which differs between formats.

Rotation turns pairs of a head's elements. Hugging Face's folders pair element i of the first half
with element i of the second. GGUF files of some architectures have the two beside each other
(llama.cpp, `LlamaModel.permute` of its converter), and so have adapters in that format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from heddle.weights.hyperparameters import Hyperparameters

    Floats = NDArray[np.float32]


def reordered(b: Floats, name: str, read: Hyperparameters, *, interleave: bool) -> Floats:
    """The rows of q or of k, `name`, with the pairs of each head beside each other, or apart again.

    Raises:
        ModelFileError: the rows do not divide into heads.
    """
    layer = int(name.split(".")[1])
    heads = _heads(read, layer, is_key=name.endswith(".k.weight"))
    size = len(b) // heads
    dim = read.integer("rope.dim", size)
    if len(b) % heads or dim > size or dim % 2:
        raise ModelFileError(
            f"{name} has {len(b)} rows, which do not divide into {heads} heads with {dim} rotated"
            " elements",
            field=name,
        )
    rows = b.reshape(heads, size, -1)
    pairs = (2, dim // 2) if interleave else (dim // 2, 2)
    turned = rows[:, :dim].reshape(heads, *pairs, -1).swapaxes(1, 2).reshape(heads, dim, -1)
    return np.concatenate([turned, rows[:, dim:]], axis=1).reshape(b.shape)


def _heads(read: Hyperparameters, layer: int, *, is_key: bool) -> int:
    name = "kv_heads" if is_key and read.get("kv_heads") is not None else "heads"
    value = read.get(name)
    if isinstance(value, list) and layer < len(value):
        value = value[layer]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        read.fail(name, f"must be a positive whole number in layer {layer}, got {value!r}")
    return value
