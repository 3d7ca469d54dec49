"""Linear attention on torch tensors, in blocks of `BLOCK` positions.

With the matrix S of a head at the beginning of a block, and tokens i, j of the block::

    g_i  = decay_0 * ... * decay_i
    r_i  = strength_i * (v_i - S^T (g_i * k_i))            without correction: strength_i * v_i
    k_ij = decay_j+1 * ... * decay_i * k_j                 the key of token j at token i, j <= i
    T    = (1 + L)^-1,  L_ij = strength_i * (k_ij . k_i)   for j < i; without correction T = 1
    y_i  = S^T (g_i * q_i) + sum over j <= i of (M T)_ij * r_j,  M_ij = k_ij . q_i
    S'   = g_last * S + sum over j of k_last,j (T r)_j^T   at the end of the block

This is the rule of `Ops.linear_attend`, solved for a block (Yang et al. 2024, arXiv:2406.06484).
What belongs to token i follows from the tokens up to i, in an order that i alone determines.
Products of matrices have one shape for each model; rows of tokens that a step lacks are zeros. So a
token has the same bits whichever tokens are computed with it. Nothing is divided by a decay, and no
decay becomes a logarithm: a product of factors up to 1 has a small relative error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from heddle.extensions.torch.functions import total
from heddle.extensions.torch.open_blocks import BLOCK, Rows, row_widths, rows_first

if TYPE_CHECKING:
    from heddle.models.ops import LinearAttentionSpec

_KEYS = 1 << 20
"""Most elements of the keys of the blocks that are computed at once: 4 MB."""


class Inputs(NamedTuple):
    """Consecutive tokens (T, ...) of one sequence; see `Ops.linear_attend`."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor
    strength: torch.Tensor

    def part(self, rows: slice) -> Inputs:
        """Some of the tokens."""
        return Inputs(*(one[rows] for one in self))


class State(NamedTuple):
    """The state of a sequence: matrices (heads, key_dim, value_dim) and rows (BLOCK, ...).

    Rows after the last token of the open block are zeros.
    """

    matrix: torch.Tensor
    rows: Rows

    @classmethod
    def within(cls, part: torch.Tensor, spec: LinearAttentionSpec, factors: int) -> State:
        """The state in the elements of a slot's state, which share its memory."""
        widths = row_widths(spec, factors)
        rows = part[rows_first(spec) :].split([BLOCK * width for width in widths])
        return cls(
            part[: spec.state_count].view(spec.heads, spec.key_dim, spec.value_dim),
            Rows(*(row.view(BLOCK, width) for row, width in zip(rows, widths, strict=True))),
        )

    def copy_(self, other: State) -> None:
        """Become another state."""
        self.matrix.copy_(other.matrix)
        for own, row in zip(self.rows, other.rows, strict=True):
            own.copy_(row)


def attend_run(
    inputs: Inputs,
    state: State,
    kept: State | None,
    first: int,
    certain: int,
    spec: LinearAttentionSpec,
) -> torch.Tensor:
    """Linear attention of a chunk: y (T, heads * value_dim). `state` becomes the one after it.

    `first` is the place of the first token in its block. `kept` becomes the state after `certain`
    tokens, if it is given.
    """
    if kept is None:
        y, after = linear_attend(inputs, state, first, spec)
    else:
        y, before = linear_attend(inputs.part(slice(certain)), state, first, spec)
        kept.copy_(before)
        rest, after = linear_attend(
            inputs.part(slice(certain, None)), before, (first + certain) % BLOCK, spec
        )
        y = torch.cat([y, rest])
    state.copy_(after)
    return y


def linear_attend(
    inputs: Inputs, state: State, first: int, spec: LinearAttentionSpec
) -> tuple[torch.Tensor, State]:
    """Linear attention of consecutive tokens of one sequence: y (T, heads * value_dim).

    `first` is the place of the first token in its block. Returns the state after the tokens, too.
    """
    most = BLOCK * max(1, _KEYS // (BLOCK * spec.heads * spec.key_dim))
    found, begin = [inputs.v[:0]], 0
    while begin < len(inputs.v):
        end = min(begin + most - first, len(inputs.v))
        blocks = _Blocks(inputs.part(slice(begin, end)), state.rows, first, spec)
        y, state = blocks.walk(state.matrix, _compare(blocks))
        found.append(y)
        begin, first = end, 0
    return torch.cat(found), state


class _Blocks:
    """Tokens by block and head: (blocks, heads, BLOCK, ...). The first ones are of an open block.

    `reduced` and the rows of `solved` are those of the open block until they are computed.
    """

    def __init__(self, inputs: Inputs, opened: Rows, first: int, spec: LinearAttentionSpec) -> None:
        self.spec, self.first, self.end = spec, first, first + len(inputs.v)
        self.count = -(-self.end // BLOCK)
        every = torch.arange(spec.heads)
        key_heads = torch.tensor([spec.key_head(head) for head in every.tolist()])
        self._keys = self._rows(opened.keys, inputs.k)
        self._factors = self._rows(opened.factors, inputs.decay)
        self.keys = self._by_head(self._keys, spec.key_heads)[:, key_heads]
        self.queries = self._by_head(self._rows(None, inputs.q), spec.key_heads)[:, key_heads]
        self.factors = self._by_head(self._factors, spec.heads)
        self.values = self._by_head(self._rows(None, inputs.v), spec.heads)
        self.strengths = self._by_head(self._rows(None, inputs.strength), spec.heads)
        self.reduced = self._by_head(self._rows(opened.reduced, None), spec.heads)
        self.solved = self._by_head(self._rows(opened.solved, None), spec.heads)

    def _rows(self, opened: torch.Tensor | None, own: torch.Tensor | None) -> torch.Tensor:
        """Rows of the open block, rows of tokens, and zeros: (blocks * BLOCK, width)."""
        given = own if opened is None else opened
        assert given is not None
        filled = given.new_zeros(self.count * BLOCK, given.shape[1])
        if opened is not None:
            filled[: self.first] = opened[: self.first]
        if own is not None:
            filled[self.first : self.end] = own
        return filled

    def _by_head(self, rows: torch.Tensor, heads: int) -> torch.Tensor:
        return rows.view(self.count, BLOCK, heads, -1).transpose(1, 2).contiguous()

    def rows_of(self, block: int) -> slice:
        """The rows of a block that are to be computed."""
        return slice(0 if block else self.first, min(BLOCK, self.end - block * BLOCK))

    def blocks_of(self, row: int) -> slice:
        """The blocks of which this row is to be computed."""
        last = self.end - (self.count - 1) * BLOCK
        return slice(int(row < self.first), self.count - int(row >= last))

    def walk(self, matrix: torch.Tensor, pairs: _Pairs) -> tuple[torch.Tensor, State]:
        """The results of the tokens, and the state after them. `matrix` is the state before."""
        found = torch.empty_like(self.values)
        for block, begun in enumerate(pairs.begun):
            rows, reduced = self.rows_of(block), self.reduced[block]
            read = (self.queries[block] * begun) @ matrix
            change = self.values[block]
            if self.spec.corrects:
                change = change - (self.keys[block] * begun) @ matrix
            reduced[:, rows] = (self.strengths[block] * change)[:, rows]
            # A later row has the factor 0. Times a value that is not finite, it would be NaN.
            past = pairs.read[block] @ reduced.nan_to_num(0.0, 0.0, 0.0)
            found[block] = read + past + (reduced * 0.0).cumsum(1)
            if rows.stop == BLOCK:
                stored = self.solved[block] @ reduced if self.spec.corrects else reduced
                added = pairs.aged[block].transpose(1, 2) @ stored
                matrix = begun[:, -1, :, None] * matrix + added
        y = found.transpose(1, 2).reshape(self.count * BLOCK, -1)[self.first : self.end]
        return y, State(matrix, self._opened())

    def _opened(self) -> Rows:
        """The rows of the block that is open after the tokens; zeros if the last one is full."""
        last = slice((self.count - 1) * BLOCK, None)
        by_head = (
            one[-1].transpose(0, 1).reshape(BLOCK, -1) for one in (self.solved, self.reduced)
        )
        rows = Rows(self._keys[last], self._factors[last], *by_head)
        return rows if self.end % BLOCK else Rows(*map(torch.zeros_like, rows))


class _Pairs(NamedTuple):
    """Decays, keys and products of the tokens of a block. Only pairs j <= i have a meaning.

    Attributes:
        begun: g (blocks, heads, BLOCK, 1 or key_dim).
        aged: keys at the last token of their block (blocks, heads, BLOCK, key_dim).
        seen: k_ij . k_i (blocks, heads, BLOCK, BLOCK).
        read: k_ij . q_i, which become rows of M T.
    """

    begun: torch.Tensor
    aged: torch.Tensor
    seen: torch.Tensor
    read: torch.Tensor


def _compare(blocks: _Blocks) -> _Pairs:
    """Compare the tokens of each block, and complete `blocks.solved`."""
    pairs = _by_head(blocks) if blocks.factors.shape[-1] == 1 else _by_row(blocks)
    if blocks.spec.corrects:
        for row in range(min(BLOCK, blocks.end)):
            _solve(blocks, pairs, row)
    else:
        pairs.read.tril_()
    return pairs


def _by_head(blocks: _Blocks) -> _Pairs:
    """Compare tokens whose decay is one factor for a head."""
    factors, keys = blocks.factors, blocks.keys
    later = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=keys.device).tril(-1)
    since = torch.where(later, factors, 1.0).cumprod(2)  # of row i, from after row j on
    pairs = zip(keys, blocks.queries, strict=True)
    of_block = [torch.cat([key, query], 1) @ key.mT for key, query in pairs]
    seen, read = torch.stack(of_block).split(BLOCK, 2)
    return _Pairs(factors.cumprod(2), since[:, :, -1, :, None] * keys, since * seen, since * read)


def _by_row(blocks: _Blocks) -> _Pairs:
    """Compare tokens whose decay is a factor for each row of the matrix."""
    aged = torch.zeros_like(blocks.keys)
    seen, read = (aged.new_zeros(*aged.shape[:2], BLOCK, BLOCK) for _ in range(2))
    for row in range(min(BLOCK, blocks.end)):
        aged[:, :, :row] *= blocks.factors[:, :, row, None]
        aged[:, :, row] = blocks.keys[:, :, row]
        own = blocks.blocks_of(row)
        if own.start < own.stop:
            past = aged[own, :, : row + 1]
            seen[own, :, row, : row + 1] = total(past * blocks.keys[own, :, row, None])[..., 0]
            read[own, :, row, : row + 1] = total(past * blocks.queries[own, :, row, None])[..., 0]
    return _Pairs(blocks.factors.cumprod(2), aged, seen, read)


def _solve(blocks: _Blocks, pairs: _Pairs, row: int) -> None:
    """Make row `row` of T, and of M T in the place of M."""
    own = blocks.blocks_of(row)
    if own.start >= own.stop:
        return
    solved = blocks.solved[own, :, : row + 1, : row + 1]
    if row:
        past = pairs.seen[own, :, row, :row, None] * solved[:, :, :row, :row]
        solved[:, :, row, :row] = -blocks.strengths[own, :, row] * total(past, 2)[:, :, 0]
    solved[:, :, row, row] = 1.0
    read = pairs.read[own, :, row]
    read[:, :, : row + 1] = total(read[:, :, : row + 1, None] * solved, 2)[:, :, 0]
    read[:, :, row + 1 :] = 0.0
