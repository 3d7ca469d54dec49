"""Storage of tensor types on a torch device: the fields of blocks, and decoders to float32.

`heddle.weights.quants` defines the types and documents their layouts. The decoders here do the same
operations in the same order, so values agree to the bit.

The fields of a block (scales, codes) lie in a tensor each, because torch is slow on slices of a few
bytes. Together they have the bytes of the blocks.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch

from heddle.extensions.torch import block_decoders, grid_decoders
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FLOATS = {
    TensorType.F32: torch.float32,
    TensorType.F16: torch.float16,
    TensorType.BF16: torch.bfloat16,
}
"""Types whose rows are tensors of a type of torch."""


class Block(NamedTuple):
    """How a type's blocks are stored.

    Attributes:
        sizes: bytes of the fields of a block, in order.
        decode: from the fields of n blocks, each (n, bytes), to n blocks of values, float32.
    """

    sizes: tuple[int, ...]
    decode: Callable[..., torch.Tensor]


BLOCKS = {
    TensorType.Q4_0: Block((2, 16), block_decoders.q4_0),
    TensorType.Q4_1: Block((2, 2, 16), block_decoders.q4_1),
    TensorType.Q5_0: Block((2, 4, 16), block_decoders.q5_0),
    TensorType.Q5_1: Block((2, 2, 4, 16), block_decoders.q5_1),
    TensorType.Q8_0: Block((2, 32), block_decoders.q8_0),
    TensorType.Q2_K: Block((16, 64, 2, 2), block_decoders.q2_k),
    TensorType.Q3_K: Block((32, 64, 12, 2), block_decoders.q3_k),
    TensorType.Q4_K: Block((2, 2, 12, 128), block_decoders.q4_k),
    TensorType.Q5_K: Block((2, 2, 12, 32, 128), block_decoders.q5_k),
    TensorType.Q6_K: Block((128, 64, 16, 2), block_decoders.q6_k),
    TensorType.IQ1_S: Block((2, 32, 16), grid_decoders.iq1_s),
    TensorType.IQ1_M: Block((32, 16, 8), grid_decoders.iq1_m),
    TensorType.IQ2_XXS: Block((2, 64), grid_decoders.iq2_xxs),
    TensorType.IQ2_XS: Block((2, 64, 8), grid_decoders.iq2_xs),
    TensorType.IQ2_S: Block((2, 32, 32, 8, 8), grid_decoders.iq2_s),
    TensorType.IQ3_XXS: Block((2, 64, 32), grid_decoders.iq3_xxs),
    TensorType.IQ3_S: Block((2, 64, 8, 32, 4), grid_decoders.iq3_s),
    TensorType.IQ4_NL: Block((2, 16), block_decoders.iq4_nl),
    TensorType.IQ4_XS: Block((2, 2, 4, 128), block_decoders.iq4_xs),
    TensorType.TQ1_0: Block((48, 4, 2), block_decoders.tq1_0),
    TensorType.TQ2_0: Block((64, 2), block_decoders.tq2_0),
    TensorType.MXFP4: Block((1, 16), block_decoders.mxfp4),
    TensorType.NVFP4: Block((4, 32), block_decoders.nvfp4),
    TensorType.F8_E4M3: Block((4, 64), block_decoders.f8_e4m3),
}
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
