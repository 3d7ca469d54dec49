"""Attention over pages in two kernels: one for each split of positions, one that merges splits.

A program of the first kernel computes the softmax of a tile of queries over one split, for some
heads that share keys. It walks over the split in blocks, whose boundaries are fixed positions. A
block or split of which a query sees nothing adds exactly nothing, so more splits or tiles than a
step needs change nothing. The second kernel merges the splits of a tile in ascending order. Decode
and prefill are the same two kernels, so that bits do not depend on how a prompt was cut.

Operands are float16: queries (divided by a power of two, `operands.py`), keys and values as stored,
and the weights of the softmax, whose sum is that of the rounded weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from heddle.extensions.torch.attention import ATTENTION_SCRATCH
from heddle.extensions.torch.kernels.operands import Operand, halves
from heddle.extensions.torch.kernels.pages import fields, read
from heddle.extensions.torch.layout import SPLIT
from heddle.extensions.torch.tiles import TILE
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from heddle.extensions.torch.attention import Shape
    from heddle.extensions.torch.cache import Vectors
    from heddle.extensions.torch.layout import Layout

_BLOCK = 64
"""Positions of a block."""
_PIECE = 64
"""Elements of a key in one product."""
_MOST_HEADS = 4
_MOST_VALUES = 128


@triton.jit
def seen(queries, end, WINDOW: tl.constexpr, ALIGNED: tl.constexpr, CAUSAL: tl.constexpr):
    """The range of positions that the queries of a tile see. -1 is no query."""
    least = tl.min(tl.where(queries >= 0, queries, end), 0)
    most = tl.max(queries, 0)
    first, last = least * 0, end
    if CAUSAL:
        last = tl.minimum(end, most + 1)
    if WINDOW > 0:
        first = tl.maximum(least - WINDOW + 1, 0)
        if ALIGNED:
            first = least // WINDOW * WINDOW
        last = tl.minimum(last, most + WINDOW)
    return first, last


@triton.jit
def visible_to(
    queries, positions, end,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Whether queries (columns) see positions (rows)."""
    distance = queries[None, :] - positions[:, None]
    visible = (queries >= 0)[None, :] & (positions < end)[:, None]
    if CAUSAL:
        visible = visible & (distance >= 0)
    if WINDOW > 0:
        visible = visible & (tl.abs(distance) < WINDOW)
    if ALIGNED:
        visible = visible & (queries[None, :] // WINDOW == positions[:, None] // WINDOW)
    return visible


@triton.jit
def tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@triton.jit
def products(
    q, q_row, own, codes, scales, place, held, first, key_dim, width,
    KIND: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """Keys of a head, which begin at element `first`, times queries: (positions, columns)."""
    scores = tl.zeros((place.shape[0], q_row.shape[0]), tl.float32)
    for piece in range(0, key_dim, PIECE):
        k = piece + tl.arange(0, PIECE)
        inside = held[:, None] & (k < key_dim)[None, :]
        keys = read(codes, scales, place[:, None], (first + k)[None, :], width, inside, KIND)
        asked = (k < key_dim)[:, None] & own[None, :]
        query = tl.load(q + q_row[None, :] * key_dim + k[:, None], mask=asked, other=0.0)
        scores = tl.dot(keys, query, scores)
    return scores


@triton.jit(do_not_specialize=["first_tile", "splits", "numbers"])
def _attend_split(
    mixed_out, peaks, sums, q, factors, tile_rows, queries, ends, tables,
    key_codes, key_scales, value_codes, value_scales,
    first_tile, splits, numbers, heads, shared, key_dim, value_dim, key_width, value_width, scale,
    SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, ALIGNED: tl.constexpr, CAUSAL: tl.constexpr,
    KIND: tl.constexpr,
    KEY_PIECE: tl.constexpr, VALUES: tl.constexpr, VALUE_PARTS: tl.constexpr,
    HEADS: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,
    PAGE: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0).to(tl.int64) + first_tile
    blocks = tl.cdiv(shared, HEADS)
    kv_head, block = tl.program_id(1) // blocks, tl.program_id(1) % blocks
    split, part = tl.program_id(2) // VALUE_PARTS, tl.program_id(2) % VALUE_PARTS

    columns = tl.arange(0, HEADS * TOKENS)
    of_group = block * HEADS + columns // TOKENS
    head, own = kv_head * shared + of_group, of_group < shared
    position = tl.load(queries + tile * TOKENS + columns % TOKENS)
    q_row = tl.load(tile_rows + tile * TOKENS + columns % TOKENS) * heads + head
    end = tl.load(ends + tile)
    first, last = seen(position, end, WINDOW, ALIGNED, CAUSAL)
    first = tl.maximum(first, split * SPAN) // BLOCK * BLOCK
    last = tl.minimum(last, (split + 1) * SPAN)
    if first >= last:
        return  # `_merge` does not read this split

    factor = tl.load(factors + q_row, mask=own, other=0.0) * scale
    peak = tl.full((HEADS * TOKENS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS * TOKENS,), tl.float32)
    mixed = tl.zeros((VALUES, HEADS * TOKENS), tl.float32)
    element = part * VALUES + tl.arange(0, VALUES)
    for begin in range(first, last, BLOCK):
        positions = begin + tl.arange(0, BLOCK)
        held = positions < end
        page = tl.load(tables + tile * numbers + positions // PAGE, mask=held, other=0)
        place = page * PAGE + positions % PAGE
        scores = products(
            q, q_row, own, key_codes, key_scales, place, held, kv_head * key_dim, key_dim,
            key_width, KIND, KEY_PIECE,
        )  # fmt: skip
        scores = scores * factor[None, :]
        if SOFT_CAP > 0.0:
            scores = tanh(scores * (1.0 / SOFT_CAP)) * SOFT_CAP
        inside = (element < value_dim)[:, None] & held[None, :]
        values = read(
            value_codes, value_scales, place[None, :],
            (kv_head * (value_width // (heads // shared)) + element)[:, None],
            value_width, inside, KIND,
        )  # fmt: skip
        # A value that is not finite concerns the queries that see it, and 0 * NaN is NaN.
        finite = tl.abs(values.to(tl.float32)) <= 65504.0
        values = tl.where(finite, values, 0.0).to(tl.float16)
        sound = tl.min(finite.to(tl.int32), 0) > 0
        scores = tl.where(sound[:, None], scores, float("nan"))
        visible = visible_to(position, positions, end, WINDOW, ALIGNED, CAUSAL)
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        faded = tl.exp(peak - base)
        weights = tl.exp(scores - base[None, :]).to(tl.float16)
        total = total * faded + tl.sum(weights.to(tl.float32), 0)
        mixed = mixed * faded[None, :] + tl.dot(values, weights)
        peak = higher

    # Loaded again, because registers do not hold it beside the sums.
    token = tl.load(tile_rows + tile * TOKENS + columns % TOKENS)
    in_round = token - tl.load(tile_rows + first_tile * TOKENS)
    row = ((in_round * splits + split) * VALUE_PARTS + part) * heads + head
    own = own & (position >= 0)
    tl.store(peaks + row, peak, mask=own)
    tl.store(sums + row, total, mask=own)
    at = row[None, :] * VALUES + tl.arange(0, VALUES)[:, None]
    tl.store(mixed_out + at, mixed, mask=own[None, :])


@triton.jit(do_not_specialize=["first_tile", "splits"])
def _merge(
    y, mixed_in, peaks, sums, sinks, tile_rows, queries, ends,
    first_tile, splits, heads, value_dim,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, CAUSAL: tl.constexpr, SINKS: tl.constexpr,
    VALUES: tl.constexpr,
    VALUE_PARTS: tl.constexpr, TOKENS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0).to(tl.int64) + first_tile
    head, part = tl.program_id(1), tl.program_id(2)
    tokens = tl.arange(0, TOKENS)
    position = tl.load(queries + tile * TOKENS + tokens)
    token = tl.load(tile_rows + tile * TOKENS + tokens)
    in_round, asked = token - tl.load(tile_rows + first_tile * TOKENS), position >= 0
    first, last = seen(position, tl.load(ends + tile), WINDOW, ALIGNED, CAUSAL)

    peak = tl.full((TOKENS,), float("-inf"), tl.float32)
    total = tl.zeros((TOKENS,), tl.float32)
    mixed = tl.zeros((TOKENS, VALUES), tl.float32)
    column = tl.arange(0, VALUES)
    for split in range(first // SPAN, tl.cdiv(last, SPAN)):
        row = ((in_round * splits + split) * VALUE_PARTS + part) * heads + head
        own_peak = tl.load(peaks + row, mask=asked, other=float("-inf"))
        at = row[:, None] * VALUES + column[None, :]
        own = tl.load(mixed_in + at, mask=asked[:, None], other=0.0)
        higher = tl.maximum(peak, own_peak)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        faded, grown = tl.exp(peak - base), tl.exp(own_peak - base)
        total = total * faded + tl.load(sums + row, mask=asked, other=0.0) * grown
        mixed = mixed * faded[:, None] + own * grown[:, None]
        peak = higher
    if SINKS:
        sink = tl.load(sinks + head)
        higher = tl.maximum(peak, sink)
        faded = tl.exp(peak - higher)
        total = total * faded + tl.exp(sink - higher)
        mixed = mixed * faded[:, None]
    total = tl.where(asked, total, 1.0)
    element = part * VALUES + column
    at = (token * heads + head)[:, None] * value_dim
    stored = asked[:, None] & (element < value_dim)[None, :]
    tl.store(y + at + element[None, :], mixed / total[:, None], mask=stored)


def attend(
    q: torch.Tensor | Operand,
    keys: Vectors,
    values: Vectors,
    layout: Layout,
    group: int,
    shape: Shape,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of all tokens of a step; see :func:`heddle.extensions.torch.attention.attend`.

    An operand has the heads of the queries (T * heads, key_dim).
    """
    heads, shared = shape.heads, shape.heads // shape.kv_heads
    asked = q if isinstance(q, Operand) else halves(q.reshape(len(q) * heads, shape.key_dim))
    tokens, device = len(asked.values) // heads, asked.values.device
    y = torch.zeros(tokens, heads * shape.value_dim, device=device)
    part = min(_MOST_VALUES, max(16, triton.next_power_of_2(shape.value_dim)))
    parts = triton.cdiv(shape.value_dim, part)
    of_program = min(_MOST_HEADS, triton.next_power_of_2(shared))
    head_blocks = shape.kv_heads * triton.cdiv(shared, of_program)
    key_codes, key_scales, kind = fields(keys)
    value_codes, value_scales, _ = fields(values)
    tables = layout.tables[group]
    places = layout.tile_rows, layout.queries, layout.ends
    rows = layout.splits * parts * heads  # of a token
    most_tokens = ATTENTION_SCRATCH // (4 * rows * part)
    round_tiles = len(layout.queries) if tokens <= most_tokens else max(1, most_tokens // TILE)
    rules = {"WINDOW": shape.window, "ALIGNED": shape.aligned, "CAUSAL": shape.causal}
    rules |= {"VALUES": part, "TOKENS": TILE}
    for first in range(0, len(layout.queries), round_tiles):
        tiles = min(round_tiles, len(layout.queries) - first)
        kept = min(tokens, tiles * TILE) * rows
        mixed = torch.empty(kept, part, device=device)
        peaks, sums = torch.empty(2, kept, device=device)
        _attend_split[(tiles, head_blocks, layout.splits * parts)](
            mixed, peaks, sums, asked.values, asked.factors, *places, tables,
            key_codes, key_scales, value_codes, value_scales,
            first, layout.splits, tables.shape[1], heads, shared, shape.key_dim, shape.value_dim,
            key_codes.shape[-1], value_codes.shape[-1], shape.scale,
            SOFT_CAP=shape.soft_cap, KIND=kind,
            KEY_PIECE=min(_PIECE, max(16, triton.next_power_of_2(shape.key_dim))),
            VALUE_PARTS=parts, HEADS=of_program, BLOCK=_BLOCK, SPAN=SPLIT, PAGE=PAGE_TOKENS,
            **rules,
        )  # fmt: skip
        _merge[(tiles, heads, parts)](
            y, mixed, peaks, sums, peaks if sinks is None else sinks, *places,
            first, layout.splits, heads, shape.value_dim,
            SINKS=sinks is not None, VALUE_PARTS=parts, SPAN=SPLIT, **rules,
        )  # fmt: skip
    return y
