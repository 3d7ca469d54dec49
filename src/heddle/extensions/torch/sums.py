"""Exponentials, logarithms, powers and running sums of float64 rows, for sampling.

The bits of a row depend on the row alone, not on the other rows of a batch, and not on zeros that
follow its last value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from heddle.extensions.torch.functions import total

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 1024
"""Rows of logits are padded to a multiple of this many columns."""


def padded_width(columns: int) -> int:
    """The next multiple of `BLOCK`."""
    return -(-columns // BLOCK) * BLOCK


def exp(x: torch.Tensor) -> torch.Tensor:
    """e**x of float64 values (rows, a multiple of `BLOCK`)."""
    return _in_blocks(torch.exp, x)


def log(x: torch.Tensor) -> torch.Tensor:
    """The natural logarithm of float64 values (rows, 1)."""
    return _in_blocks(torch.log, x)


def power(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """x**exponent of float64 values (rows, 1). 0**0 is 1."""
    return _in_blocks(torch.pow, x, exponent)


def _in_blocks(
    function: Callable[..., torch.Tensor], x: torch.Tensor, *others: torch.Tensor
) -> torch.Tensor:
    """A function of elements, with the same bits in every place."""
    if x.device.type != "cpu":
        return function(x, *others)  # a GPU computes each element with the same code
    # A processor computes the elements at the end of an array with other code than those before.
    # So it gets arrays of one size, which begin at the same alignment.
    blocks = zip(*(_blocks_of(one) for one in (x, *others)), strict=True)
    found = torch.cat([function(*some) for some in blocks])
    return found[: x.numel()].view(x.shape)


def _blocks_of(x: torch.Tensor) -> torch.Tensor:
    """The elements, and ones behind them: (blocks, `BLOCK`)."""
    flat = x.flatten()
    missing = -flat.numel() % BLOCK
    return (torch.cat([flat, flat.new_ones(missing)]) if missing else flat).view(-1, BLOCK)


def prefix_sums(x: torch.Tensor) -> torch.Tensor:
    """The sums of each row's elements up to each column, the column included.

    A sum depends only on the elements up to its column (Hillis and Steele 1986, "Data parallel
    algorithms"), so columns that follow change nothing.
    """
    if x.device.type != "cpu":
        # The extra `torch`, for the processor, does not install Triton.
        from heddle.extensions.torch.kernels import sums as kernels

        return kernels.prefix_sums(x)
    step, spare = 1, torch.empty_like(x)
    while step < x.shape[-1]:
        target = spare
        target[..., :step] = x[..., :step]
        torch.add(x[..., step:], x[..., :-step], out=target[..., step:])
        spare = torch.empty_like(x) if step == 1 else x  # the first is the caller's
        x, step = target, 2 * step
    return x


def block_sums(x: torch.Tensor) -> torch.Tensor:
    """The sum of each run of `BLOCK` columns: (rows, columns / BLOCK)."""
    return total(x.view(len(x), -1, BLOCK)).squeeze(-1)


def first(found: torch.Tensor, otherwise: torch.Tensor | int) -> torch.Tensor:
    """The first column of each row (rows, columns) that is true: (rows, 1); else `otherwise`."""
    columns = torch.arange(found.shape[-1], device=found.device)
    place = torch.where(found, columns, found.shape[-1]).amin(-1, keepdim=True)
    return torch.where(found.any(-1, keepdim=True), place, otherwise)


def last(found: torch.Tensor) -> torch.Tensor:
    """The last column of each row that is true: (rows, 1); 0 if there is none."""
    columns = torch.arange(found.shape[-1], device=found.device)
    return torch.where(found, columns, 0).amax(-1, keepdim=True)
