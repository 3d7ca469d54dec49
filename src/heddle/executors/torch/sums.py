"""Exponentials and running sums of float64 rows, for sampling.

The bits of a row depend on the row alone, not on the other rows of a batch, and not on zeros that
follow its last value.
"""

from __future__ import annotations

import torch

from heddle.executors.torch.functions import total

BLOCK = 1024
"""Rows of logits are padded to a multiple of this many columns."""


def padded_width(columns: int) -> int:
    """The next multiple of `BLOCK`."""
    return -(-columns // BLOCK) * BLOCK


def exp(x: torch.Tensor) -> torch.Tensor:
    """e**x of float64 values (rows, a multiple of `BLOCK`)."""
    if x.device.type != "cpu":
        return x.exp()  # a GPU computes each element with the same code
    # A processor computes the elements at the end of an array with other code than those before.
    # So it gets arrays of one size, which begin at the same alignment.
    blocks = x.contiguous().view(-1, BLOCK)
    return torch.stack([block.exp() for block in blocks]).view(x.shape)


def prefix_sums(x: torch.Tensor) -> torch.Tensor:
    """The sums of each row's elements up to each column, the column included.

    A sum depends only on the elements up to its column (Hillis and Steele 1986, "Data parallel
    algorithms"), so columns that follow change nothing.
    """
    step = 1
    while step < x.shape[-1]:
        x = torch.cat([x[..., :step], x[..., step:] + x[..., :-step]], -1)
        step *= 2
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
