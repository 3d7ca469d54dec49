"""A row of the tables of tensor types that kernels read: how a kernel reads a type's blocks."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

FLOAT, HALF, BYTE, SIGNED = torch.float32, torch.float16, torch.uint8, torch.int8
SHORT, WORD = torch.int16, torch.int32


class Codes(NamedTuple):
    """How kernels read a type.

    Attributes:
        run: how many consecutive elements share a scale; at most 32.
        fields: the types of the numbers in each field.
        has_offsets: whether values have offsets.
    """

    run: int
    fields: tuple[torch.dtype, ...]
    has_offsets: bool = False


@triton.constexpr_function
def is_one_of(name, names):
    """Whether a kernel is compiled for one of these types."""
    return name in names
