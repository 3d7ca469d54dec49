"""Attention by Triton kernels: near the one on tensors, and exact in any chunks and company."""

from __future__ import annotations

from dataclasses import replace

import pytest
from triton_device import DEVICE, torch

from heddle.models.ops import RopeSpec
from heddle.step import Chunk, StepPlan

from heddle.extensions.torch import attention  # isort: skip
from heddle.extensions.torch.cache import Vectors  # isort: skip
from heddle.extensions.torch.kernels import attention as kernels  # isort: skip
from heddle.extensions.torch.kernels.operands import halves  # isort: skip
from heddle.extensions.torch.kernels.pages import store  # isort: skip
from heddle.extensions.torch.kernels.rope import rotate, rotate_and_store  # isort: skip
from heddle.extensions.torch.kv_formats import KV_FORMATS  # isort: skip
from heddle.extensions.torch.layout import (  # isort: skip
    SPLIT,
    Layout,
    PlanIntegers,
    Spare,
)
from heddle.extensions.torch.rotation import Rotations  # isort: skip
from heddle.extensions.torch.tiles import TILE  # isort: skip

Shape = attention.Shape
PAGES = 24
LONG = [5, 3, 11, 0, 20, 7, 13, 1, 9, 17, 2]  # pages of a sequence of more than one split
SHORT = [19, 4]
END = SPLIT + 30


def vectors_of(shape: Shape, kv_type: str, seed: int) -> Vectors:
    """Pages with random vectors. The last page is not finite."""
    form, width = KV_FORMATS[kv_type], shape.kv_heads * shape.key_dim
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(PAGES * 32, width, generator=generator)
    rows[-32:] = torch.nan
    fields = (field.reshape(PAGES, 32, -1).to(DEVICE) for field in form.encode(rows))
    return Vectors(tuple(fields), form)


def layout_of(*chunks: Chunk) -> Layout:
    return Layout.of(StepPlan((), chunks), 1, DEVICE, has_states=False)


def of_long(first: int, end: int) -> Chunk:
    return Chunk(0, first, [1] * (end - first), LONG, False)


def attended(shape: Shape, kv_type: str, q, *chunks: Chunk, using=kernels, sinks=None):
    """The result for queries (T, heads * key_dim)."""
    layout = layout_of(*chunks)
    asked = torch.zeros(len(layout.tokens), q.shape[1], device=DEVICE)
    asked[: len(q)] = q
    keys, values = vectors_of(shape, kv_type, 1), vectors_of(shape, kv_type, 2)
    if shape.value_dim < shape.key_dim:
        values = keys
    return using.attend(asked, keys, values, layout, 0, shape, sinks)[: len(q)]


def queries(shape: Shape, count: int):
    generator = torch.Generator().manual_seed(count)
    return (torch.randn(count, shape.heads * shape.key_dim, generator=generator) * 3).to(DEVICE)


SHAPES = {
    "grouped": Shape(6, 2, 20, 20, 0.25),
    "window": Shape(2, 2, 16, 16, 0.25, window=100),  # more than a block
    "runs": Shape(2, 2, 16, 16, 0.25, window=100, aligned=True),
    "soft cap": Shape(3, 1, 16, 16, 0.5, soft_cap=2.0),
    "two-sided": Shape(2, 1, 16, 16, 0.3, causal=False),
    "two-sided window": Shape(2, 1, 16, 16, 0.3, window=7, causal=False),
    "latent": Shape(5, 1, 40, 33, 0.2),
    "wide": Shape(1, 1, 130, 130, 0.1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_attention_is_near_the_one_on_tensors(name: str) -> None:
    shape = SHAPES[name]
    q = queries(shape, 20)
    chunks = of_long(END - 17, END), Chunk(1, 2, [1] * 3, SHORT, False)
    sinks = torch.arange(shape.heads, device=DEVICE) / 2.0 if name == "grouped" else None
    found = attended(shape, "f16", q, *chunks, sinks=sinks)
    expected = attended(shape, "f16", q, *chunks, using=attention, sinks=sinks)
    torch.testing.assert_close(found, expected, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("kv_type", ["q8_0", "fp8"])
def test_pages_of_other_types_have_their_values(kv_type: str) -> None:
    shape = Shape(2, 2, 32, 32, 0.2)
    q = queries(shape, 3)
    chunk = Chunk(1, 40, [1] * 3, SHORT, False)
    found = attended(shape, kv_type, q, chunk)
    torch.testing.assert_close(
        found, attended(shape, kv_type, q, chunk, using=attention), atol=4e-3, rtol=4e-3
    )


@pytest.mark.parametrize("name", ["grouped", "window", "runs"])
def test_a_query_has_the_same_bits_in_any_chunks_and_company(name: str) -> None:
    shape, first = SHAPES[name], SPLIT - 3
    count = END - first
    q = queries(shape, count)
    whole = attended(shape, "f16", q, of_long(first, END))
    for cut in (3, 20):
        parts = [
            attended(shape, "f16", q[:cut], of_long(first, first + cut)),
            attended(shape, "f16", q[cut:], of_long(first + cut, END)),
        ]
        assert torch.equal(torch.cat(parts), whole)
    company = Chunk(1, 0, [1] * 5, SHORT, False)
    beside = attended(
        shape, "f16", torch.cat([queries(shape, 5), q[-2:]]), company, of_long(END - 2, END)
    )
    assert torch.equal(beside[5:], whole[-2:])


@pytest.mark.parametrize("name", ["grouped", "window", "soft cap"])
def test_more_tiles_and_splits_than_needed_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layout of a bucket has padding of every kind. The order of the scratch is another."""
    shape, chunks = SHAPES[name], (of_long(END - 1, END), Chunk(1, 2, [1] * 3, SHORT, False))
    q = queries(shape, 4)
    expected = attended(shape, "f16", q, *chunks)
    made = PlanIntegers(chunks, 1)
    sizes = replace(made.sizes, stored=16, tiles=5, runs=7, splits=6)
    spare = Spare([(PAGES - 1) * 32], 0)
    layout = Layout.over(torch.from_numpy(made.packed(sizes, spare)).to(DEVICE), sizes)
    assert layout.stored[0][4:].tolist() == [(PAGES - 1) * 32] * 12
    monkeypatch.setattr(f"{__name__}.layout_of", lambda *chunks: layout)
    assert torch.equal(attended(shape, "f16", q, *chunks), expected)


@pytest.mark.parametrize("name", SHAPES)
def test_a_program_for_all_splits_of_a_tile_changes_no_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tiles of any number of queries, with sinks, and beside a page that is not finite."""
    shape = SHAPES[name]
    q = queries(shape, 30)
    pages = [*LONG[:8], PAGES - 1]  # only the last queries see it, if they see no later positions
    chunks = (Chunk(0, END - 27, [1] * 27, pages, False), Chunk(1, 2, [1] * 3, SHORT, False))
    sinks = torch.arange(shape.heads, device=DEVICE) / 2.0
    made = []
    for least, of_tile in ((1 << 30, TILE), (0, TILE), (1 << 30, 4), (0, 4)):
        monkeypatch.setattr(kernels, "_PROGRAMS", least)
        integers = PlanIntegers(chunks, 1, of_tile)
        packed = torch.from_numpy(integers.packed(integers.sizes, None)).to(DEVICE)
        layout = Layout.over(packed, integers.sizes)
        monkeypatch.setattr(f"{__name__}.layout_of", lambda *chunks, own=layout: own)
        made.append(attended(shape, "f16", q, *chunks, sinks=sinks).nan_to_num(77.0))
    assert all(torch.equal(one, made[0]) for one in made)
    assert (made[0] == 77.0).any()
    assert (made[0] != 77.0).any()


def test_many_tiles_take_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPES["window"]
    q = queries(shape, 40)
    whole = attended(shape, "f16", q, of_long(0, 40))
    monkeypatch.setattr(kernels, "ATTENTION_SCRATCH", 1)
    assert torch.equal(attended(shape, "f16", q, of_long(0, 40)), whole)


def test_a_value_that_is_not_finite_concerns_those_who_see_it() -> None:
    shape = SHAPES["window"]
    q = queries(shape, 45)
    pages = [LONG[0], PAGES - 1]
    found = attended(shape, "f16", q, Chunk(0, 0, [1] * 45, pages, False))
    assert found[:32].isfinite().all()
    assert found[32:].isnan().all()


def special_rows(count: int, width: int, seed: int):
    """Vectors with ties, limits, and numbers that are not finite, in blocks of their own."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, width, generator=generator)
    rows[1] = torch.arange(width) * 2.0**-10  # ties of both formats
    rows[2] = torch.linspace(-600, 600, width)
    rows[3] *= 10.0 ** torch.arange(width).remainder(80).sub(45)
    rows[4, ::32], rows[5, 5], rows[6, 20] = 127.5, torch.nan, -torch.inf
    rows[5, 6], rows[7], rows[8] = torch.inf, 0.0, -1e-39
    return rows.to(DEVICE)


@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # of the interpreter's NumPy
@pytest.mark.parametrize("kv_type", KV_FORMATS)
@pytest.mark.parametrize("joined", [False, True], ids=["two parts", "joined"])
def test_stored_keys_and_values_are_those_of_the_format(kv_type: str, joined: bool) -> None:
    shape = Shape(2, 2, 32, 32, 1.0)
    places = torch.tensor([7, 70, 34, 3, 5, 99, 8, 66, 130, 2], device=DEVICE)
    width = 24 if joined else 64
    k, v = special_rows(16, width, 16), special_rows(16, 64 - width if joined else 64, 17)
    parts = 1 if joined else 2
    found = [vectors_of(shape, kv_type, seed) for seed in range(parts)]
    expected = [vectors_of(shape, kv_type, seed) for seed in range(parts)]
    store(tuple(found), places, k, v)
    vectors = (torch.cat([k, v], -1),) if joined else (k, v)
    for own, other, rows in zip(found, expected, vectors, strict=True):
        other.store(places, rows[: len(places)])
        for field, right in zip(own.fields, other.fields, strict=True):
            torch.testing.assert_close(field, right, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kv_type", KV_FORMATS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotating_and_storing_at_once_changes_no_bits(kv_type: str, interleaved: bool) -> None:
    heads, kv_heads, head_dim = 20, 2, 32
    spec = RopeSpec(24, 1e4, interleaved, first=8)
    table = Rotations(DEVICE).table(spec, 1501)
    positions = torch.arange(16, device=DEVICE) * 100
    places = torch.tensor([7, 70, 34, 3, 5, 99, 8, 66, 130, 2], device=DEVICE)
    q, k, v = (
        torch.randn(16, n * head_dim, generator=torch.Generator().manual_seed(n)).to(DEVICE) * 9
        for n in (heads, kv_heads, kv_heads)
    )
    shape = Shape(kv_heads, kv_heads, head_dim, head_dim, 1.0)
    found, expected = ([vectors_of(shape, kv_type, seed) for seed in (1, 2)] for _ in range(2))
    asked = rotate_and_store(q, k, v, positions, table, spec, heads, kv_heads, tuple(found), places)
    right = halves(rotate(q, positions, table, spec, heads).reshape(-1, head_dim))
    assert torch.equal(asked.values, right.values)
    assert torch.equal(asked.factors, right.factors)
    store(tuple(expected), places, rotate(k, positions, table, spec, kv_heads), v)
    for own, other in zip(found, expected, strict=True):
        for field, same in zip(own.fields, other.fields, strict=True):
            assert torch.equal(field.view(torch.uint8), same.view(torch.uint8))
