"""Decoders of tensor types over torch tensors: from blocks to float32.

`heddle.weights.quants` defines the types and documents their layouts. These functions do the same
operations in the same order, so values agree to the bit.

The fields of a block (scales, codes) lie in a tensor each, because torch is slow on slices of a few
bytes. Together they have the bytes of the blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FLOATS = {
    TensorType.F32: torch.float32,
    TensorType.F16: torch.float16,
    TensorType.BF16: torch.bfloat16,
}
"""Types whose rows are tensors of a type of torch."""

_FIELDS = {
    TensorType.Q4_0: (2, 16),
    TensorType.Q4_1: (2, 2, 16),
    TensorType.Q5_0: (2, 4, 16),
    TensorType.Q5_1: (2, 2, 4, 16),
    TensorType.Q8_0: (2, 32),
    TensorType.Q4_K: (2, 2, 12, 128),
    TensorType.Q5_K: (2, 2, 12, 32, 128),
    TensorType.Q6_K: (128, 64, 16, 2),
}
"""Bytes of the fields of a block, in order."""

SUPPORTED = (*FLOATS, *_FIELDS)


def fields_of(raw: torch.Tensor, kind: TensorType) -> tuple[torch.Tensor, ...]:
    """The fields of rows as stored (n, bytes of a row): each (n, its bytes of a row)."""
    if kind in FLOATS:
        return (raw.view(FLOATS[kind]),)
    blocks = raw.reshape(len(raw), -1, kind.block_bytes)
    return tuple(
        field.reshape(len(raw), -1) for field in torch.split_with_sizes(blocks, _FIELDS[kind], -1)
    )


def _half(raw: torch.Tensor) -> torch.Tensor:
    return raw.view(torch.float16).float()


def _signed(raw: torch.Tensor) -> torch.Tensor:
    return raw.view(torch.int8).float()


def _nibbles(raw: torch.Tensor) -> torch.Tensor:
    """The low halves of all bytes of the last axis, then the high halves."""
    return torch.cat([raw & 0x0F, raw >> 4], -1)


def _bit_planes(raw: torch.Tensor, bits: int) -> torch.Tensor:
    """Each byte's fields of `bits` bits, lowest first: (..., b) to (..., 8 // bits, b)."""
    return torch.stack([raw >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], -2)


def _q8_0(d: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return _half(d) * _signed(q)


def _q4_0(d: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return _half(d) * (_nibbles(q).float() - 8)


def _q4_1(d: torch.Tensor, m: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return _half(d) * _nibbles(q).float() + _half(m)


def _five_bits(fifth: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """4 bytes of fifth bits, one per element, and 16 bytes of nibbles."""
    shifts = torch.arange(32, dtype=torch.int32, device=low.device)
    bits = (fifth.view(torch.int32) >> shifts & 1) << 4
    return (_nibbles(low) | bits).float()


def _q5_0(d: torch.Tensor, fifth: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    return _half(d) * (_five_bits(fifth, low) - 16)


def _q5_1(d: torch.Tensor, m: torch.Tensor, fifth: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    return _half(d) * _five_bits(fifth, low) + _half(m)


def _scales_and_mins(
    d: torch.Tensor, dmin: torch.Tensor, packed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """d * scale and dmin * min of Q4_K and Q5_K, each (n, 8, 1)."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = torch.cat([first & 63, third & 0x0F | first >> 6 << 4], -1)
    offset = torch.cat([second & 63, third >> 4 | second >> 6 << 4], -1)
    return (_half(d) * scale.float())[..., None], (_half(dmin) * offset.float())[..., None]


def _q4_k(
    d: torch.Tensor, dmin: torch.Tensor, packed: torch.Tensor, low: torch.Tensor
) -> torch.Tensor:
    scale, offset = _scales_and_mins(d, dmin, packed)
    q = _nibbles(low.reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return scale * q.float() - offset


def _q5_k(
    d: torch.Tensor,
    dmin: torch.Tensor,
    packed: torch.Tensor,
    fifth: torch.Tensor,
    low: torch.Tensor,
) -> torch.Tensor:
    scale, offset = _scales_and_mins(d, dmin, packed)
    q = _nibbles(low.reshape(-1, 4, 32)).reshape(-1, 8, 32) | _bit_planes(fifth, 1) << 4
    return scale * q.float() - offset


def _q6_k(
    low: torch.Tensor, high: torch.Tensor, scale: torch.Tensor, d: torch.Tensor
) -> torch.Tensor:
    nibbles = _nibbles(low.reshape(-1, 2, 64)).reshape(-1, 16, 16)
    upper = _bit_planes(high.reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    scales = _half(d) * _signed(scale)
    return scales[..., None] * ((nibbles | upper << 4).float() - 32)


_DECODERS: dict[TensorType, Callable[..., torch.Tensor]] = {
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q5_0: _q5_0,
    TensorType.Q5_1: _q5_1,
    TensorType.Q8_0: _q8_0,
    TensorType.Q4_K: _q4_k,
    TensorType.Q5_K: _q5_k,
    TensorType.Q6_K: _q6_k,
}


def decode(fields: Sequence[torch.Tensor], kind: TensorType) -> torch.Tensor:
    """The values (n, columns), float32, of rows (n) whose fields `fields_of` returned."""
    if kind in FLOATS:
        return fields[0].float()
    blocks = [field.reshape(-1, size) for field, size in zip(fields, _FIELDS[kind], strict=True)]
    return _DECODERS[kind](*blocks).reshape(len(fields[0]), -1)
