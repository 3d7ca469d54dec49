"""Linear attention in blocks of positions; `heddle.executors.torch.linear_blocks` defines it.

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

from heddle.executors.torch.kernels.recurrence import RUN
from heddle.executors.torch.open_blocks import BLOCK, row_widths, rows_first

if TYPE_CHECKING:
    from heddle.executors.torch.kernels.recurrence import Runs
    from heddle.executors.torch.states import FixedStates
    from heddle.models.ops import LinearAttentionSpec, StatePlace

_VALUES = 32
_REGISTERS = 168
"""Most registers of a thread of `_walk`: with more, a processor of a GPU would hold two programs at
once, and not three. Decode waits for memory, so programs must be many."""
PART, GROUP = tl.constexpr(16), tl.constexpr(8)
_INFINITY = tl.constexpr(float("inf"))


@triton.jit
def key_head_of(head, heads, key_heads, TILED: tl.constexpr):
    """The head of queries and keys of a value head."""
    return head % key_heads if TILED else head // (heads // key_heads)


@triton.jit
def row_of(rows, opened, new, element, size):
    """The row of a token: of the step if its number in the chunk is not negative, else of the open
    block."""
    own = tl.load(rows + element, mask=element < tl.where(new >= 0, size, 0), other=0.0)
    return own + tl.load(opened + element, mask=element < tl.where(new >= 0, 0, size), other=0.0)


@triton.jit
def solved_row(aged, key, strength, solved, token, row):
    """Row `row` of T, from the rows before it and keys at this token."""
    seen = tl.where(token < row, tl.sum(aged * key[None, :], 1), 0.0)
    past = tl.where((token < row)[:, None], seen[:, None] * solved, 0.0)
    own = -strength * tl.sum(past, 0)
    return tl.where(token < row, own, tl.where(token == row, 1.0, 0.0))


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
    for row in range(0, end):
        new = number * BLOCK + row - place
        key_new = ((first + new) * key_heads + key_head) * key_dim
        key_old = state + keys_at + (row * key_heads + key_head) * key_dim
        key = row_of(k + key_new, key_old, new, element, key_dim)
        factor_new, factor_old = (first + new) * heads + head, row * heads + head
        if BY_ROW:
            old = state + factors_at + factor_old * key_dim
            factor = row_of(decay + factor_new * key_dim, old, new, element, key_dim)
            product *= factor
            tl.store(begun + (out * BLOCK + row) * key_dim + element, product, mask=is_key)
        else:
            one = tl.arange(0, 1)
            old = state + factors_at + factor_old
            factor = row_of(decay + factor_new, old, new, one, 1)
            product *= factor
            tl.store(begun + out * BLOCK + row + one, product)
        aged = tl.where((token == row)[:, None], key[None, :], aged * factor[None, :])
        if new >= 0:
            query = tl.load(q + key_new + element, mask=is_key, other=0.0)
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
    """Write the rows of a block's first `end` tokens to an open block.

    `rows` are pointers to the rows of the step's tokens. Tokens of the first block before `place`
    have theirs in the open block until now, `state`. `at` are places in both open blocks. Rows from
    `begin` to `until` are written; those from `end` on are zeros.
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
def product(rows, matrix, KEYS: tl.constexpr, VALUES: tl.constexpr, BLOCK: tl.constexpr):
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
    """What the matrix returns for the queries and the keys of rows `begin` to `end` of a block.

    Without correction, it returns zeros for keys.

    `first` is the row of the step's token that is row 0 of the block. Rows are multiplied in groups
    of `GROUP`, so that decode need not multiply a whole block of zeros.
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
        found = product(query, matrix, KEYS, VALUES, BLOCK)
        of_queries = tl.where(of_token == group, found, of_queries)
        if CORRECTS:
            key = g * tl.load(k + at, mask=inside, other=0.0)
            found = product(key, matrix, KEYS, VALUES, BLOCK)
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
def _walk(
    y, q, k, v, decay, strength, skip, begun, aged_rows, mixed_rows, solved_rows, states, facts,
    width, begin, keys_at, factors_at, solved_at, reduced_at, heads, key_heads, key_dim, value_dim,
    CORRECTS: tl.constexpr, TILED: tl.constexpr, BY_ROW: tl.constexpr, SKIP: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some columns of one head's matrix, over the blocks of one chunk."""
    run, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    element, column = tl.arange(0, KEYS), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    token, is_key, is_column = tl.arange(0, BLOCK), element < key_dim, column < value_dim
    inside, every = is_key[:, None] & is_column[None, :], (token >= 0)[:, None] & is_column[None, :]
    first, count = tl.load(facts + run * RUN), tl.load(facts + run * RUN + 1)
    certain, place = tl.load(facts + run * RUN + 2), tl.load(facts + run * RUN + 5)
    own = states + tl.load(facts + run * RUN + 3) * width
    kept = states + tl.load(facts + run * RUN + 4) * width
    block, key_head = tl.load(facts + run * RUN + 6), key_head_of(head, heads, key_heads, TILED)
    at = begin + (head * key_dim + element)[:, None] * value_dim + column[None, :]
    opened = reduced_at + (token * heads + head)[:, None] * value_dim + column[None, :]
    matrix = tl.load(own + at, mask=inside, other=0.0)
    full = (place + count) // BLOCK
    kept_block = tl.where(certain < 0, -1, (place + certain) // BLOCK)
    for number in range(0, tl.cdiv(place + count, BLOCK)):
        if number == kept_block:
            tl.store(kept + at, matrix, mask=inside)
        of_block = (block + number) * heads + head
        row = number * BLOCK + token - place
        is_new = ((row >= 0) & (row < count))[:, None]
        of_value = ((first + row) * heads + head)[:, None] * value_dim + column[None, :]
        since = begun + of_block * BLOCK * (key_dim if BY_ROW else 1)
        found, of_keys = returned(
            q + key_head * key_dim, k + key_head * key_dim, since, matrix,
            first + number * BLOCK - place,
            tl.maximum(0, place - number * BLOCK),
            tl.minimum(BLOCK, place + count - number * BLOCK),
            key_heads * key_dim, key_dim, CORRECTS, BY_ROW, KEYS, VALUES, BLOCK,
        )  # fmt: skip
        value = tl.load(v + of_value, mask=is_new & is_column[None, :], other=0.0)
        by = tl.load(strength + ((first + row) * heads + head)[:, None], mask=is_new, other=0.0)
        old = tl.load(own + opened, mask=(row < 0)[:, None] & is_column[None, :], other=0.0)
        reduced = tl.where(is_new, by * (value - of_keys), old)
        pair = (of_block * BLOCK + token)[:, None] * BLOCK + token[None, :]
        mixed = tl.load(mixed_rows + pair, mask=is_new & (token >= 0)[None, :], other=0.0)
        # A later row has the factor 0. Times a value that is not finite, it would be NaN.
        finite = tl.where(tl.abs(reduced) < _INFINITY, reduced, 0.0)
        found += tl.dot(mixed, finite, input_precision="ieee") + tl.cumsum(reduced - reduced, 0)
        if SKIP:
            found += tl.load(skip + head) * value
        tl.store(y + of_value, found, mask=is_new & is_column[None, :])
        if number == kept_block:
            rows = tl.where((token < (place + certain) % BLOCK)[:, None], reduced, 0.0)
            tl.store(kept + opened, rows, mask=every)
        if number < full:
            keys = aged_rows + of_block * BLOCK * key_dim
            matrix = after(matrix, reduced, since, keys, key_dim, BY_ROW, KEYS, BLOCK)
        else:
            tl.store(own + opened, reduced, mask=every & (is_new | (number > 0)))
    if full > 0:
        tl.store(own + at, matrix, mask=inside)
        if full * BLOCK == place + count:
            tl.store(own + opened, tl.zeros((BLOCK, VALUES), tl.float32), mask=every)
    if tl.program_id(2) == 0:
        if certain >= 0:
            remember_tokens(
                k, decay, solved_rows, own, kept, first, place, block, kept_block,
                0, (place + certain) % BLOCK, BLOCK, head,
                keys_at, factors_at, solved_at, heads, key_heads, key_dim,
                CORRECTS, TILED, BY_ROW, KEYS, BLOCK,
            )  # fmt: skip
        remember_tokens(
            k, decay, solved_rows, own, own, first, place, block, full,
            tl.where(full > 0, 0, place), (place + count) % BLOCK,
            tl.where(full > 0, BLOCK, place + count), head,
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
    begin, (keys_at, factors_at, solved_at, reduced_at) = places(states, place, spec, factors)
    table = states.table
    sizes = spec.heads, spec.key_heads, spec.key_dim
    kind = {
        "CORRECTS": spec.corrects, "TILED": spec.tiled, "BY_ROW": factors > 1,
        "KEYS": max(16, triton.next_power_of_2(spec.key_dim)), "BLOCK": BLOCK,
    }  # fmt: skip
    _compare[(blocks, spec.heads)](
        begun, aged, mixed, solved, q, k, decay, strength, table, runs.facts, runs.blocks,
        table.shape[1], keys_at, factors_at, solved_at, *sizes, **kind,
    )  # fmt: skip
    y, columns = torch.zeros_like(v), min(_VALUES, triton.next_power_of_2(spec.value_dim))
    _walk[(len(runs.facts), spec.heads, triton.cdiv(spec.value_dim, columns))](
        y, q, k, v, decay, strength, strength if skip is None else skip,
        begun, aged, mixed, solved, table, runs.facts,
        table.shape[1], begin, keys_at, factors_at, solved_at, reduced_at, *sizes, spec.value_dim,
        SKIP=skip is not None, VALUES=columns, **kind, num_warps=4, maxnreg=_REGISTERS,
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
