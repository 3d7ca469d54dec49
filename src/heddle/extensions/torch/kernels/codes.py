"""Blocks of stored weights inside a kernel: codes, a scale and an offset.

`heddle.weights.quants` defines the types. A value is scale * code + offset. Codes are float16
numbers without rounding error, most of them small integers. The fields of a block lie in tensors of
their own (`heddle.extensions.torch.blocks`). A type's row and its case stand in `simple_codes`,
`k_codes` or `grid_codes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from heddle.extensions.torch.kernels import grid_codes, k_codes, simple_codes
from heddle.extensions.torch.kernels.code_rows import WORD, is_one_of
from heddle.extensions.torch.kernels.grid_codes import of_grids, points_of
from heddle.extensions.torch.kernels.k_codes import of_k
from heddle.extensions.torch.kernels.simple_codes import of_simple
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

CODES = {**simple_codes.CODES, **k_codes.CODES, **grid_codes.CODES}
"""Types that kernels decode."""

_K_NAMES = tl.constexpr(tuple(kind.name for kind in k_codes.CODES))
_GRID_NAMES = tl.constexpr(tuple(kind.name for kind in grid_codes.CODES))
_MOST_FIELDS = 5


def pointers(fields: Sequence[torch.Tensor], kind: TensorType) -> list[torch.Tensor]:
    """The fields with the types of their numbers, as many as kernels take, and the grid's points.

    A kernel does not read those that the type lacks.
    """
    if kind not in CODES:
        return [*fields] * (_MOST_FIELDS + 1)
    views = [field.view(own) for field, own in zip(fields, CODES[kind].fields, strict=True)]
    if kind is TensorType.IQ2_XXS:  # two numbers of different types share a field
        views.append(fields[1].view(WORD))
    points = points_of(kind, fields[0].device)
    views += views[:1] * (_MOST_FIELDS - len(views))
    return [*views, views[0] if points is None else points]


@triton.jit
def run_of(
    f0, f1, f2, f3, f4, grid, row, number, runs, run, KIND: tl.constexpr, BLOCK_RUNS: tl.constexpr
):
    """Codes (rows, elements), scales (rows,) and offsets (rows,) of run `number` of each row.

    A row has `runs` runs, of which `BLOCK_RUNS` are a block. `run` counts the elements of a run.
    """
    block = row * (runs // BLOCK_RUNS) + number // BLOCK_RUNS
    number = number % BLOCK_RUNS
    if is_one_of(KIND, _K_NAMES):
        codes, scale, offset = of_k(f0, f1, f2, f3, f4, block, number, run, KIND)
    elif is_one_of(KIND, _GRID_NAMES):
        codes, scale, offset = of_grids(f0, f1, f2, f3, f4, grid, block, number, run, KIND)
    else:
        codes, scale, offset = of_simple(f0, f1, f2, f3, block, number, run, KIND)
    return codes.to(tl.float16), scale, offset
