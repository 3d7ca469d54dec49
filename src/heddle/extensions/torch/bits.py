"""Numbers of a few bits out of bytes, on torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def half(raw: torch.Tensor) -> torch.Tensor:
    """Each two bytes as a float16 number, in float32."""
    return raw.view(torch.float16).float()


def signed(raw: torch.Tensor) -> torch.Tensor:
    """Each byte as a signed integer, in float32."""
    return raw.view(torch.int8).float()


def shorts(raw: torch.Tensor) -> torch.Tensor:
    """Each two bytes as an unsigned integer, in int32."""
    return raw.contiguous().view(torch.int16).int() & 0xFFFF


def nibbles(raw: torch.Tensor) -> torch.Tensor:
    """The low halves of all bytes of the last axis, then the high halves."""
    return torch.cat([raw & 0x0F, raw >> 4], -1)


def halves(raw: torch.Tensor) -> torch.Tensor:
    """The low and the high half of each byte in turn: (..., b) to (..., 2 * b)."""
    return torch.stack([raw & 0x0F, raw >> 4], -1).flatten(-2)


def bit_planes(raw: torch.Tensor, bits: int) -> torch.Tensor:
    """Each byte's fields of `bits` bits, lowest first: (..., b) to (..., 8 // bits, b)."""
    return torch.stack([raw >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], -2)


def fields(numbers: torch.Tensor, shifts: Sequence[int], mask: int) -> torch.Tensor:
    """Fields of each integer, (...) to (..., number of shifts)."""
    return torch.stack([numbers >> shift & mask for shift in shifts], -1)
