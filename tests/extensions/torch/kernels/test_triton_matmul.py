"""Matmuls by Triton kernels: near float64, and a token's bits are the same in any company."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest
from triton_device import DEVICE, torch

from heddle.weights.tensor_types import TensorType, dequantize
from tensor_blocks import extreme_block, random_matrix

from heddle.extensions.torch.blocks import BLOCKS, FLOATS, fields_of  # isort: skip
from heddle.extensions.torch.kernels.matmul import Tiles, joint, multiply, multiply_each  # isort: skip
from heddle.extensions.torch.kernels import matmul, operands  # isort: skip
from heddle.extensions.torch.kernels.codes import CODES  # isort: skip
from heddle.extensions.torch.tiles import TILE  # isort: skip
from heddle.extensions.torch.weights import Matrix  # isort: skip


KINDS = sorted((*FLOATS, *CODES))


def test_kernels_decode_all_types() -> None:
    assert CODES.keys() == BLOCKS.keys()


def matrix_of(kind: TensorType, rows: int, columns: int, *, bias: bool = True):
    """A matrix on the device, and its values in float64."""
    rng = np.random.default_rng(int(kind))
    raw = random_matrix(rng, kind, rows, columns).reshape(rows, -1)
    if kind.block_elements > 1:
        for row, byte in enumerate((0x00, 0xFF, 0x7F)):
            raw[row, : kind.block_bytes] = extreme_block(kind, byte)
    values = dequantize(raw.ravel(), kind, (rows, columns)).astype(np.float64)
    fields = tuple(field.to(DEVICE) for field in fields_of(torch.from_numpy(raw), kind))
    own = torch.randn(rows, generator=torch.Generator().manual_seed(1)).to(DEVICE) if bias else None
    return Matrix(fields, kind, columns, own), values


def tokens_of(count: int, width: int):
    """Tokens of very different sizes."""
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, width, generator=generator)
    return (x * 10.0 ** torch.arange(count)[:, None].remainder(9).sub(4)).to(DEVICE)


def operand(x, kind: TensorType):
    """Activations beside weights of a type."""
    return operands.operand(x, operands.operand_type(kind))


def read(x, kind: TensorType) -> np.ndarray:
    """The activations that a product with weights of this type reads, in float64."""
    taken = operand(x, kind)
    values = taken.values.double()
    return (values if taken.factors is None else values * taken.factors[:, None]).cpu().numpy()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_products_are_near_those_of_float64(kind: TensorType) -> None:
    rows, columns = 37, max(kind.block_elements, 64) if kind.block_elements > 1 else 83
    matrix, weights = matrix_of(kind, rows, columns)
    x = tokens_of(TILE, columns)
    found = multiply(operand(x, kind), matrix).double().cpu().numpy()
    taken = read(x, kind)
    rounding = np.abs(taken - x.double().cpu().numpy()).max(1) / np.abs(taken).max(1)
    assert rounding.max() <= 2.0**-8  # bfloat16 has 8 bits
    bias = matrix.bias.double().cpu().numpy()
    terms = np.abs(taken) @ np.abs(weights).T + np.abs(bias)
    assert (np.abs(found - (taken @ weights.T + bias)) / terms).max() < 1e-6


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_token_has_the_same_products_in_any_company(kind: TensorType) -> None:
    columns = max(kind.block_elements, 64) if kind.block_elements > 1 else 83
    matrix, _ = matrix_of(kind, 9, columns)
    x = tokens_of(2 * TILE, columns)
    whole = multiply(operand(x, kind), matrix)
    for source, place in ((3, 3), (20, 0), (31, 15)):
        alone = torch.zeros(TILE, columns, device=DEVICE)
        alone[place] = x[source]
        assert torch.equal(multiply(operand(alone, kind), matrix)[place], whole[source])


@pytest.mark.parametrize("tiles", [2, 3, 9, 20])
@pytest.mark.parametrize(
    "kind",
    [TensorType.F32, TensorType.F16, TensorType.BF16, TensorType.Q8_0, TensorType.Q4_K],
    ids=lambda kind: kind.name,
)
def test_a_program_of_several_tiles_changes_no_bits(
    kind: TensorType, tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, programs = {1: 80, 32: 96}.get(kind.block_elements, 256), []
    matrix, _ = matrix_of(kind, 33, columns)
    x = operand(tokens_of(tiles * TILE, columns), kind)
    found = []
    for least in (1 << 30, 1):
        monkeypatch.setattr(matmul, "_PROGRAMS", least)
        programs.append(matmul.program_of(kind, (33,), tiles, tiles).tiles)
        found.append(multiply(x, matrix))
    halves = kind.block_elements == 1 and kind is not TensorType.F32
    assert programs == [1, {2: 2, 3: 4, 9: 16 if halves else 4, 20: 16 if halves else 4}[tiles]]
    assert torch.equal(*found)
    assert found[0].isfinite().all()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [TensorType.F16, TensorType.BF16], ids=lambda kind: kind.name)
def test_programs_that_read_by_descriptors_change_no_bits(
    kind: TensorType, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several matrices, with ends of tokens and rows inside a program."""
    matrices = [matrix_of(kind, rows, 128, bias=bias)[0] for rows in (300, 7)]
    x = operand(tokens_of(19 * TILE, 128), kind)
    few = multiply_each(x, matrices)
    monkeypatch.setattr(matmul, "_MANY_TOKENS", 19 * TILE)
    used = []
    many = matmul._multiply_many
    monkeypatch.setattr(matmul, "_multiply_many", lambda *given: used.append(1) or many(*given))
    for own, other in zip(multiply_each(x, matrices), few, strict=True):
        assert torch.equal(own, other)
    assert len(used) == 2
    multiply(operand(tokens_of(19 * TILE, 96), kind), matrix_of(kind, 7, 96)[0])
    assert len(used) == 2, "columns that a program cannot take at once"


def tiles_of(*counts: int, each: int = 1) -> Tiles:
    """So many tiles of each matrix. The last token of each is missing, and the last tile unused."""
    numbers = [number for number, count in enumerate(counts) for _ in range(count)]
    matrices = torch.tensor([*numbers, -1])
    sources = torch.arange(len(matrices) * TILE)
    firsts = torch.tensor([numbers.index(number) for number in numbers] + [0])
    targets = sources.flip(0)
    sources = torch.where(sources % TILE < TILE - 1, sources, -1)
    return Tiles(
        sources.to(DEVICE), targets.to(DEVICE), matrices.to(DEVICE), firsts.to(DEVICE), each
    )


@pytest.mark.parametrize(
    "kind",
    [TensorType.F32, TensorType.F16, TensorType.Q6_K, TensorType.Q4_K],
    ids=lambda kind: kind.name,
)
def test_tiles_multiply_their_tokens_by_their_matrices(
    kind: TensorType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any number of tiles of a program. It writes nothing to tiles that its matrix lacks."""
    columns, rows, programs = 256, 5, []
    stack, _ = matrix_of(kind, 4 * rows, columns)
    tiles = tiles_of(1, 0, 5, 2)
    x = tokens_of(len(tiles.sources), columns)
    monkeypatch.setattr(matmul, "_PROGRAMS", 1)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *sizes, **more: empty(*sizes, **more).fill_(nan))
    for each in (1, 2, 3):
        programs.append(matmul.program_of(kind, (rows,), len(tiles.matrices), each).tiles)
        found = multiply(
            operand(x, kind), stack, tiles=tiles._replace(each=each), rows=rows, y_rows=len(x)
        )
        for tile, number in enumerate(tiles.matrices[:-1].tolist()):
            slots = slice(tile * TILE, (tile + 1) * TILE - 1)
            own = torch.zeros(TILE, columns, device=DEVICE)
            own[:-1] = x[slots]
            part = stack.part(number * rows, rows)
            expected = multiply(operand(own, kind), part)
            assert torch.equal(found[tiles.targets[slots]], expected[:-1])
        assert found[tiles.targets[-TILE:]].isnan().all()
    assert programs == [1, 2, 4]


@pytest.mark.parametrize(
    ("kind", "bias"),
    [
        (TensorType.F32, True),
        (TensorType.BF16, False),
        (TensorType.Q6_K, True),
        (TensorType.IQ2_S, False),
    ],
)
def test_matrices_of_one_launch_have_the_bits_of_their_own(kind: TensorType, bias: bool) -> None:
    heights, columns = (37, 5, 64, 20), 256
    whole, _ = matrix_of(kind, sum(heights), columns, bias=bias)
    ends = np.cumsum(heights).tolist()
    matrices = [whole.part(end - height, height) for end, height in zip(ends, heights, strict=True)]
    assert len({joint(matrix) for matrix in matrices}) == 1
    x = operand(tokens_of(TILE, columns), kind)
    for matrix, found in zip(matrices, multiply_each(x, matrices), strict=True):
        assert found.is_contiguous()
        assert torch.equal(found, multiply(x, matrix))


def test_stacks_of_one_launch_have_the_bits_of_their_own() -> None:
    kind, rows, columns = TensorType.Q4_K, 40, 256
    whole, _ = matrix_of(kind, 4 * rows, columns)
    stacks = [whole.part(first, 2 * rows) for first in (2 * rows, 0)]
    tiles = tiles_of(2, 1, each=2)
    x = operand(tokens_of(len(tiles.sources), columns), kind)
    used, length = tiles.targets[tiles.sources >= 0][: -TILE + 1], len(x.values)
    both = multiply_each(x, stacks, tiles=tiles, rows=rows, y_rows=length)
    for stack, found in zip(stacks, both, strict=True):
        own = multiply(x, stack, tiles=tiles, rows=rows, y_rows=length)
        assert torch.equal(found[used], own[used])


def test_matrices_that_differ_have_launches_of_their_own() -> None:
    matrix, _ = matrix_of(TensorType.Q4_K, 4, 256)
    assert joint(matrix) == joint(matrix.part(0, 1))
    other, _ = matrix_of(TensorType.Q5_K, 4, 256)
    biased, _ = matrix_of(TensorType.Q4_K, 4, 256, bias=False)
    longer, _ = matrix_of(TensorType.Q4_K, 4, 512)
    kinds = {joint(one) for one in (matrix, other, biased, longer)}
    assert len({*kinds, joint(matrix, 1 << 14)}) == 5, "a large one has programs of more rows"


def test_a_value_that_is_not_finite_stays_with_its_token() -> None:
    matrix, _ = matrix_of(TensorType.F16, 20, 50)
    x = tokens_of(TILE, 50)
    whole = multiply(operand(x, TensorType.F16), matrix)
    for bad in (torch.nan, torch.inf):
        x[5, 7] = bad
        found = multiply(operand(x, TensorType.F16), matrix)
        assert not found[5].isfinite().any()
        assert torch.equal(found[:5], whole[:5])
        assert torch.equal(found[6:], whole[6:])


def test_a_number_of_fp8_that_is_nan_stays_in_its_row() -> None:
    matrix, _ = matrix_of(TensorType.F8_E4M3, 9, 64)
    for row, code in ((3, 0x7F), (6, 0xFF)):
        matrix.fields[1][row, 5] = code
    found = multiply(operand(tokens_of(TILE, 64), TensorType.F8_E4M3), matrix)
    assert found[:, [3, 6]].isnan().all()
    assert found[:, [0, 1, 2, 4, 5, 7, 8]].isfinite().all()
