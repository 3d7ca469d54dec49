"""Decoders of tensor types over torch tensors: from blocks, uint8 (n, block_bytes), to float32.

`heddle.weights.quants` defines the types and documents their layouts. These functions do the same
operations in the same order, so values agree to the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from heddle.weights.tensor_types import TensorType, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

FLOATS = {
    TensorType.F32: torch.float32,
    TensorType.F16: torch.float16,
    TensorType.BF16: torch.bfloat16,
}
"""Types whose rows are tensors of a type of torch."""


def _half(raw: torch.Tensor) -> torch.Tensor:
    return raw.contiguous().view(torch.float16).float()


def _signed(raw: torch.Tensor) -> torch.Tensor:
    return raw.contiguous().view(torch.int8).float()


def _nibbles(raw: torch.Tensor) -> torch.Tensor:
    """The low halves of all bytes of the last axis, then the high halves."""
    return torch.cat([raw & 0x0F, raw >> 4], -1)


def _bit_planes(raw: torch.Tensor, bits: int) -> torch.Tensor:
    """Each byte's fields of `bits` bits, lowest first: (..., b) to (..., 8 // bits, b)."""
    return torch.stack([raw >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], -2)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks[:, :2]) * _signed(blocks[:, 2:])


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks[:, :2]) * (_nibbles(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks[:, :2]) * _nibbles(blocks[:, 4:]).float() + _half(blocks[:, 2:4])


def _five_bits(raw: torch.Tensor) -> torch.Tensor:
    """4 bytes of fifth bits, one per element, then 16 bytes of nibbles."""
    fifth = _bit_planes(raw[:, :4, None], 1).reshape(-1, 32)
    return _nibbles(raw[:, 4:]) | fifth << 4


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks[:, :2]) * (_five_bits(blocks[:, 2:]).float() - 16)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks[:, :2]) * _five_bits(blocks[:, 4:]).float() + _half(blocks[:, 2:4])


def _scales_and_mins(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """d * scale and dmin * min of Q4_K and Q5_K, each (n, 8, 1)."""
    d, dmin = _half(blocks[:, :2]), _half(blocks[:, 2:4])
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = torch.cat([first & 63, third & 0x0F | first >> 6 << 4], -1)
    offset = torch.cat([second & 63, third >> 4 | second >> 6 << 4], -1)
    return (d * scale.float())[..., None], (dmin * offset.float())[..., None]


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scale, offset = _scales_and_mins(blocks)
    q = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return (scale * q.float() - offset).reshape(-1, 256)


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    scale, offset = _scales_and_mins(blocks)
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    q = low | _bit_planes(blocks[:, 16:48], 1) << 4
    return (scale * q.float() - offset).reshape(-1, 256)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 16, 16)
    high = _bit_planes(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    scale = _half(blocks[:, 208:210]) * _signed(blocks[:, 192:208])
    return (scale[..., None] * ((low | high << 4).float() - 32)).reshape(-1, 256)


_DECODERS: dict[TensorType, Callable[[torch.Tensor], torch.Tensor]] = {
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q5_0: _q5_0,
    TensorType.Q5_1: _q5_1,
    TensorType.Q8_0: _q8_0,
    TensorType.Q4_K: _q4_k,
    TensorType.Q5_K: _q5_k,
    TensorType.Q6_K: _q6_k,
}

SUPPORTED = (*FLOATS, *_DECODERS)


def decode(rows: torch.Tensor, kind: TensorType) -> torch.Tensor:
    """The values (n, columns), float32, of rows as stored.

    `rows` is (n, columns) of a type of torch, or (n, bytes of a row) uint8.

    Raises:
        UnsupportedModelError: no decoder for `kind`.
    """
    if kind in FLOATS:
        return rows.float()
    if kind not in _DECODERS:
        raise unsupported(kind)
    return _DECODERS[kind](rows.reshape(-1, kind.block_bytes)).reshape(len(rows), -1)
