"""Storage of tensor types on a torch device: the fields of blocks, and decoders to float32.

`heddle.weights.quants` defines the types and documents their layouts. The decoders here do the same
operations in the same order, so values agree to the bit.

The fields of a block (scales, codes) lie in a tensor each, because torch is slow on slices of a few
bytes. Together they have the bytes of the blocks.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from heddle.extensions.torch import block_decoders, grid_decoders
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

FLOATS = {
    TensorType.F32: torch.float32,
    TensorType.F16: torch.float16,
    TensorType.BF16: torch.bfloat16,
}
"""Types whose rows are tensors of a type of torch."""


BLOCKS = {**block_decoders.BLOCKS, **grid_decoders.BLOCKS}
"""All other types that are supported."""


def stored_bytes(shape: tuple[int, ...], kind: TensorType) -> int:
    """Bytes of a tensor on the device, which are those of a file."""
    return prod(shape) // kind.block_elements * kind.block_bytes


def empty_fields(
    rows: int, columns: int, kind: TensorType, device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Tensors for the fields of rows of `columns` values, to be filled."""
    if kind in FLOATS:
        return (torch.empty(rows, columns, dtype=FLOATS[kind], device=device),)
    blocks = columns // kind.block_elements
    return tuple(
        torch.empty(rows, blocks * size, dtype=torch.uint8, device=device)
        for size in BLOCKS[kind].sizes
    )


def fields_of(raw: torch.Tensor, kind: TensorType) -> tuple[torch.Tensor, ...]:
    """The fields of rows as stored (n, bytes of a row): each (n, its bytes of a row), dense."""
    if kind in FLOATS:
        return (raw.view(FLOATS[kind]),)
    blocks = raw.reshape(len(raw), -1, kind.block_bytes)
    return tuple(
        field.reshape(len(raw), -1).contiguous()
        for field in torch.split_with_sizes(blocks, BLOCKS[kind].sizes, -1)
    )


def decode(fields: Sequence[torch.Tensor], kind: TensorType) -> torch.Tensor:
    """The values (n, columns), float32, of rows (n) whose fields `fields_of` returned."""
    if kind in FLOATS:
        return fields[0].float()
    sizes, decoder = BLOCKS[kind]
    blocks = [field.reshape(-1, size) for field, size in zip(fields, sizes, strict=True)]
    return decoder(*blocks).reshape(len(fields[0]), -1)
