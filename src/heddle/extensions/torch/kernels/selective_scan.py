"""The selective scan of Mamba; `heddle.models.ops.Ops.selective_scan` defines it.

A program keeps the state of some channels in registers, and goes from token to token of a chunk:
channels are independent, and there are thousands of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from heddle.extensions.torch.kernels.recurrence import RUN
from heddle.extensions.torch.tiles import cdiv, power_of_two_from

if TYPE_CHECKING:
    from heddle.extensions.torch.kernels.recurrence import Runs
    from heddle.extensions.torch.states import FixedStates
    from heddle.models.ops import StatePlace

_ELEMENTS = 1024
"""Elements of the state that a program keeps: 8 for each thread of 4 warps."""


@triton.jit
def _scan(
    y, q, k, v, step, rates, skip, states, facts, width, begin, channels, elements,
    ELEMENTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Some channels of one chunk."""
    run = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    element = tl.arange(0, ELEMENTS)
    inside, is_element = channel < channels, element < elements
    whole = is_element[:, None] & inside[None, :]
    first, count = tl.load(facts + run * RUN), tl.load(facts + run * RUN + 1)
    certain = tl.load(facts + run * RUN + 2)
    at = begin + element[:, None] * channels + channel[None, :]
    own = states + tl.load(facts + run * RUN + 3) * width + at
    kept = states + tl.load(facts + run * RUN + 4) * width + at
    rate = tl.load(
        rates + channel[None, :] * elements + element[:, None], mask=whole, other=0.0
    )  # fmt: skip
    factor = tl.load(skip + channel, mask=inside, other=0.0)
    state = tl.load(own, mask=whole, other=0.0)
    if certain == 0:
        tl.store(kept, state, mask=whole)
    for index in tl.range(0, count):
        token = first + index
        key = tl.load(k + token * elements + element, mask=is_element, other=0.0)
        query = tl.load(q + token * elements + element, mask=is_element, other=0.0)
        value = tl.load(v + token * channels + channel, mask=inside, other=0.0)
        size = tl.load(step + token * channels + channel, mask=inside, other=0.0)
        state = tl.exp(size[None, :] * rate) * state + key[:, None] * (size * value)[None, :]
        found = tl.sum(query[:, None] * state, 0) + factor * value
        tl.store(y + token * channels + channel, found, mask=inside)
        if index + 1 == certain:
            tl.store(kept, state, mask=whole)
    tl.store(own, state, mask=whole)


def scan(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    step: torch.Tensor,
    rates: torch.Tensor,
    skip: torch.Tensor,
    states: FixedStates,
    place: StatePlace,
    runs: Runs,
) -> torch.Tensor:
    """The scan of all chunks."""
    q, k, v, step = (one.contiguous() for one in (q, k, v, step))
    y, table, channels, elements = torch.zeros_like(v), states.table, v.shape[1], k.shape[1]
    rows = power_of_two_from(elements)
    columns = max(1, _ELEMENTS // rows)
    _scan[(len(runs.facts), cdiv(channels, columns))](
        y, q, k, v, step, rates, skip, table, runs.facts,
        table.shape[1], states.first_element(place), channels, elements,
        ELEMENTS=rows, CHANNELS=columns, num_warps=4,
    )  # fmt: skip
    return y
