# Tuples of a kernel grow by addition, because Triton cannot compile stars in them.
# ruff: noqa: RUF005
# mypy: disable-error-code=assignment
"""Matmuls of weights as stored: a program multiplies some rows of a matrix by a tile of tokens.

Weights are the rows (M) of a tensor-core tile, and `TILE` tokens are its columns (N). The program
walks over all of K in ascending order, in pieces whose size follows from the weights' type. So a
token's bits depend neither on the number of tokens nor on its place among them. All tiles of one
matrix's rows run side by side, so that one of them reads the weights from memory, and the others
from the cache.

In longer steps a program multiplies its rows by several tiles, and decodes the weights once for all
of them. Each tile has a product of its own with the same shape, so the arithmetic of a token is
that of a program with one tile.

Tiles may belong to several matrices, such as experts. Then the grid has a program for each tile,
and the first one of each few tiles of a matrix computes them all; the others end at once. Which
tiles a matrix has is known on the device only, and the grid follows from shapes.

A launch may have several matrices that read the same x, such as those of queries, keys and values.
Each has row blocks of its own, of the size that it has alone, so a row has the bits of a launch of
its own. Small matrices fill a GPU only together, and each launch has an end at which the GPU waits.

Float weights are operands as stored. Of blocks, the codes are operands, float16 numbers without
rounding error. Each run's product is multiplied by its scale in float32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from heddle.extensions.torch.kernels.codes import CODES, pointers, run_of
from heddle.extensions.torch.tiles import TILE

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from heddle.extensions.torch.kernels.operands import Operand
    from heddle.extensions.torch.weights import Matrix

_STAGED = 64 << 10
"""Most bytes of shared memory that hold float weights and activations on their way. A GPU's memory
is fast only if a processor waits for some 30 KB at a time, and most matrices give each one or two
programs."""

_MOST_STAGES = 8

_RUNS_AHEAD = 8
"""Most runs of a block's row that a program waits for. More need more registers than there are."""

_WIDEST = 4
"""Most tiles of a program. With 8, registers of some types would not hold the sums."""

_PROGRAMS = 512
"""Programs that keep all of a GPU busy."""


class Tiles(NamedTuple):
    """Tiles of tokens, each for one of several matrices that lie behind one another.

    Tiles of the same matrix lie side by side.

    Attributes:
        sources: the row of x (tiles * TILE,) of each token of a tile; -1: none.
        targets: the row of the result for each of these tokens.
        matrices: the number (tiles,) of each tile's matrix; -1: the tile is not used.
        firsts: the first tile (tiles,) of each tile's matrix. Where a tile is not used, any number.
        each: tiles of a matrix, about. Speed depends on it, no bits do.
    """

    sources: torch.Tensor
    targets: torch.Tensor
    matrices: torch.Tensor
    firsts: torch.Tensor
    each: int


@triton.jit
def no_products(row, tokens):
    """A sum of no products for each tile."""
    sums = ()
    for tile in tl.static_range(len(tokens)):
        sums = sums + (tl.zeros((row.shape[0], tokens[tile].shape[0]), tl.float32),)
    return sums


@triton.jit
def float_products(x, tokens, used, x_stride, w, row, in_features, PIECE: tl.constexpr):
    """Rows of floats times tiles of tokens."""
    sums = no_products(row, tokens)
    for first in range(0, in_features, PIECE):
        k = first + tl.arange(0, PIECE)
        inside = k < in_features
        own = tl.load(w + row[:, None] * in_features + k[None, :], mask=inside[None, :], other=0.0)
        own = own.to(x.dtype.element_ty)
        added = ()
        for tile in tl.static_range(len(tokens)):
            at = tokens[tile][None, :] * x_stride + k[:, None]
            columns = tl.load(x + at, mask=inside[:, None] & used[tile][None, :], other=0.0)
            acc = tl.dot(own, columns, sums[tile], input_precision="ieee")
            added = added + (acc,)
        sums = added
    return sums


@triton.jit
def runs_and_columns(
    x, tokens, used, x_stride, f0, f1, f2, f3, f4, grid, row, first, runs, run,
    KIND: tl.constexpr, BLOCK_RUNS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """The operands of `AHEAD` runs: codes, scales, offsets, and the tokens' columns."""
    codes, scales, offsets, columns = (), (), (), ()
    for ahead in tl.static_range(AHEAD):
        code, scale, offset = run_of(
            f0, f1, f2, f3, f4, grid, row, first + ahead, runs, run, KIND, BLOCK_RUNS
        )
        codes, scales, offsets = codes + (code,), scales + (scale,), offsets + (offset,)
    for tile in tl.static_range(len(tokens)):
        for ahead in tl.static_range(AHEAD):
            k = (first + ahead) * run.shape[0] + run
            at = tokens[tile][None, :] * x_stride + k[:, None]
            columns = columns + (tl.load(x + at, mask=used[tile][None, :], other=0.0),)
    return codes, scales, offsets, columns


@triton.jit
def block_products(
    x, tokens, used, x_stride, f0, f1, f2, f3, f4, grid, row, in_features,
    KIND: tl.constexpr, RUN: tl.constexpr, BLOCK_RUNS: tl.constexpr, OFFSETS: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Rows of blocks times tiles of tokens.

    `AHEAD` runs are read while those before them are multiplied. Products are barriers that no read
    passes, so the program would else wait for the memory once for each run.

    Offsets multiply the sum of a run's activations. It is a product with ones: the order in which
    `tl.sum` adds follows from how Triton lays a program out, which may differ with its tiles.
    """
    sums = no_products(row, tokens)
    ones = tl.full((row.shape[0], RUN), 1.0, tl.float16)
    run, runs = tl.arange(0, RUN), in_features // RUN
    taken = runs_and_columns(
        x, tokens, used, x_stride, f0, f1, f2, f3, f4, grid, row, 0, runs, run,
        KIND, BLOCK_RUNS, AHEAD,
    )  # fmt: skip
    for first in range(0, runs, AHEAD):
        codes, scales, offsets, columns = taken
        later = tl.minimum(first + AHEAD, runs - AHEAD)  # behind the last ones, they are read again
        taken = runs_and_columns(
            x, tokens, used, x_stride, f0, f1, f2, f3, f4, grid, row, later, runs, run,
            KIND, BLOCK_RUNS, AHEAD,
        )  # fmt: skip
        added = ()
        for tile in tl.static_range(len(tokens)):
            acc = sums[tile]
            for ahead in tl.static_range(AHEAD):
                own = columns[tile * AHEAD + ahead]
                acc += scales[ahead][:, None] * tl.dot(codes[ahead], own)
                if OFFSETS:
                    acc += offsets[ahead][:, None] * tl.dot(ones, own)
            added = added + (acc,)
        sums = added
    return sums


@triton.jit
def slots_of(
    first, tile, matrix, matrices, count, GROUPED: tl.constexpr, TOKENS: tl.constexpr
):  # fmt: skip
    """The slots of a tile, counted from the first one, and which of them the matrix has."""
    slots = (first.to(tl.int64) + tile) * TOKENS + tl.arange(0, TOKENS)
    own = slots < count
    if GROUPED:
        own = own & (tl.load(matrices + slots // TOKENS, mask=own, other=-1) == matrix)
    return slots, own


@triton.jit
def tokens_of(
    first, matrix, sources, matrices, count,
    GROUPED: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """For each of the tiles from the first one on, the rows of x, and whether they are used."""
    tokens, used = (), ()
    for tile in tl.static_range(WIDTH):
        slots, own = slots_of(first, tile, matrix, matrices, count, GROUPED, TOKENS)
        if GROUPED:
            slots = tl.load(sources + slots, mask=own, other=-1)
            own = slots >= 0
        tokens = tokens + (slots,)
        used = used + (own,)
    return tokens, used


@triton.jit
def matrix_of(block, ys, biases, fields, out_features, ROWS: tl.constexpr):
    """The matrix with this row block: its result, bias, fields and rows, and its first block."""
    y, bias, rows = ys[0], biases[0], out_features[0]
    f0, f1, f2, f3, f4 = fields[0][0], fields[0][1], fields[0][2], fields[0][3], fields[0][4]
    begin, end = 0, 0
    for number in tl.static_range(1, len(ys)):
        end += tl.cdiv(out_features[number - 1], ROWS)
        is_later = block >= end
        own = fields[number]
        f0, f1 = tl.where(is_later, own[0], f0), tl.where(is_later, own[1], f1)
        f2, f3 = tl.where(is_later, own[2], f2), tl.where(is_later, own[3], f3)
        f4 = tl.where(is_later, own[4], f4)
        y, bias = tl.where(is_later, ys[number], y), tl.where(is_later, biases[number], bias)
        rows = tl.where(is_later, out_features[number], rows)
        begin = tl.where(is_later, end, begin)
    return y, bias, f0, f1, f2, f3, f4, rows, begin


@triton.jit(do_not_specialize=["count"])
def _multiply(
    ys, x, factors, biases, sources, targets, matrices, firsts, fields, grid,
    count, out_features, in_features, x_stride,
    KIND: tl.constexpr, RUN: tl.constexpr, BLOCK_RUNS: tl.constexpr, OFFSETS: tl.constexpr,
    AHEAD: tl.constexpr, PIECE: tl.constexpr, GROUPED: tl.constexpr, FACTORS: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    first, block = tl.program_id(0), tl.program_id(1)
    matrix = (first * 0).to(tl.int64)
    if GROUPED:
        matrix = tl.load(matrices + first)
        if (first - tl.load(firsts + first)) % WIDTH != 0:
            matrix = matrix * 0 - 1
    else:
        first = first * WIDTH
    if matrix >= 0:
        y, bias, f0, f1, f2, f3, f4, height, begin = matrix_of(
            block, ys, biases, fields, out_features, ROWS
        )  # fmt: skip
        tokens, used = tokens_of(first, matrix, sources, matrices, count, GROUPED, TOKENS, WIDTH)
        rows = (block - begin) * ROWS + tl.arange(0, ROWS)
        row = matrix * height + tl.minimum(rows, height - 1)
        if RUN == 0:
            sums = float_products(x, tokens, used, x_stride, f0, row, in_features, PIECE)
        else:
            sums = block_products(
                x, tokens, used, x_stride, f0, f1, f2, f3, f4, grid, row, in_features,
                KIND, RUN, BLOCK_RUNS, OFFSETS, AHEAD,
            )  # fmt: skip
        for tile in tl.static_range(WIDTH):
            acc = sums[tile]
            # Loaded again, because registers do not hold the places of all tiles beside the sums.
            slots, own = slots_of(first, tile, matrix, matrices, count, GROUPED, TOKENS)
            token, place = slots, slots
            if GROUPED:
                token = tl.load(sources + slots, mask=own, other=-1)
                place = tl.load(targets + slots, mask=own, other=0)
                own = token >= 0
            if FACTORS:
                acc = acc * tl.load(factors + token, mask=own, other=0.0)[None, :]
            if BIAS:
                acc = acc + tl.load(bias + row)[:, None]
            at = place[None, :] * height + rows[:, None]
            tl.store(y + at, acc, mask=own[None, :] & (rows < height)[:, None])


def multiply(
    x: Operand, matrix: Matrix, *, tiles: Tiles | None = None, rows: int = 0, y_rows: int = 0
) -> torch.Tensor:
    """x (T, k) times the transpose of the matrix, plus its bias: (T, n); see `multiply_each`."""
    (y,) = multiply_each(x, (matrix,), tiles=tiles, rows=rows, y_rows=y_rows)
    return y


def multiply_each(
    x: Operand,
    matrices: Sequence[Matrix],
    *,
    tiles: Tiles | None = None,
    rows: int = 0,
    y_rows: int = 0,
) -> tuple[torch.Tensor, ...]:
    """x (T, k) times the transpose of each matrix, plus its bias: (T, n) each, in one launch.

    Args:
        x: the operand. T is a multiple of `TILE`, unless `tiles` are given. Of longer rows, the
            first k elements count.
        matrices: (n, k) each, all with the same `joint`; with `tiles`, each is several such
            matrices below one another.
        tiles: which tokens the matrices multiply; None: all tokens, by one matrix.
        rows: with `tiles`, n.
        y_rows: with `tiles`, rows of the results. Rows that are no target are not defined.
    """
    matrix, *_ = matrices
    out_features = tuple(rows or one.out_features for one in matrices)
    count = len(x.values) // TILE if tiles is None else len(tiles.matrices)
    block, codes = _rows(out_features[0]), CODES.get(matrix.type)
    row_blocks = sum(triton.cdiv(height, block) for height in out_features)
    width = tiles_of_program(count, count if tiles is None else tiles.each, row_blocks)
    device, length = x.values.device, y_rows or len(x.values)
    ys = tuple(torch.empty(length, height, device=device) for height in out_features)
    none = matrix.fields[0]  # a pointer that the kernel does not use
    sources, targets, numbers, firsts, _ = tiles or (none, none, none, none, 0)
    fields = [pointers(one.fields, one.type) for one in matrices]
    run = codes.run if codes else 0
    piece = _piece(x.values)
    _multiply[count if tiles else triton.cdiv(count, width), row_blocks](
        ys,
        x.values,
        none if x.factors is None else x.factors,
        tuple(none if one.bias is None else one.bias for one in matrices),
        sources,
        targets,
        numbers,
        firsts,
        tuple(tuple(own[:-1]) for own in fields),
        fields[0][-1],
        count * TILE,
        out_features,
        matrix.in_features,
        x.values.shape[-1],
        KIND=matrix.type.name,
        RUN=run,
        BLOCK_RUNS=matrix.type.block_elements // run if run else 0,
        OFFSETS=codes is not None and codes.has_offsets,
        AHEAD=_ahead(matrix.in_features // run, block, width) if run else 1,
        PIECE=piece,
        GROUPED=tiles is not None,
        FACTORS=x.factors is not None,
        BIAS=matrix.bias is not None,
        ROWS=block,
        TOKENS=TILE,
        WIDTH=width,
        num_warps=2 if width > 1 and block == 32 else 4,  # warps would do the same work twice
        num_stages=1 if run else _stages(piece * x.values.element_size(), block, width),
    )
    return ys


def joint(matrix: Matrix, rows: int = 0) -> Hashable:
    """Is equal for matrices that `multiply_each` can multiply; `rows`: those of one in a stack."""
    height = rows or matrix.out_features
    return matrix.type, matrix.in_features, matrix.bias is None, _rows(height)


def _piece(x: torch.Tensor) -> int:
    """Elements of K in one product of float weights, by the type of the operands."""
    return 64 if x.dtype is torch.float32 else 128


def _stages(row_bytes: int, rows: int, width: int) -> int:
    """Pieces of K that a program has in shared memory. No bits depend on it."""
    return max(1, min(_MOST_STAGES, _STAGED // (row_bytes * (rows + width * TILE))))


def _ahead(runs: int, rows: int, width: int) -> int:
    """Runs that a program reads before it multiplies them; they divide a row. No bits depend on
    it."""
    return math.gcd(runs, max(1, _RUNS_AHEAD * 32 // (rows * width)))


def _rows(out_features: int) -> int:
    """Rows of a program. Small matrices get small programs, so that all of a GPU works.

    The number follows from the matrix alone, as the order of the sums inside a product may depend
    on it.
    """
    return 64 if out_features >= 16384 else 32


def tiles_of_program(tiles: int, each: int, row_blocks: int) -> int:
    """Tiles of a program, a power of two: as many as leave enough programs. No bits depend on it.

    `each` is the number of tiles of a matrix, about: a program computes no tiles of two matrices,
    and what it lacks is zeros.
    """
    width = 1
    while width < min(_WIDEST, each) and -(-tiles // (2 * width)) * row_blocks >= _PROGRAMS:
        width *= 2
    return width
