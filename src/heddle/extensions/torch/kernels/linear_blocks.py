"""Linear attention in blocks of positions; `heddle.extensions.torch.linear_blocks` defines it.

One kernel compares the tokens of each block. It needs no matrix, so all blocks of a step are
computed side by side. In a second kernel, a program walks over the blocks of a sequence and keeps
some columns of a head's matrix in registers, because columns are independent. Both compute a row
of a block by the same instructions, whichever other rows the step has. A matrix goes back to memory
only when a block is full: a token of decode reads it, and writes rows.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from heddle.extensions.torch.kernels.recurrence import RUN
from heddle.extensions.torch.open_blocks import BLOCK, row_widths, rows_first
from heddle.extensions.torch.tiles import cdiv, power_of_two_from

if TYPE_CHECKING:
    from heddle.extensions.torch.kernels.recurrence import Runs
    from heddle.extensions.torch.states import FixedStates
    from heddle.models.ops import LinearAttentionSpec, StatePlace

_VALUES = 32
_REGISTERS = 168
"""Most registers of a thread of `_walk`: with more, a processor of a GPU would hold two programs at
once, and not three. Decode waits for memory, so programs must be many. For this, a thread stores
250 to 490 bytes in local memory (ptxas for sm_90; heads of 128 x 128)."""
PART, GROUP = tl.constexpr(16), tl.constexpr(8)
_ROWS_AHEAD = tl.constexpr(4)
"""Rows that `_compare` waits for at once. In decode it reads the rows of an open block one after
the other, and would wait for the memory as many times."""
_INFINITY = tl.constexpr(float("inf"))


@triton.jit
def key_head_of(head, heads, key_heads, TILED: tl.constexpr):
    """The head of queries and keys of a value head."""
    return head % key_heads if TILED else head // (heads // key_heads)


@triton.jit
def row_of(rows, opened, index, element, size):
    """The row of a token: of the step if its index in the chunk is not negative, else of the open
    block."""
    own = tl.load(rows + element, mask=element < tl.where(index >= 0, size, 0), other=0.0)
    return own + tl.load(opened + element, mask=element < tl.where(index >= 0, 0, size), other=0.0)


@triton.jit
def solved_row(aged, key, strength, solved, token, row):
    """Row `row` of T, from the rows before it and keys at this token."""
    seen = tl.where(token < row, tl.sum(aged * key[None, :], 1), 0.0)
    past = tl.where((token < row)[:, None], seen[:, None] * solved, 0.0)
    own = -strength * tl.sum(past, 0)
    return tl.where(token < row, own, tl.where(token == row, 1.0, 0.0))


@triton.jit
def age_product(
    product, begun, decay, states, factor_new, factor_old, index, key_dim,
    BY_ROW: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The decay of a row, and the product of the decays up to it, which goes to `begun`."""
    if BY_ROW:
        element = tl.arange(0, KEYS)
        old = states + factor_old * key_dim
        factor = row_of(decay + factor_new * key_dim, old, index, element, key_dim)
        product *= factor
        tl.store(begun + element, product, mask=element < key_dim)
    else:
        one = tl.arange(0, 1)
        factor = row_of(decay + factor_new, states + factor_old, index, one, 1)
        product *= factor
        tl.store(begun + one, product)
    return factor, product


@triton.jit
def _compare(
    begun, aged_rows, mixed_rows, solved_rows, q, k, decay, strength, states, facts, blocks,
    width, keys_at, factors_at, solved_at, heads, key_heads, key_dim,
    CORRECTS: tl.constexpr, TILED: tl.constexpr, BY_ROW: tl.constexpr,
    KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One head of one block: what does not need the matrix.

    Writes g (BLOCK, factors), T^T k (BLOCK, key_dim) if the block is full, rows of M T, and rows of
    T (BLOCK, BLOCK each).
    """
    block, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    run, number = tl.load(blocks + block * 2), tl.load(blocks + block * 2 + 1)
    first, count = tl.load(facts + run * RUN), tl.load(facts + run * RUN + 1)
    state = states + tl.load(facts + run * RUN + 3) * width
    place = tl.load(facts + run * RUN + 5)
    key_head = key_head_of(head, heads, key_heads, TILED)
    element, token = tl.arange(0, KEYS), tl.arange(0, BLOCK)
    is_key, out = element < key_dim, block * heads + head
    aged = tl.zeros((BLOCK, KEYS), tl.float32)
    solved = tl.zeros((BLOCK, BLOCK), tl.float32)
    if CORRECTS:
        is_old = (number * BLOCK + token < place)[:, None] & (token >= 0)[None, :]
        old_rows = solved_at + (token[:, None] * heads + head) * BLOCK + token[None, :]
        solved = tl.load(state + old_rows, mask=is_old, other=0.0)
    product = tl.full((KEYS if BY_ROW else 1,), 1.0, tl.float32)
    end = tl.minimum(BLOCK, place + count - number * BLOCK)
    for row in tl.range(0, end, num_stages=_ROWS_AHEAD):
        index = number * BLOCK + row - place  # in the chunk
        key_new = ((first + index) * key_heads + key_head) * key_dim
        key_old = state + keys_at + (row * key_heads + key_head) * key_dim
        key = row_of(k + key_new, key_old, index, element, key_dim)
        factor_new, factor_old = (first + index) * heads + head, row * heads + head
        factor, product = age_product(
            product, begun + (out * BLOCK + row) * (key_dim if BY_ROW else 1), decay,
            state + factors_at, factor_new, factor_old, index, key_dim, BY_ROW, KEYS,
        )  # fmt: skip
        aged = tl.where((token == row)[:, None], key[None, :], aged * factor[None, :])
        is_asked = element < tl.where(index >= 0, key_dim, 0)
        query = tl.load(q + key_new + element, mask=is_asked, other=0.0)
        if index >= 0:
            mixed = tl.where(token <= row, tl.sum(aged * query[None, :], 1), 0.0)
            if CORRECTS:
                own = solved_row(aged, key, tl.load(strength + factor_new), solved, token, row)
                solved = tl.where((token == row)[:, None], own[None, :], solved)
                past = tl.where((token <= row)[:, None], mixed[:, None] * solved, 0.0)
                mixed = tl.sum(past, 0)
                tl.store(solved_rows + (out * BLOCK + row) * BLOCK + token, own)
            tl.store(mixed_rows + (out * BLOCK + row) * BLOCK + token, mixed)
    if end == BLOCK:
        if CORRECTS:
            aged = tl.dot(tl.trans(solved), aged, input_precision="ieee")
        rows = (out * BLOCK + token[:, None]) * key_dim + element[None, :]
        tl.store(aged_rows + rows, aged, mask=is_key[None, :])


@triton.jit
def remember(
    rows, state, target, at, token, inside, place, number, begin, end, until, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the rows of a block's first `end` tokens to an open block, and zeros behind them.

    `rows` are pointers to the rows of the step's tokens. Tokens of the first block before `place`
    are not of the step: their rows are in the open block `state`. `at` are places in both open
    blocks. Only rows from `begin` to `until` are written.
    """
    is_new = (number * BLOCK + token >= place) & (token < end)
    is_old = (number * BLOCK + token < place) & (token < end)
    value = tl.load(rows, mask=inside & is_new[:, None], other=0.0)
    value += tl.load(state + at, mask=inside & is_old[:, None], other=0.0)
    tl.store(target + at, value, mask=inside & ((token >= begin) & (token < until))[:, None])


@triton.jit
def remember_tokens(
    k, decay, solved_rows, state, target, first, place, block, number, begin, end, until, head,
    keys_at, factors_at, solved_at, heads, key_heads, key_dim,
    CORRECTS: tl.constexpr, TILED: tl.constexpr, BY_ROW: tl.constexpr,
    KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write keys, decays and rows of T of a block to an open block; see `remember`."""
    token, element = tl.arange(0, BLOCK), tl.arange(0, KEYS)
    row, is_key = first + number * BLOCK + token - place, (element < key_dim)[None, :]
    key_head = key_head_of(head, heads, key_heads, TILED)
    is_first = head < key_heads if TILED else head % (heads // key_heads) == 0
    if is_first:  # of the heads with this key
        new = k + (row * key_heads + key_head)[:, None] * key_dim + element[None, :]
        at = keys_at + (token * key_heads + key_head)[:, None] * key_dim + element[None, :]
        remember(new, state, target, at, token, is_key, place, number, begin, end, until, BLOCK)
    if BY_ROW:
        new = decay + (row * heads + head)[:, None] * key_dim + element[None, :]
        at = factors_at + (token * heads + head)[:, None] * key_dim + element[None, :]
        remember(new, state, target, at, token, is_key, place, number, begin, end, until, BLOCK)
    else:
        one = tl.arange(0, 1)[None, :]
        new = decay + (row * heads + head)[:, None] + one
        at = factors_at + (token * heads + head)[:, None] + one
        remember(new, state, target, at, token, one == 0, place, number, begin, end, until, BLOCK)
    if CORRECTS:
        every = token[None, :]
        new = solved_rows + (((block + number) * heads + head) * BLOCK + token)[:, None] * BLOCK
        at = solved_at + (token * heads + head)[:, None] * BLOCK + every
        remember(
            new + every, state, target, at, token, every >= 0, place, number, begin, end, until,
            BLOCK,
        )  # fmt: skip


@triton.jit
def rows_times(rows, matrix, KEYS: tl.constexpr, VALUES: tl.constexpr, BLOCK: tl.constexpr):
    """rows (GROUP, KEYS) times a matrix (KEYS, VALUES), repeated to BLOCK rows.

    It is a sum of products over `PART` keys, because a longer one needs more registers than there
    are.
    """
    parts = tl.permute(tl.reshape(rows, (GROUP, KEYS // PART, PART)), (1, 0, 2))
    by_part = tl.reshape(matrix, (KEYS // PART, PART, VALUES))
    found = tl.sum(tl.dot(parts, by_part, input_precision="ieee"), 0)
    every = tl.broadcast_to(found[None], (BLOCK // GROUP, GROUP, VALUES))
    return tl.reshape(every, (BLOCK, VALUES))


@triton.jit
def returned(
    q, k, begun, matrix, first, begin, end, stride, size,
    CORRECTS: tl.constexpr, BY_ROW: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Products of the matrix with the queries and keys of rows `begin` to `end` of a block.

    Without correction, the result for keys is zeros. `first` is the row of the step's token that is
    row 0 of the block. Rows are multiplied in groups of `GROUP`, so that decode need not multiply a
    whole block of zeros.
    """
    token, element = tl.arange(0, GROUP), tl.arange(0, KEYS)
    of_queries = tl.zeros((BLOCK, VALUES), tl.float32)
    of_keys = tl.zeros((BLOCK, VALUES), tl.float32)
    of_token = (tl.arange(0, BLOCK) // GROUP)[:, None]
    for group in range(begin // GROUP, tl.cdiv(end, GROUP)):
        row = group * GROUP + token
        inside = ((row >= begin) & (row < end))[:, None] & (element < size)[None, :]
        at = (first + row)[:, None] * stride + element[None, :]
        if BY_ROW:
            g = tl.load(begun + row[:, None] * size + element[None, :], mask=inside, other=0.0)
        else:
            g = tl.load(begun + row, mask=(row >= begin) & (row < end), other=0.0)[:, None]
        query = g * tl.load(q + at, mask=inside, other=0.0)
        found = rows_times(query, matrix, KEYS, VALUES, BLOCK)
        of_queries = tl.where(of_token == group, found, of_queries)
        if CORRECTS:
            key = g * tl.load(k + at, mask=inside, other=0.0)
            found = rows_times(key, matrix, KEYS, VALUES, BLOCK)
            of_keys = tl.where(of_token == group, found, of_keys)
    return of_queries, of_keys


@triton.jit
def after(
    matrix, reduced, begun, aged, key_dim,
    BY_ROW: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The matrix after a full block. `begun` and `aged` are the block's results of `_compare`."""
    token, element = tl.arange(0, BLOCK), tl.arange(0, KEYS)
    is_key = element < key_dim
    if BY_ROW:
        last = begun + (BLOCK - 1) * key_dim + element
        factor = tl.load(last, mask=is_key, other=0.0)[:, None]
    else:
        factor = tl.load(begun + BLOCK - 1)
    at = token[None, :] * key_dim + element[:, None]
    keys = tl.load(aged + at, mask=is_key[:, None] & (token >= 0)[None, :], other=0.0)
    return factor * matrix + tl.dot(keys, reduced, input_precision="ieee")


@triton.jit
def past_values(mixed, reduced):
    """M T times r; NaN from the first row on in which r is not finite.

    A later row has the factor 0 in `mixed`. Times a value that is not finite, it would be NaN.
    """
    finite = tl.where(tl.abs(reduced) < _INFINITY, reduced, 0.0)
    return tl.dot(mixed, finite, input_precision="ieee") + tl.cumsum(reduced - reduced, 0)


@triton.jit
def attend_block(
    y, q, k, v, strength, skip, begun, mixed_rows, opened, matrix, column, is_column,
    first, begin, end, head, heads, key_head, key_heads, key_dim, value_dim,
    CORRECTS: tl.constexpr, BY_ROW: tl.constexpr, SKIP: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store y of the step's tokens in a block, rows `begin` to `end`. Returns r of the block.

    `first` is the row of the step's token that is row 0 of the block; rows before `begin` are in
    the open block. `begun` and `mixed_rows` are the block's results of `_compare`, and `opened`
    points to rows of r in the open block.
    """
    found, of_keys = returned(
        q + key_head * key_dim, k + key_head * key_dim, begun, matrix, first, begin, end,
        key_heads * key_dim, key_dim, CORRECTS, BY_ROW, KEYS, VALUES, BLOCK,
    )  # fmt: skip
    token = tl.arange(0, BLOCK)
    is_new, is_old = ((token >= begin) & (token < end))[:, None], (token < begin)[:, None]
    row = ((first + token) * heads + head)[:, None]
    value = tl.load(v + row * value_dim + column, mask=is_new & is_column, other=0.0)
    by = tl.load(strength + row, mask=is_new, other=0.0)
    old = tl.load(opened, mask=is_old & is_column, other=0.0)
    reduced = tl.where(is_new, by * (value - of_keys), old)
    pair = token[:, None] * BLOCK + token[None, :]
    mixed = tl.load(mixed_rows + pair, mask=is_new & (token >= 0)[None, :], other=0.0)
    found += past_values(mixed, reduced)
    if SKIP:
        found += tl.load(skip + head) * value
    tl.store(y + row * value_dim + column, found, mask=is_new & is_column)
    return reduced


@triton.jit
def store_changes(opened, reduced, is_column, begin, until, end, BLOCK: tl.constexpr):
    """Write rows `begin` to `until` of r to an open block; those from `end` on are zeros."""
    token = tl.arange(0, BLOCK)[:, None]
    rows = tl.where(token < end, reduced, 0.0)
    tl.store(opened, rows, mask=(token >= begin) & (token < until) & is_column)


@triton.jit
def remember_chunk(
    k, decay, solved_rows, own, kept, first, count, certain, place, block, head,
    keys_at, factors_at, solved_at, heads, key_heads, key_dim,
    CORRECTS: tl.constexpr, TILED: tl.constexpr, BY_ROW: tl.constexpr,
    KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the rows of tokens that a chunk leaves open, except r.

    If tokens are uncertain, `kept` gets the rows that are open after the certain ones.
    """
    if certain >= 0:
        remember_tokens(
            k, decay, solved_rows, own, kept, first, place, block, (place + certain) // BLOCK,
            0, (place + certain) % BLOCK, BLOCK, head,
            keys_at, factors_at, solved_at, heads, key_heads, key_dim,
            CORRECTS, TILED, BY_ROW, KEYS, BLOCK,
        )  # fmt: skip
        tl.debug_barrier()  # all threads have read rows of `own` before one writes them
    full = (place + count) // BLOCK
    remember_tokens(
        k, decay, solved_rows, own, own, first, place, block, full,
        tl.where(full > 0, 0, place), (place + count) % BLOCK,
        tl.where(full > 0, BLOCK, place + count), head,
        keys_at, factors_at, solved_at, heads, key_heads, key_dim,
        CORRECTS, TILED, BY_ROW, KEYS, BLOCK,
    )  # fmt: skip


@triton.jit
def _walk(
    y, q, k, v, decay, strength, skip, begun, aged_rows, mixed_rows, solved_rows, states, facts,
    width, matrix_at, keys_at, factors_at, solved_at, reduced_at,
    heads, key_heads, key_dim, value_dim,
    CORRECTS: tl.constexpr, TILED: tl.constexpr, BY_ROW: tl.constexpr, SKIP: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some columns of one head's matrix, over the blocks of one chunk.

    The matrix to keep is stored as soon as it is known, and not when its block begins. There, each
    thread would hold the matrix in one more layout of registers through the whole loop.
    """
    run, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    element, token = tl.arange(0, KEYS), tl.arange(0, BLOCK)
    column = (tl.program_id(2) * VALUES + tl.arange(0, VALUES))[None, :]
    is_column = column < value_dim
    inside = (element < key_dim)[:, None] & is_column
    first, count = tl.load(facts + run * RUN), tl.load(facts + run * RUN + 1)
    certain, place = tl.load(facts + run * RUN + 2), tl.load(facts + run * RUN + 5)
    own = states + tl.load(facts + run * RUN + 3) * width
    kept = states + tl.load(facts + run * RUN + 4) * width
    block, key_head = tl.load(facts + run * RUN + 6), key_head_of(head, heads, key_heads, TILED)
    at = matrix_at + (head * key_dim + element)[:, None] * value_dim + column
    opened = reduced_at + (token * heads + head)[:, None] * value_dim + column
    matrix = tl.load(own + at, mask=inside, other=0.0)
    full = (place + count) // BLOCK
    kept_block = tl.where(certain < 0, -1, (place + certain) // BLOCK)
    if kept_block == 0:
        tl.store(kept + at, matrix, mask=inside)
    for number in range(0, tl.cdiv(place + count, BLOCK)):
        of_block = (block + number) * heads + head
        since = begun + of_block * BLOCK * (key_dim if BY_ROW else 1)
        # The chunk's first token, counted from row 0 of the block.
        chunk_row = place - number * BLOCK
        begin, end = tl.maximum(0, chunk_row), tl.minimum(BLOCK, chunk_row + count)
        reduced = attend_block(
            y, q, k, v, strength, skip, since, mixed_rows + of_block * BLOCK * BLOCK,
            own + opened, matrix, column, is_column, first - chunk_row, begin, end,
            head, heads, key_head, key_heads, key_dim, value_dim,
            CORRECTS, BY_ROW, SKIP, KEYS, VALUES, BLOCK,
        )  # fmt: skip
        if number == kept_block:
            kept_end = (place + certain) % BLOCK
            store_changes(kept + opened, reduced, is_column, 0, BLOCK, kept_end, BLOCK)
        if number < full:
            keys = aged_rows + of_block * BLOCK * key_dim
            matrix = after(matrix, reduced, since, keys, key_dim, BY_ROW, KEYS, BLOCK)
            if number + 1 == kept_block:
                tl.store(kept + at, matrix, mask=inside)
        else:
            until = tl.where(number > 0, BLOCK, end)
            store_changes(own + opened, reduced, is_column, begin, until, end, BLOCK)
    if full > 0:
        tl.store(own + at, matrix, mask=inside)
        if full * BLOCK == place + count:
            none = tl.zeros((BLOCK, VALUES), tl.float32)
            store_changes(own + opened, none, is_column, 0, BLOCK, 0, BLOCK)
    if tl.program_id(2) == 0:
        remember_chunk(
            k, decay, solved_rows, own, kept, first, count, certain, place, block, head,
            keys_at, factors_at, solved_at, heads, key_heads, key_dim,
            CORRECTS, TILED, BY_ROW, KEYS, BLOCK,
        )  # fmt: skip


def linear_attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    strength: torch.Tensor,
    skip: torch.Tensor | None,
    states: FixedStates,
    place: StatePlace,
    spec: LinearAttentionSpec,
    runs: Runs,
) -> torch.Tensor:
    """Linear attention of all chunks; see `heddle.models.ops.Ops.linear_attend`."""
    q, k, v, decay, strength = (one.contiguous() for one in (q, k, v, decay, strength))
    blocks, factors = len(runs.blocks), decay.shape[1] // spec.heads
    begun, aged, mixed, solved = (
        q.new_empty(blocks * spec.heads * BLOCK * width)
        for width in (factors, spec.key_dim, BLOCK, BLOCK)
    )
    matrix_at, (keys_at, factors_at, solved_at, reduced_at) = places(states, place, spec, factors)
    table = states.table
    sizes = spec.heads, spec.key_heads, spec.key_dim
    kind = {
        "CORRECTS": spec.corrects, "TILED": spec.tiled, "BY_ROW": factors > 1,
        "KEYS": max(16, power_of_two_from(spec.key_dim)), "BLOCK": BLOCK,
    }  # fmt: skip
    _compare[(blocks, spec.heads)](
        begun, aged, mixed, solved, q, k, decay, strength, table, runs.facts, runs.blocks,
        table.shape[1], keys_at, factors_at, solved_at, *sizes, **kind,
    )  # fmt: skip
    y, columns = torch.zeros_like(v), min(_VALUES, power_of_two_from(spec.value_dim))
    _walk[(len(runs.facts), spec.heads, cdiv(spec.value_dim, columns))](
        y, q, k, v, decay, strength, strength if skip is None else skip,
        begun, aged, mixed, solved, table, runs.facts,
        table.shape[1], matrix_at, keys_at, factors_at, solved_at, reduced_at,
        *sizes, spec.value_dim,
        SKIP=skip is not None, VALUES=columns, **kind,
        num_warps=4, num_stages=1, maxnreg=_REGISTERS,
    )  # fmt: skip
    return y


def places(
    states: FixedStates, place: StatePlace, spec: LinearAttentionSpec, factors: int
) -> tuple[int, list[int]]:
    """Where the matrices begin in a state, and each field of the open block."""
    begin = states.first_element(place)
    widths = row_widths(spec, factors * spec.heads)
    ends = accumulate((BLOCK * width for width in widths), initial=begin + rows_first(spec))
    return begin, list(ends)[:-1]
