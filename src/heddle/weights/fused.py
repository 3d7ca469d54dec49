"""Takes tensors apart that a format stores as one: q, k and v, or gate and up.

The rows of a tensor follow one another in its file, so each part has a place of its own there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError
from heddle.weights.checkpoint import FilePlace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from heddle.weights.checkpoint import Hyperparameters, TensorInfo


def take_apart(
    tensors: Mapping[str, TensorInfo], hyperparameters: Hyperparameters
) -> dict[str, TensorInfo]:
    """`tensors` with the parts of each fused tensor in place of it. All have canonical names.

    A part keeps the label of its tensor. Its bytes begin at `start` there.

    Raises:
        ModelFileError: a fused tensor has other rows than its parts need.
    """
    found = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        if stem.endswith(".attention.qkv"):
            parts = _query_key_value(hyperparameters)
        elif stem.endswith(".mlp.gate_up"):
            parts = dict.fromkeys(("gate", "up"), hyperparameters.integer("mlp_width"))
        else:
            found[name] = tensor
            continue
        before = stem.rpartition(".")[0]
        for part, info in _slices(tensor, parts):
            canonical = f"{before}.{part}.{kind}"
            found[canonical] = replace(info, name=canonical)
    return found


def _query_key_value(hyperparameters: Hyperparameters) -> dict[str, int]:
    read = hyperparameters
    heads = read.integer("heads")
    head_dim = read.integer("key_dim", max(read.integer("width") // heads, 1))
    kv = read.integer("kv_heads", heads) * head_dim
    return {"q": heads * head_dim, "k": kv, "v": kv}


def _slices(tensor: TensorInfo, parts: Mapping[str, int]) -> Iterator[tuple[str, TensorInfo]]:
    rows, needed = tensor.shape[0], sum(parts.values())
    if rows != needed:
        raise ModelFileError(
            f"tensor {tensor.label} has {rows} rows; the hyperparameters require {needed}:"
            f" {' and '.join(f'{count} of {part}' for part, count in parts.items())}",
            field=tensor.label,
        )
    row_bytes, first = tensor.nbytes // rows, 0
    for part, count in parts.items():
        start, place = first * row_bytes, tensor.place
        if place is not None:
            place = FilePlace(place.descriptor, place.offset + start)
        shape = (count, *tensor.shape[1:])
        size = count * row_bytes
        yield part, replace(tensor, shape=shape, nbytes=size, place=place, start=start)
        first += count
