"""Takes tensors apart that a format stores as one: q, k and v, or gate and up.

The rows of a tensor follow one another in its file, so each part has a place of its own there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError
from heddle.weights import heads
from heddle.weights.checkpoint import FilePlace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from heddle.weights.checkpoint import TensorInfo
    from heddle.weights.hyperparameters import Hyperparameters

FUSED_PARTS = {
    "attention.qkv": ("q", "k", "v"),
    "mlp.gate_up": ("gate", "up"),
    "mlp.up_gate": ("up", "gate"),
}
"""Parts of a fused tensor of a layer, in the order of their rows."""


def is_of_experts(tensor: TensorInfo) -> bool:
    """Whether the first axis of a tensor is the expert, so that its rows are the second."""
    return ".experts." in tensor.name


def take_apart(
    tensors: Mapping[str, TensorInfo], hyperparameters: Hyperparameters
) -> dict[str, TensorInfo]:
    """`tensors` with the parts of each fused tensor in place of it. All have canonical names.

    A part keeps the label of its tensor. Its bytes begin at `start` there.

    Raises:
        ModelFileError: a fused tensor has other rows than its parts need.
    """
    found: dict[str, TensorInfo] = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        if stem.endswith(".mlp.experts.gate_up"):
            found |= _pairs_of_experts(name, tensor)
            continue
        if name.endswith(heads.FUSED):
            # A file may have the parts too.
            found = heads.take_heads_apart(name, tensor, hyperparameters) | found
            continue
        if stem.endswith(".attention.qkv"):
            parts = _query_key_value(hyperparameters, int(stem.split(".")[1]))
        elif stem.endswith(".mlp.shared.gate_up"):
            width = hyperparameters.integer("shared_expert_width")
            parts = dict.fromkeys(("gate", "up"), width)
        elif stem.endswith((".mlp.gate_up", ".mlp.up_gate")):
            order = FUSED_PARTS[stem[stem.rindex("mlp.") :]]
            parts = dict.fromkeys(order, hyperparameters.integer("mlp_width"))
        else:
            found[name] = tensor
            continue
        before = stem.rpartition(".")[0]
        for part, info in _slices(tensor, parts):
            canonical = f"{before}.{part}.{kind}"
            found[canonical] = replace(info, name=canonical)
    return found


def _pairs_of_experts(name: str, tensor: TensorInfo) -> dict[str, TensorInfo]:
    """Gate and up of experts, from a tensor that has both for each expert, gate first."""
    if len(tensor.shape) < 2 or tensor.shape[1] % 2:
        raise ModelFileError(
            f"tensor {tensor.label} has shape {tensor.shape}; it must have gate and up of each"
            " expert",
            field=tensor.label,
        )
    experts, rows, *rest = tensor.shape
    size = tensor.nbytes // experts // 2
    found = {}
    for part, which in enumerate(("gate", "up")):
        places = (tensor.place_of_slice(expert) for expert in range(experts))
        slices = tuple(FilePlace(o.descriptor, o.offset + part * size) for o in places)
        canonical = name.replace(".gate_up.", f".{which}.")
        found[canonical] = replace(
            tensor,
            name=canonical,
            shape=(experts, rows // 2, *rest),
            nbytes=experts * size,
            place=None,
            slices=slices,
        )
    return found


def _query_key_value(read: Hyperparameters, layer: int) -> dict[str, int]:
    """The rows of a layer. Sizes may be lists by layer."""

    def size(name: str, default: int | None = None) -> int:
        listed = read.get(name)
        of_layers = read.integers(name, len(listed) if isinstance(listed, list) else 1, default)
        return of_layers[layer if layer < len(of_layers) else -1]

    heads = size("heads")
    key = size("key_dim", max(read.integer("width") // heads, 1))
    kv_heads = size("kv_heads", heads)
    return {"q": heads * key, "k": kv_heads * key, "v": kv_heads * size("value_dim", key)}


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
