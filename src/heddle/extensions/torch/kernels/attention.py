"""Attention over pages: softmax of splits of positions, which are merged in ascending order.

A program computes a tile of queries of some heads that share keys. It walks over a split in blocks,
whose boundaries are fixed positions. A block or split of which a query sees nothing adds exactly
nothing, so more splits or tiles than a step needs change nothing.

Two ways have the same arithmetic, and so the same bits. Where tiles are few, as in decode, programs
compute a split each, and a second kernel merges the splits of a tile. Where they are many, as in
prompts, a program computes all splits of its tile and merges them itself: what the first way writes
between its kernels would be more than keys and values. Nothing is fused (`EXACT`), because the
compiler could fuse the two ways differently.

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
from heddle.extensions.torch.kernels.pages import EXACT, fields, read
from heddle.extensions.torch.layout import SPLIT
from heddle.extensions.torch.tiles import cdiv, power_of_two_from
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from heddle.extensions.torch.attention import Shape
    from heddle.extensions.torch.cache import Vectors
    from heddle.extensions.torch.layout import Layout

_BLOCK = 64
"""Positions of a block."""
_PIECE = 64
"""Elements of a key in one product, where a program has no room for all of them."""
_MOST_KEYS = 256
"""Most elements of the queries that a program keeps."""
_MOST_ROWS = 128
_MOST_VALUES = 128
_MOST_SPLITS = 32
"""Programs that share the splits of a tile."""
_PROGRAMS = 256
"""Tiles and heads that keep a GPU busy without splits."""
_MOST_REGISTERS = 168
"""Of a thread, in decode: three programs then share a processor, and wait for memory at once."""


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
    """Whether queries (rows) see positions (columns)."""
    distance = queries[:, None] - positions[None, :]
    visible = (queries >= 0)[:, None] & (positions < end)[None, :]
    if CAUSAL:
        visible = visible & (distance >= 0)
    if WINDOW > 0:
        visible = visible & (tl.abs(distance) < WINDOW)
    if ALIGNED:
        visible = visible & (queries[:, None] // WINDOW == positions[None, :] // WINDOW)
    return visible


@triton.jit
def tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@triton.jit
def queries_of(q, q_row, own, k, KEYS: tl.constexpr):
    """Elements k of queries: (rows, elements)."""
    asked = own[:, None] & (k < KEYS)[None, :]
    return tl.load(q + q_row[:, None] * KEYS + k[None, :], mask=asked, other=0.0)


@triton.jit
def products(
    q, q_row, own, codes, scales, place, held, first, width,
    KEYS: tl.constexpr, KIND: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """Queries times the keys of a head, which begin at element `first`: (rows, positions)."""
    scores = tl.zeros((q_row.shape[0], place.shape[0]), tl.float32)
    for piece in range(0, KEYS, PIECE):
        k = piece + tl.arange(0, PIECE)
        inside = held[None, :] & (k < KEYS)[:, None]
        keys = read(codes, scales, place[None, :], (first + k)[:, None], width, inside, KIND)
        scores = tl.dot(queries_of(q, q_row, own, k, KEYS), keys, scores)
    return scores


@triton.jit
def merged(peak, total, mixed, own_peak, own_total, own_mixed):
    """The sums of two sets of positions as those of both. `mixed` is (rows, elements)."""
    higher = tl.maximum(peak, own_peak)
    base = tl.where(higher == float("-inf"), 0.0, higher)
    faded, grown = tl.exp(peak - base), tl.exp(own_peak - base)
    mixed = mixed * faded[:, None] + own_mixed * grown[:, None]
    return higher, total * faded + own_total * grown, mixed


@triton.jit
def of_positions(
    q, q_row, own, position, end, all_see, factor, table, first, last, kv_head, element,
    key_codes, key_scales, value_codes, value_scales, key_width, value_width, value_stride,
    KEYS: tl.constexpr, VALUE_DIM: tl.constexpr,
    SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, ALIGNED: tl.constexpr, CAUSAL: tl.constexpr,
    KIND: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr,
    SPAN: tl.constexpr,
):  # fmt: skip
    """The softmax of positions from `first` to `last`: its peak, sum, and sums of values.

    Splits are merged if there are several. Where a value is not finite, the sums are not. Then they
    are computed again with care.
    """
    peak, total, mixed = of_blocks(
        q, q_row, own, position, end, all_see, factor, table, first, last, kv_head, element,
        key_codes, key_scales, value_codes, value_scales, key_width, value_width, value_stride,
        KEYS, VALUE_DIM, SOFT_CAP, WINDOW, ALIGNED, CAUSAL, False, KIND, PIECE, BLOCK, PAGE, SPAN,
    )  # fmt: skip
    is_finite = tl.abs(mixed) <= 3.4028234663852886e38
    if tl.min(tl.min(is_finite.to(tl.int32), 1), 0) == 0:
        peak, total, mixed = of_blocks(
            q, q_row, own, position, end, all_see, factor, table, first, last, kv_head, element,
            key_codes, key_scales, value_codes, value_scales, key_width, value_width, value_stride,
            KEYS, VALUE_DIM, SOFT_CAP, WINDOW, ALIGNED, CAUSAL, True, KIND, PIECE, BLOCK, PAGE,
            SPAN,
        )  # fmt: skip
    return peak, total, mixed


@triton.jit
def of_blocks(
    q, q_row, own, position, end, all_see, factor, table, first, last, kv_head, element,
    key_codes, key_scales, value_codes, value_scales, key_width, value_width, value_stride,
    KEYS: tl.constexpr, VALUE_DIM: tl.constexpr,
    SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, ALIGNED: tl.constexpr, CAUSAL: tl.constexpr,
    CAREFUL: tl.constexpr,
    KIND: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr,
    SPAN: tl.constexpr,
):  # fmt: skip
    """The same, block by block; a `SPAN` of 0 is one split.

    If `CAREFUL`, a value that is not finite concerns the queries that see it, and no others: the
    weight of others is 0, and 0 * NaN is NaN.
    """
    rows: tl.constexpr = q_row.shape[0]
    peak = tl.full((rows,), float("-inf"), tl.float32)
    total = tl.zeros((rows,), tl.float32)
    mixed = tl.zeros((rows, element.shape[0]), tl.float32)
    if SPAN > 0:  # of the splits before
        all_peak, all_total, all_mixed = peak, total, mixed
    first_column = (tl.arange(0, BLOCK) >= 0)[:, None] & (tl.arange(0, 16) == 0)[None, :]
    first_column = first_column.to(tl.float16)
    if KEYS == PIECE:
        query = queries_of(q, q_row, own, tl.arange(0, PIECE), KEYS)
    for begin in range(first, last, BLOCK):
        if SPAN > 0:  # noqa: SIM102 - the compiler decides
            if begin % SPAN == 0:
                all_peak, all_total, all_mixed = merged(
                    all_peak, all_total, all_mixed, peak, total, mixed
                )
                peak = tl.full((rows,), float("-inf"), tl.float32)
                total, mixed = tl.zeros_like(total), tl.zeros_like(mixed)
        positions = begin + tl.arange(0, BLOCK)
        held = positions < end
        place = places_of(table + begin // PAGE, begin, end, BLOCK, PAGE)
        if KEYS == PIECE:
            at = (kv_head * KEYS + tl.arange(0, PIECE))[:, None]
            keys = read(key_codes, key_scales, place[None, :], at, key_width, held[None, :], KIND)
            scores = tl.dot(query, keys)
        else:
            scores = products(
                q, q_row, own, key_codes, key_scales, place, held, kv_head * KEYS, key_width,
                KEYS, KIND, PIECE,
            )  # fmt: skip
        scores = scores * factor[:, None]
        if SOFT_CAP > 0.0:
            scores = tanh(scores * (1.0 / SOFT_CAP)) * SOFT_CAP
        values = read(
            value_codes, value_scales, place[:, None],
            (kv_head * value_stride + element)[None, :],
            value_width, held[:, None] & (element < VALUE_DIM)[None, :], KIND,
        )  # fmt: skip
        if CAREFUL:
            finite = tl.abs(values.to(tl.float32)) <= 65504.0
            values = tl.where(finite, values, 0.0).to(tl.float16)
            sound = tl.min(finite.to(tl.int32), 1) > 0
            scores = tl.where(sound[None, :], scores, float("nan"))
        if (begin + BLOCK > all_see) | (WINDOW > 0):
            visible = visible_to(position, positions, end, WINDOW, ALIGNED, CAUSAL)
            scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        faded = tl.exp(peak - base)
        weights = tl.exp(scores - base[:, None]).to(tl.float16)
        # A product with ones in its first column, because the order in which `tl.sum` adds follows
        # from the layout of the program.
        total = total * faded + tl.sum(tl.dot(weights, first_column), 1)
        mixed = tl.dot(weights, values, mixed * faded[:, None])
        peak = higher
    if SPAN > 0:
        peak, total, mixed = merged(all_peak, all_total, all_mixed, peak, total, mixed)
    return peak, total, mixed


@triton.jit
def places_of(table, begin, end, BLOCK: tl.constexpr, PAGE: tl.constexpr):
    """Places of the positions of a block, whose pages `table` names. A block has two pages."""
    tl.static_assert(BLOCK == 2 * PAGE)
    page = tl.load(table)
    later = tl.load(table + 1, mask=begin + PAGE < end, other=0)
    offset = tl.arange(0, BLOCK)
    return tl.where(offset < PAGE, page * PAGE, (later - 1) * PAGE) + offset


@triton.jit
def asked_by(
    tile, block, queries, tile_rows, ends, factors, heads, scale,
    SHARED: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """The rows of a program: some heads of each query of a tile, and what they see."""
    blocks: tl.constexpr = (SHARED + HEADS - 1) // HEADS
    kv_head = block // blocks
    rows = tl.arange(0, ROWS)
    of_group = block % blocks * HEADS + rows // TOKENS
    own = (of_group < SHARED) & (rows < HEADS * TOKENS)
    head, query = kv_head * SHARED + of_group, tile * TOKENS + rows % TOKENS
    position = tl.load(queries + query).to(tl.int32)
    token = tl.load(tile_rows + query)
    end = tl.load(ends + tile).to(tl.int32)
    first, last = seen(position, end, WINDOW, ALIGNED, CAUSAL)
    q_row = token * heads + head
    factor = tl.load(factors + q_row, mask=own, other=0.0) * scale
    # All rows see the positions before this one. What rows without a query see does not matter.
    all_see = tl.min(tl.where(position >= 0, position, end), 0) + 1
    if not CAUSAL:
        all_see = end
    return kv_head, head, own, position, token, end, all_see, first, last, q_row, factor


@triton.jit(do_not_specialize=["first_tile", "splits", "programs", "numbers"])
def _attend_split(
    mixed_out, peaks, sums, q, factors, tile_rows, queries, ends, tables,
    key_codes, key_scales, value_codes, value_scales,
    first_tile, splits, programs, numbers, heads, key_width, value_width, value_stride, scale,
    KEYS: tl.constexpr, VALUE_DIM: tl.constexpr, SHARED: tl.constexpr,
    SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, ALIGNED: tl.constexpr, CAUSAL: tl.constexpr,
    KIND: tl.constexpr, PIECE: tl.constexpr, VALUES: tl.constexpr, VALUE_PARTS: tl.constexpr,
    HEADS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    SPAN: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Every `programs`-th split of a tile. Splits that nothing sees cost a step of a loop."""
    tile = tl.program_id(0).to(tl.int64) + first_tile
    part = tl.program_id(2) % VALUE_PARTS
    kv_head, head, own, position, token, end, all_see, first, last, q_row, factor = asked_by(
        tile, tl.program_id(1), queries, tile_rows, ends, factors, heads, scale,
        SHARED, HEADS, TOKENS, ROWS, WINDOW, ALIGNED, CAUSAL,
    )  # fmt: skip
    element = part * VALUES + tl.arange(0, VALUES)
    in_round = token - tl.load(tile_rows + first_tile * TOKENS)
    stored = own & (position >= 0)
    for split in range(tl.program_id(2) // VALUE_PARTS, tl.cdiv(last, SPAN), programs):
        begin = tl.maximum(first, split * SPAN) // BLOCK * BLOCK
        beyond = tl.minimum(last, (split + 1) * SPAN)
        if begin < beyond:  # else `_merge` does not read this split
            peak, total, mixed = of_positions(
                q, q_row, own, position, end, all_see, factor, tables + tile * numbers,
                begin, beyond, kv_head, element, key_codes, key_scales, value_codes, value_scales,
                key_width, value_width, value_stride,
                KEYS, VALUE_DIM, SOFT_CAP, WINDOW, ALIGNED, CAUSAL, KIND, PIECE, BLOCK, PAGE, 0,
            )  # fmt: skip
            row = ((in_round * splits + split) * VALUE_PARTS + part) * heads + head
            tl.store(peaks + row, peak, mask=stored)
            tl.store(sums + row, total, mask=stored)
            at = row[:, None] * VALUES + tl.arange(0, VALUES)[None, :]
            tl.store(mixed_out + at, mixed, mask=stored[:, None])


@triton.jit
def store_result(
    y, peak, total, mixed, sinks, head, token, own, element, heads,
    VALUE_DIM: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """The mean of values (rows, elements) of each row, with a score of no position."""
    if SINKS:
        sink = tl.load(sinks + head, mask=own, other=0.0)
        higher = tl.maximum(peak, sink)
        faded = tl.exp(peak - higher)
        total = total * faded + tl.exp(sink - higher)
        mixed = mixed * faded[:, None]
    total = tl.where(own, total, 1.0)
    at = ((token * heads + head) * VALUE_DIM)[:, None] + element[None, :]
    inside = own[:, None] & (element < VALUE_DIM)[None, :]
    tl.store(y + at, tl.div_rn(mixed, tl.broadcast_to(total[:, None], mixed.shape)), mask=inside)


@triton.jit(do_not_specialize=["first_tile", "splits"])
def _merge(
    y, mixed_in, peaks, sums, sinks, tile_rows, queries, ends, first_tile, splits, heads,
    VALUE_DIM: tl.constexpr, WINDOW: tl.constexpr, ALIGNED: tl.constexpr, CAUSAL: tl.constexpr,
    SINKS: tl.constexpr, VALUES: tl.constexpr, VALUE_PARTS: tl.constexpr, TOKENS: tl.constexpr,
    SPAN: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one head of a tile's queries."""
    tile = tl.program_id(0).to(tl.int64) + first_tile
    head, part = tl.program_id(1), tl.program_id(2)
    query = tile * TOKENS + tl.arange(0, TOKENS)
    position, token = tl.load(queries + query), tl.load(tile_rows + query)
    in_round, asked = token - tl.load(tile_rows + first_tile * TOKENS), position >= 0
    first, last = seen(position, tl.load(ends + tile), WINDOW, ALIGNED, CAUSAL)
    peak = tl.full((TOKENS,), float("-inf"), tl.float32)
    total = tl.zeros((TOKENS,), tl.float32)
    mixed = tl.zeros((TOKENS, VALUES), tl.float32)
    column = tl.arange(0, VALUES)
    for split in range(first // SPAN, tl.cdiv(last, SPAN)):
        row = ((in_round * splits + split) * VALUE_PARTS + part) * heads + head
        own_peak = tl.load(peaks + row, mask=asked, other=float("-inf"))
        own_total = tl.load(sums + row, mask=asked, other=0.0)
        at = row[:, None] * VALUES + column[None, :]
        own_mixed = tl.load(mixed_in + at, mask=asked[:, None], other=0.0)
        peak, total, mixed = merged(peak, total, mixed, own_peak, own_total, own_mixed)
    heads_of = head + tl.zeros_like(position)
    store_result(
        y, peak, total, mixed, sinks, heads_of, token, asked, part * VALUES + column, heads,
        VALUE_DIM, SINKS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["numbers"])
def _attend_whole(
    y, sinks, q, factors, tile_rows, queries, ends, tables,
    key_codes, key_scales, value_codes, value_scales,
    numbers, heads, key_width, value_width, value_stride, scale,
    KEYS: tl.constexpr, VALUE_DIM: tl.constexpr, SHARED: tl.constexpr,
    SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, ALIGNED: tl.constexpr, CAUSAL: tl.constexpr,
    SINKS: tl.constexpr,
    KIND: tl.constexpr, PIECE: tl.constexpr, VALUES: tl.constexpr, VALUE_PARTS: tl.constexpr,
    HEADS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    SPAN: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """All splits of a tile. The last tiles, which see the most of a prompt, come first."""
    tile = (tl.num_programs(1) - 1 - tl.program_id(1)).to(tl.int64)
    block, part = tl.program_id(0) // VALUE_PARTS, tl.program_id(0) % VALUE_PARTS
    kv_head, head, own, position, token, end, all_see, first, last, q_row, factor = asked_by(
        tile, block, queries, tile_rows, ends, factors, heads, scale,
        SHARED, HEADS, TOKENS, ROWS, WINDOW, ALIGNED, CAUSAL,
    )  # fmt: skip
    element = part * VALUES + tl.arange(0, VALUES)
    peak, total, mixed = of_positions(
        q, q_row, own, position, end, all_see, factor, tables + tile * numbers,
        first // BLOCK * BLOCK, last, kv_head, element,
        key_codes, key_scales, value_codes, value_scales, key_width, value_width, value_stride,
        KEYS, VALUE_DIM, SOFT_CAP, WINDOW, ALIGNED, CAUSAL, KIND, PIECE, BLOCK, PAGE, SPAN,
    )  # fmt: skip
    store_result(
        y, peak, total, mixed, sinks, head, token, own & (position >= 0), element, heads,
        VALUE_DIM, SINKS,
    )  # fmt: skip


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
    tiles, of_tile = layout.queries.shape
    part = min(_MOST_VALUES, max(16, power_of_two_from(shape.value_dim)))
    parts = cdiv(shape.value_dim, part)
    # Triton 3.6 multiplies 64 rows wrongly if fewer than 8 elements of a key are loaded at once.
    most_rows = _MOST_ROWS if shape.key_dim % 8 == 0 else 32
    of_program = min(most_rows // of_tile, power_of_two_from(shared))
    head_blocks = shape.kv_heads * cdiv(shared, of_program)
    key_codes, key_scales, kind = fields(keys)
    value_codes, value_scales, _ = fields(values)
    table = layout.tables[group]
    key_width, value_width = key_codes.shape[-1], value_codes.shape[-1]
    sizes = heads, key_width, value_width, value_width // shape.kv_heads, shape.scale
    piece = power_of_two_from(shape.key_dim)
    rules = {"WINDOW": shape.window, "ALIGNED": shape.aligned, "CAUSAL": shape.causal}
    rules |= {"VALUE_DIM": shape.value_dim, "VALUES": part, "VALUE_PARTS": parts}
    rules |= {"TOKENS": of_tile, "SPAN": SPLIT, **EXACT}
    options = {"KEYS": shape.key_dim, "SHARED": shared, "SOFT_CAP": shape.soft_cap, "KIND": kind}
    options |= {"PIECE": piece if piece == shape.key_dim <= _MOST_KEYS else _PIECE}
    program_rows = max(16, of_program * of_tile)
    options |= {"HEADS": of_program, "ROWS": program_rows, "BLOCK": _BLOCK}
    options |= {"PAGE": PAGE_TOKENS, **rules}
    places = layout.tile_rows, layout.queries, layout.ends
    pages = table, key_codes, key_scales, value_codes, value_scales
    operands = asked.values, asked.factors, *places, *pages
    no_sinks = asked.factors  # a pointer that the kernel does not use
    if tiles * head_blocks >= _PROGRAMS:
        _attend_whole[(head_blocks * parts, tiles)](
            y, no_sinks if sinks is None else sinks, *operands, table.shape[1], *sizes,
            SINKS=sinks is not None, num_warps=max(4, program_rows // 16), **options,
        )  # fmt: skip
        return y
    rows = layout.splits * parts * heads  # of a token
    most_tokens = ATTENTION_SCRATCH // (4 * rows * part)
    round_tiles = tiles if tokens <= most_tokens else max(1, most_tokens // of_tile)
    programs = min(layout.splits, _MOST_SPLITS)
    is_small = kind == "float16" and piece == shape.key_dim <= _MOST_KEYS and program_rows == 16
    few_registers = {"maxnreg": _MOST_REGISTERS} if is_small else {}
    for first in range(0, tiles, round_tiles):
        count = min(round_tiles, tiles - first)
        kept = min(tokens, count * of_tile) * rows
        mixed = torch.empty(kept, part, device=device)
        peaks, sums = torch.empty(2, kept, device=device)
        _attend_split[(count, head_blocks, programs * parts)](
            mixed, peaks, sums, *operands, first, layout.splits, programs, table.shape[1], *sizes,
            num_warps=4, **few_registers, **options,
        )  # fmt: skip
        _merge[(count, heads, parts)](
            y, mixed, peaks, sums, no_sinks if sinks is None else sinks, *places,
            first, layout.splits, heads, SINKS=sinks is not None, **rules,
        )  # fmt: skip
    return y
