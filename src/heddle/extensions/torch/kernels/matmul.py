# Tuples of a kernel grow by addition, because Triton cannot compile stars in them.
# ruff: noqa: RUF005
# mypy: disable-error-code=assignment
"""Matmuls of weights as stored: a program multiplies some rows of a matrix by tiles of tokens.

Weights are the rows (M) of a product of tensor cores, and tokens are its columns (N), at least
`TILE`. The program walks over all of K in ascending order. A tensor core adds the products of 16
elements of K to each sum at once, in the same way for any number of columns and at any place among
them. So a token's bits depend neither on the number of tokens nor on its place among them. All
tiles of one matrix's rows run side by side, so that one of them reads the weights from memory, and
the others from the cache.

In longer steps a program multiplies its rows by several tiles at once, and decodes the weights once
for all of them.

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
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from heddle.extensions.torch.kernels.codes import CODES, pointers, run_of
from heddle.extensions.torch.tiles import TILE, cdiv, power_of_two_from
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from heddle.extensions.torch.kernels.operands import Operand
    from heddle.extensions.torch.weights import Matrix

_RUNS_AHEAD = 8
"""Most runs of a block's row that a program waits for. More need more registers than there are."""

_PROGRAMS = 128
"""Programs that keep all of a GPU busy: H100 and H200 have 132 processors."""


class Program(NamedTuple):
    """How much a program multiplies at once, and how.

    Attributes:
        rows: of the matrix.
        tiles: of tokens.
        piece: elements of K between two waits for floats.
        warps: of 32 threads.
        stages: pieces that are in shared memory or on their way. A GPU's memory is fast only if a
            processor waits for some 30 KB at a time.
    """

    rows: int
    tiles: int
    piece: int
    warps: int
    stages: int


_HALVES = (TensorType.BF16, TensorType.F16)

_OF_HALVES = (
    Program(64, 1, 128, 4, 6),
    Program(64, 2, 128, 4, 5),
    Program(64, 4, 64, 4, 6),
    Program(64, 8, 64, 4, 4),
    Program(128, 8, 64, 8, 4),
    Program(128, 16, 64, 8, 3),
)
"""One product has 64 rows and all tokens of the program. It is one instruction for each 16 elements
of K, which four warps execute together."""

_OF_MANY, _MANY_TOKENS, _GROUP = Program(128, 16, 64, 8, 3), 1024, 8


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
def float_products(
    x, tokens, used, x_stride, w, row, in_features, PIECE: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """Rows of floats times tokens."""
    sums = tl.zeros((row.shape[0], tokens.shape[0]), tl.float32)
    k = tl.arange(0, PIECE)
    rows, columns = w + row[:, None] * in_features, x + tokens[None, :] * x_stride
    for first in range(0, in_features, PIECE):
        if EVEN:
            own = tl.load(rows + (first + k)[None, :])
            column = tl.load(columns + (first + k)[:, None], mask=used[None, :], other=0.0)
        else:
            inside = first + k < in_features
            own = tl.load(rows + (first + k)[None, :], mask=inside[None, :], other=0.0)
            mask = inside[:, None] & used[None, :]
            column = tl.load(columns + (first + k)[:, None], mask=mask, other=0.0)
        sums = tl.dot(own.to(column.dtype), column, sums, input_precision="ieee")
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
        k = (first + ahead) * run.shape[0] + run
        at = tokens[None, :] * x_stride + k[:, None]
        columns = columns + (tl.load(x + at, mask=used[None, :], other=0.0),)
    return codes, scales, offsets, columns


@triton.jit
def block_products(
    x, tokens, used, x_stride, f0, f1, f2, f3, f4, grid, row, in_features,
    KIND: tl.constexpr, RUN: tl.constexpr, BLOCK_RUNS: tl.constexpr, OFFSETS: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Rows of blocks times tokens.

    `AHEAD` runs are read while those before them are multiplied. Products are barriers that no read
    passes, so the program would else wait for the memory once for each run.

    Offsets multiply the sum of a run's activations. It is a product with ones: the order in which
    `tl.sum` adds follows from how Triton lays a program out, which may differ with its tiles.
    """
    sums = tl.zeros((row.shape[0], tokens.shape[0]), tl.float32)
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
        for ahead in tl.static_range(AHEAD):
            sums += scales[ahead][:, None] * tl.dot(codes[ahead], columns[ahead])
            if OFFSETS:
                sums += offsets[ahead][:, None] * tl.dot(ones, columns[ahead])
    return sums


@triton.jit
def slots_of(first, matrix, matrices, count, GROUPED: tl.constexpr, TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """The slots of `WIDTH` tiles from the first one on, and which of them the matrix has."""
    slots = first.to(tl.int64) * TOKENS + tl.arange(0, WIDTH * TOKENS)
    own = slots < count
    if GROUPED:
        own = own & (tl.load(matrices + slots // TOKENS, mask=own, other=-1) == matrix)
    return slots, own


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
    AHEAD: tl.constexpr, PIECE: tl.constexpr, EVEN: tl.constexpr, GROUPED: tl.constexpr,
    FACTORS: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
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
        token, used = slots_of(first, matrix, matrices, count, GROUPED, TOKENS, WIDTH)
        if GROUPED:
            token = tl.load(sources + token, mask=used, other=-1)
            used = token >= 0
        rows = (block - begin) * ROWS + tl.arange(0, ROWS)
        row = matrix * height + tl.minimum(rows, height - 1)
        if RUN == 0:
            sums = float_products(x, token, used, x_stride, f0, row, in_features, PIECE, EVEN)
        else:
            sums = block_products(
                x, token, used, x_stride, f0, f1, f2, f3, f4, grid, row, in_features,
                KIND, RUN, BLOCK_RUNS, OFFSETS, AHEAD,
            )  # fmt: skip
        # Made again, because registers do not hold the places beside the sums.
        place, own = slots_of(first, matrix, matrices, count, GROUPED, TOKENS, WIDTH)
        if GROUPED:
            place = tl.load(targets + place, mask=own, other=0)
        if FACTORS:
            sums = sums * tl.load(factors + token, mask=used, other=0.0)[None, :]
        if BIAS:
            sums = sums + tl.load(bias + row)[:, None]
        at = place[None, :] * height + rows[:, None]
        tl.store(y + at, sums, mask=used[None, :] & (rows < height)[:, None])


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
    if tiles is None and _is_for_descriptors(x, matrix):
        return tuple(_multiply_many(x, one) for one in matrices)
    out_features = tuple(rows or one.out_features for one in matrices)
    count = len(x.values) // TILE if tiles is None else len(tiles.matrices)
    codes = CODES.get(matrix.type)
    each = count if tiles is None else tiles.each
    program = program_of(matrix.type, out_features, count, each)
    row_blocks = sum(cdiv(height, program.rows) for height in out_features)
    device, length = x.values.device, y_rows or len(x.values)
    ys = tuple(torch.empty(length, height, device=device) for height in out_features)
    none = matrix.fields[0]  # a pointer that the kernel does not use
    sources, targets, numbers, firsts, _ = tiles or (none, none, none, none, 0)
    fields = [pointers(one.fields, one.type) for one in matrices]
    run = codes.run if codes else 0
    _multiply[count if tiles else cdiv(count, program.tiles), row_blocks](
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
        AHEAD=_ahead(matrix.in_features // run, program) if run else 1,
        PIECE=program.piece,
        EVEN=matrix.in_features % (program.piece or 1) == 0,
        GROUPED=tiles is not None,
        FACTORS=x.factors is not None,
        BIAS=matrix.bias is not None,
        ROWS=program.rows,
        TOKENS=TILE,
        WIDTH=program.tiles,
        num_warps=program.warps,
        num_stages=program.stages,
    )
    return ys


@triton.jit(do_not_specialize=["count", "programs"])
def _multiply_all_tokens(
    y, x, factors, bias, w, count, height, in_features, programs,
    FACTORS: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PIECE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Every `programs`-th block of y. Memory is read by descriptors, without work of threads.

    Blocks of `GROUP` row blocks and all tokens are computed side by side, so that the cache holds
    what they read.
    """
    tiles, blocks = tl.cdiv(count, COLUMNS), tl.cdiv(height, ROWS)
    for number in tl.range(tl.program_id(0), tiles * blocks, programs, flatten=True):
        first = number // (GROUP * tiles) * GROUP
        rest, size = number % (GROUP * tiles), tl.minimum(blocks - first, GROUP)
        block, tile = first + rest % size, rest // size
        sums = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, in_features, PIECE):
            column = x.load([tile * COLUMNS, k])
            own = w.load([block * ROWS, k]).to(column.dtype)
            sums = tl.dot(own, column.T, sums, input_precision="ieee")
        tokens = tile.to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
        rows = block * ROWS + tl.arange(0, ROWS)
        used, inside = tokens < count, rows < height
        if FACTORS:
            sums = sums * tl.load(factors + tokens, mask=used, other=0.0)[None, :]
        if BIAS:
            sums = sums + tl.load(bias + rows, mask=inside, other=0.0)[:, None]
        at = tokens[None, :] * height + rows[:, None]
        tl.store(y + at, sums, mask=used[None, :] & inside[:, None])


def _is_for_descriptors(x: Operand, matrix: Matrix) -> bool:
    """Whether tokens are so many that `_multiply_many` is faster, and it can read the matrix."""
    return (
        matrix.type in _HALVES
        and len(x.values) >= _MANY_TOKENS
        and matrix.in_features % _OF_MANY.piece == 0
    )


def _multiply_many(x: Operand, matrix: Matrix) -> torch.Tensor:
    """As `multiply`, for many tokens: one program for each processor of the GPU."""
    count, height, k = len(x.values), matrix.out_features, matrix.in_features
    y = torch.empty(count, height, device=x.values.device)
    rows, columns, piece = _OF_MANY.rows, _OF_MANY.tiles * TILE, _OF_MANY.piece
    size = [x.values.shape[-1], 1]
    programs = min(_processors(y.device), cdiv(count, columns) * cdiv(height, rows))
    _multiply_all_tokens[(programs,)](
        y,
        TensorDescriptor(x.values, [count, k], size, [columns, piece]),
        y if x.factors is None else x.factors,
        y if matrix.bias is None else matrix.bias,
        TensorDescriptor(matrix.fields[0], [height, k], [k, 1], [rows, piece]),
        count,
        height,
        k,
        programs,
        FACTORS=x.factors is not None,
        BIAS=matrix.bias is not None,
        ROWS=rows,
        COLUMNS=columns,
        PIECE=piece,
        GROUP=_GROUP,
        num_warps=_OF_MANY.warps,
        num_stages=_OF_MANY.stages,
    )
    return y


@cache
def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU."""
    if device.type == "cpu":  # Triton's interpreter
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def joint(matrix: Matrix, rows: int = 0) -> Hashable:
    """Is equal for matrices that `multiply_each` can multiply; `rows`: those of one in a stack."""
    height = _rows(matrix.type, rows or matrix.out_features)
    return matrix.type, matrix.in_features, matrix.bias is None, height


def _ahead(runs: int, program: Program) -> int:
    """Runs that a program reads before it multiplies them; they divide a row. No bits depend on
    it."""
    return math.gcd(runs, max(1, _RUNS_AHEAD * 32 // (program.rows * program.tiles)))


def _rows(kind: TensorType, out_features: int) -> int:
    """Rows of one product, at least. Small matrices of blocks get small programs, so that all of a
    GPU works.

    The number follows from the matrix alone, as the order of the sums inside a product may depend
    on it: a GPU has instructions of their own for products of 64 rows.
    """
    if kind in _HALVES:
        return 64
    return 64 if kind is not TensorType.F32 and out_features >= 16384 else 32


def program_of(kind: TensorType, heights: tuple[int, ...], tiles: int, each: int) -> Program:
    """How much a program multiplies: as much as leaves enough programs. No bits depend on it.

    `each` is the number of tiles of a matrix, about: a program computes no tiles of two matrices,
    and what it lacks is zeros. Numbers of tiles up to the same power of two have the same program,
    so that a warm-up can compile all of them.
    """
    sizes = power_of_two_from(tiles), power_of_two_from(each)
    return _program_of(kind, heights, *sizes, _PROGRAMS)


@cache
def _program_of(
    kind: TensorType, heights: tuple[int, ...], tiles: int, each: int, least: int
) -> Program:
    """As `program_of`: at least so many programs, if possible."""
    rows = _rows(kind, heights[0])
    found, *larger = (one for one in _programs(kind, rows) if one.tiles <= each)
    for program in larger:
        blocks = sum(cdiv(height, program.rows) for height in heights)
        if cdiv(tiles, program.tiles) * blocks < least:
            break
        found = program
    return found


def _programs(kind: TensorType, rows: int) -> Iterator[Program]:
    """The programs that multiply at least so many rows at once, the smallest first."""
    if kind in _HALVES:
        yield from _OF_HALVES
    elif kind is TensorType.F32:
        for tiles in (1, 2, 4):
            yield Program(rows, tiles, 64, 4, 3)
    else:
        for tiles in (1, 2, 4):
            yield Program(rows, tiles, 0, 2 if tiles > 1 and rows == 32 else 4, 1)
