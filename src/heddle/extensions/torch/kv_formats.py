"""How keys and values are kept on a torch device: f16, q8_0 or fp8.

`heddle.extensions.reference.kv_types.as_kept` defines the values. These functions agree with it to
the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCK = 32
"""Elements of a head that share a scale in q8_0."""

_FP8 = torch.float8_e4m3fn
_MOST_FP8 = 448.0


class KvFormat(NamedTuple):
    """How vectors are kept: as rows of several tensors.

    Attributes:
        fields: for each tensor, its type, and how many elements of a vector share a number.
        encode: from vectors (T, n), float32, to rows (T, n / elements) of each tensor.
        decode: from rows (..., n / elements) of each tensor to vectors (..., n), float32.
    """

    fields: tuple[tuple[torch.dtype, int], ...]
    encode: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
    decode: Callable[..., torch.Tensor]

    def nbytes(self, elements: int) -> int:
        """Bytes of this many elements."""
        return sum(kind.itemsize * (elements // shared) for kind, shared in self.fields)


def _to_f16(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.half(),)


def _to_q8_0(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Codes and scales. A block whose largest element is not finite becomes NaN."""
    blocks = x.reshape(len(x), -1, _BLOCK)
    peak = blocks.abs().amax(-1, keepdim=True)
    # Both operands are tensors: torch divides by a number as a product with its reciprocal.
    most = torch.full_like(peak, 127.0)
    steps = most / peak
    steps = torch.where(steps.isfinite(), steps, 0.0)
    codes = (blocks * steps).round().nan_to_num(0.0, 0.0, 0.0).to(torch.int8)
    return codes.reshape(x.shape), (peak / most)[..., 0].half()


def _of_q8_0(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    blocks = codes.reshape(*scales.shape, _BLOCK).float() * scales.float()[..., None]
    return blocks.reshape(codes.shape)


def _to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """E4M3 numbers. Beyond 448 they become 448; what is not finite becomes NaN."""
    kept = torch.where(x.isfinite(), x.clamp(-_MOST_FP8, _MOST_FP8), torch.nan)
    return (kept.to(_FP8).view(torch.uint8),)


def _of_fp8(codes: torch.Tensor) -> torch.Tensor:
    return codes.view(_FP8).float()


KV_FORMATS = {
    "f16": KvFormat(((torch.float16, 1),), _to_f16, torch.Tensor.float),
    "q8_0": KvFormat(((torch.int8, 1), (torch.float16, _BLOCK)), _to_q8_0, _of_q8_0),
    # Bytes, because torch cannot index every device's tensors of its type for FP8.
    "fp8": KvFormat(((torch.uint8, 1),), _to_fp8, _of_fp8),
}
"""Formats by the setting `kv_type`."""
