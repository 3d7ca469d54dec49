"""Convolutions of the tokens of each sequence, and where the chunks of a step have their states."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from heddle.extensions.torch.kernels.activations import sigmoid
from heddle.extensions.torch.open_blocks import BLOCK
from heddle.extensions.torch.tiles import cdiv

if TYPE_CHECKING:
    from heddle.extensions.torch.layout import Layout
    from heddle.extensions.torch.states import FixedStates
    from heddle.extensions.torch.weights import Filters
    from heddle.models.ops import StatePlace

_CHANNELS = 256
_NO_BLOCK = 1 << 32
RUN = tl.constexpr(7)
"""Facts of a run."""


class Runs(NamedTuple):
    """The chunks of a step that has states.

    Attributes:
        of_tokens: the chunk (T,) of each token; -1: padding.
        facts: for each chunk (chunks, 7): its first row, its tokens, how many of them are certain
            (-1: all), the row of its state, the row of the state after the certain tokens, the
            place of its first token in a block, and the number of its first block in the step.
        blocks: for each block of the step (blocks, 2): its chunk, and its number in the chunk. The
            number of padding is beyond the chunk's end.
    """

    of_tokens: torch.Tensor
    facts: torch.Tensor
    blocks: torch.Tensor


def runs_of(layout: Layout, states: FixedStates) -> Runs:
    """The chunks of a step."""
    first, count, certain, slot = layout.facts.unbind(1)
    place = torch.where(count > 0, layout.positions[first] % BLOCK, 0)
    blocks = (place + count + BLOCK - 1) // BLOCK
    ends = blocks.cumsum(0)
    begins = ends - blocks
    facts = torch.stack([first, count, certain, slot, slot + states.slots, place, begins], 1)
    most = min(len(layout.tokens), len(layout.tokens) // BLOCK + 2 * len(facts))
    every = torch.arange(most, device=layout.device)
    run = torch.searchsorted(ends, every, right=True).clamp(max=len(facts) - 1)
    number = torch.where(every < ends[run], every - begins[run], _NO_BLOCK)
    return Runs(layout.token_runs, facts, torch.stack([run, number], 1))


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
        first = tl.load(facts + run * RUN)
        state = states + tl.load(facts + run * RUN + 3) * width + begin
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
    first, count = tl.load(facts + run * RUN), tl.load(facts + run * RUN + 1)
    certain = tl.load(facts + run * RUN + 2)
    state = states + tl.load(facts + run * RUN + 3) * width + begin
    if certain >= 0:
        kept = states + tl.load(facts + run * RUN + 4) * width + begin
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
    blocks = cdiv(channels, _CHANNELS)
    bias = filters.values if filters.bias is None else filters.bias
    _convolve[(len(x), blocks)](
        y, x, filters.values, bias, table, runs.of_tokens, runs.facts, *where,
        TAPS=taps, BIAS=filters.bias is not None, SILU=activation == "silu", CHANNELS=_CHANNELS,
    )  # fmt: skip
    _remember[(len(runs.facts), blocks)](
        x, table, runs.facts, *where, TAPS=taps, CHANNELS=_CHANNELS
    )
    return y
