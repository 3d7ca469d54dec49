"""Recurrences token by token: convolutions, and attention summed up in matrices.

A program of linear attention walks over the tokens of a sequence, and keeps the matrix of one head
in registers. Its columns are independent, so each program has some of them. So the state at a
position never depends on how a prompt was cut. A kernel also writes the state before the uncertain
tokens of a chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from heddle.executors.torch.kernels.activations import sigmoid

if TYPE_CHECKING:
    from heddle.executors.torch.layout import Layout
    from heddle.executors.torch.states import FixedStates
    from heddle.executors.torch.weights import Filters
    from heddle.models.ops import LinearAttentionSpec, StatePlace

_CHANNELS = 256
_VALUES = 32
_RUN = tl.constexpr(5)


class Runs(NamedTuple):
    """The chunks of a step that has states.

    Attributes:
        of_tokens: the chunk (T,) of each token; -1: padding.
        facts: for each chunk (chunks, 5): its first row, its tokens, how many of them are certain
            (-1: all), the row of its state, and the row of the state after the certain tokens.
    """

    of_tokens: torch.Tensor
    facts: torch.Tensor


def runs_of(layout: Layout, states: FixedStates) -> Runs:
    """The chunks of a step."""
    second = layout.facts[:, -1:] + states.slots
    return Runs(layout.token_runs, torch.cat([layout.facts, second], 1))


@triton.jit
def past(x, state, first, index, channel, channels, BEFORE: tl.constexpr):
    """A row of x by its index from a chunk's first row on; before it, of the state."""
    of_x = tl.where(index >= 0, channels, 0)
    own = tl.load(x + (first + index) * channels + channel, mask=channel < of_x, other=0.0)
    of_state = tl.where(index >= 0, 0, channels)
    at = (index + BEFORE) * channels + channel
    return own + tl.load(state + at, mask=channel < of_state, other=0.0)


@triton.jit
def _convolve(
    y, x, filters, bias, states, of_tokens, facts, width, begin, channels,
    TAPS: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """One token."""
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    run = tl.load(of_tokens + token)
    if run >= 0:
        first = tl.load(facts + run * _RUN)
        state = states + tl.load(facts + run * _RUN + 3) * width + begin
        acc = tl.zeros((CHANNELS,), tl.float32)
        for tap in tl.static_range(TAPS):
            index = token - first + tap - (TAPS - 1)
            weight = tl.load(filters + channel * TAPS + tap, mask=inside, other=0.0)
            acc += weight * past(x, state, first, index, channel, channels, TAPS - 1)
        if BIAS:
            acc += tl.load(bias + channel, mask=inside, other=0.0)
        if SILU:
            acc = acc * sigmoid(acc)
        tl.store(y + token * channels + channel, acc, mask=inside)


@triton.jit
def _remember(
    x, states, facts, width, begin, channels, TAPS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """The states of one chunk, after its certain tokens and after all."""
    run = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    first, count = tl.load(facts + run * _RUN), tl.load(facts + run * _RUN + 1)
    certain = tl.load(facts + run * _RUN + 2)
    state = states + tl.load(facts + run * _RUN + 3) * width + begin
    if certain >= 0:
        kept = states + tl.load(facts + run * _RUN + 4) * width + begin
        for row in tl.static_range(TAPS - 1):
            index = certain + row - (TAPS - 1)
            own = past(x, state, first, index, channel, channels, TAPS - 1)
            tl.store(kept + row * channels + channel, own, mask=inside)
    for row in tl.static_range(TAPS - 1):  # reads only rows of the state that come later
        index = count + row - (TAPS - 1)
        own = past(x, state, first, index, channel, channels, TAPS - 1)
        tl.store(state + row * channels + channel, own, mask=inside)


def convolve(
    x: torch.Tensor,
    filters: Filters,
    states: FixedStates,
    place: StatePlace,
    runs: Runs,
    activation: str,
) -> torch.Tensor:
    """A causal convolution of all chunks; see `heddle.models.ops.Ops.causal_conv`."""
    x, (channels, taps) = x.contiguous(), filters.values.shape
    y, table = torch.zeros_like(x), states.table
    where = table.shape[1], states.first_element(place), channels
    blocks = triton.cdiv(channels, _CHANNELS)
    bias = filters.values if filters.bias is None else filters.bias
    _convolve[(len(x), blocks)](
        y, x, filters.values, bias, table, runs.of_tokens, runs.facts, *where,
        TAPS=taps, BIAS=filters.bias is not None, SILU=activation == "silu", CHANNELS=_CHANNELS,
    )  # fmt: skip
    _remember[(len(runs.facts), blocks)](
        x, table, runs.facts, *where, TAPS=taps, CHANNELS=_CHANNELS
    )
    return y


@triton.jit
def _linear_attend(
    y, q, k, v, decay, strength, skip, states, facts,
    width, begin, heads, key_heads, key_dim, value_dim,
    CORRECTS: tl.constexpr, TILED: tl.constexpr, BY_ROW: tl.constexpr, SKIP: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Some columns of one head's matrix, over the tokens of one chunk."""
    run, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, column = tl.arange(0, KEYS), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    is_row, is_column = row < key_dim, column < value_dim
    inside = is_row[:, None] & is_column[None, :]
    first, count = tl.load(facts + run * _RUN), tl.load(facts + run * _RUN + 1)
    certain = tl.load(facts + run * _RUN + 2)
    at = begin + (head * key_dim + row)[:, None] * value_dim + column[None, :]
    own = states + tl.load(facts + run * _RUN + 3) * width + at
    kept = states + tl.load(facts + run * _RUN + 4) * width + at
    key_head = head % key_heads if TILED else head // (heads // key_heads)
    matrix = tl.load(own, mask=inside, other=0.0)
    if certain == 0:
        tl.store(kept, matrix, mask=inside)
    for token in range(first, first + count):
        key_row = (token * key_heads + key_head) * key_dim + row
        key = tl.load(k + key_row, mask=is_row, other=0.0)
        query = tl.load(q + key_row, mask=is_row, other=0.0)
        of_head = token * heads + head
        value = tl.load(v + of_head * value_dim + column, mask=is_column, other=0.0)
        if BY_ROW:
            matrix *= tl.load(decay + of_head * key_dim + row, mask=is_row, other=0.0)[:, None]
        else:
            matrix *= tl.load(decay + of_head)
        change = value
        if CORRECTS:
            change = value - tl.sum(matrix * key[:, None], 0)
        matrix += key[:, None] * (tl.load(strength + of_head) * change)[None, :]
        found = tl.sum(matrix * query[:, None], 0)
        if SKIP:
            found += tl.load(skip + head) * value
        tl.store(y + of_head * value_dim + column, found, mask=is_column)
        if token + 1 == first + certain:
            tl.store(kept, matrix, mask=inside)
    tl.store(own, matrix, mask=inside)


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
    v = v.contiguous()
    y = torch.zeros_like(v)
    columns = min(_VALUES, triton.next_power_of_2(spec.value_dim))
    grid = (len(runs.facts), spec.heads, triton.cdiv(spec.value_dim, columns))
    inputs = (one.contiguous() for one in (q, k, v, decay, strength))
    _linear_attend[grid](
        y, *inputs, strength if skip is None else skip, states.table, runs.facts,
        states.table.shape[1], states.first_element(place),
        spec.heads, spec.key_heads, spec.key_dim, spec.value_dim,
        CORRECTS=spec.corrects, TILED=spec.tiled, BY_ROW=decay.shape[1] != spec.heads,
        SKIP=skip is not None, KEYS=triton.next_power_of_2(spec.key_dim), VALUES=columns,
    )  # fmt: skip
    return y
