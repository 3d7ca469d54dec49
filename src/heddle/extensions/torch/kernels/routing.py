"""The experts that compute each token, and the order of tokens by expert.

A layer takes three launches for this. With operations of torch, it took about a hundred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from heddle.extensions.torch.kernels.activations import sigmoid
from heddle.extensions.torch.tiles import TILE, power_of_two_from

if TYPE_CHECKING:
    from heddle.extensions.torch.constants import Constants
    from heddle.models.ops import ExpertSpec

_BLOCK = 1024
"""Choices that a program looks at together."""


@triton.jit
def _highest(x):
    return tl.max(tl.max(x, 1), 0)


@triton.jit
def _total(x):
    return tl.sum(tl.sum(x, 1), 0)


@triton.jit
def _shares(x, among):
    """The softmax of the elements `among`; 0 for others."""
    is_number = tl.abs(x) >= 0.0
    powers = tl.exp(x - _highest(tl.where(among & is_number, x, float("-inf"))))
    powers = tl.where(among, powers, 0.0)
    return powers / _total(powers)


@triton.jit
def _best(values, index, allowed, COUNT: tl.constexpr):
    """Whether an element is one of the highest; equal values prefer the lower index."""
    is_best = index < 0
    for _ in tl.static_range(COUNT):
        left = allowed & (is_best == 0)
        equal = left & (values == _highest(tl.where(left, values, float("-inf"))))
        is_best = is_best | (index == tl.min(tl.min(tl.where(equal, index, 1 << 30), 1), 0))
    return is_best


@triton.jit
def _of_best_groups(values, index, inside, GROUPS_USED: tl.constexpr, GROUP_BEST: tl.constexpr):
    """The values, with -infinity for experts of groups that are not used. A group is a row."""
    best = tl.max(values, 1)
    if GROUP_BEST == 2:
        firsts = tl.min(tl.where(values == best[:, None], index, 1 << 30), 1)
        others = tl.where(index == firsts[:, None], float("-inf"), values)
        best = best + tl.max(others, 1)
    numbers = tl.arange(0, values.shape[0])[:, None]
    used = _best(best[:, None], numbers, tl.max(inside.to(tl.int32), 1)[:, None] > 0, GROUPS_USED)
    return tl.where(used, values, float("-inf"))


@triton.jit
def _shares_with_near(x, index, inside, USED: tl.constexpr):
    """The weight of each chosen expert: its share among itself and lower ones that are near it."""
    found, left = x * 0.0, inside
    values = tl.where(tl.abs(x) >= 0.0, x, float("inf"))
    for _ in tl.static_range(USED):
        highest = left & (values == _highest(tl.where(left, values, float("-inf"))))
        expert = tl.min(tl.min(tl.where(highest, index, 1 << 30), 1), 0)
        best = tl.sum(tl.sum(tl.where(index == expert, x, 0.0), 1), 0)
        is_far = (best - x) / tl.maximum(tl.abs(x), best) > 0.02
        powers = tl.where(left & (is_far == 0), tl.exp(x - best), 0.0)
        found = tl.where(index == expert, 1.0 / _total(powers), found)
        left = left & (index != expert)
    return found


@triton.jit
def _choose(
    chosen, weights, logits, biases, scales, count, of_group, scale,
    SCORING: tl.constexpr, NORMALISED: tl.constexpr, BIASES: tl.constexpr, SCALES: tl.constexpr,
    USED: tl.constexpr, GROUPS: tl.constexpr, GROUPS_USED: tl.constexpr, GROUP_BEST: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Choose the experts of one token. Each row of the tile holds a group of experts."""
    token = tl.program_id(0).to(tl.int64)
    group, place = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    inside = (group < GROUPS) & (place < of_group)
    index = tl.where(inside, group * of_group + place, 1 << 30)
    own = tl.load(logits + token * count + index, mask=inside, other=float("-inf"))
    scores = own
    if SCORING == "softmax":
        scores = _shares(own, inside)
    elif SCORING == "sigmoid":
        scores = sigmoid(own)
    values = scores
    if BIASES:
        values = values + tl.load(biases + index, mask=inside, other=0.0)
    # NaN is the highest, as in torch. A token always has as many experts as it should.
    values = tl.where(tl.abs(values) >= 0.0, values, float("inf"))
    values = tl.where(inside, values, float("-inf"))
    if GROUPS_USED < GROUPS:
        values = _of_best_groups(values, index, inside, GROUPS_USED, GROUP_BEST)
    is_chosen = _best(values, index, inside, USED)
    if SCORING == "softmax_of_chosen":
        found = _shares(own, is_chosen)
    elif SCORING == "sparsemixer":
        found = _shares_with_near(own, index, inside, USED)
    elif NORMALISED:
        floor = 1e-20 if SCORING == "sigmoid" else 0.0  # DeepSeek-V3
        found = scores / (_total(tl.where(is_chosen, scores, 0.0)) + floor)
    else:
        found = scores
    found = found * scale
    if SCALES:
        found = found * tl.load(scales + index, mask=inside, other=0.0)
    ones = is_chosen.to(tl.int32)
    in_row = tl.sum(ones, 1)
    at = (tl.cumsum(in_row, 0) - in_row)[:, None] + tl.cumsum(ones, 1) - ones
    tl.store(chosen + token * USED + at, index.to(tl.int64), mask=is_chosen)
    tl.store(weights + token * USED + at, found, mask=is_chosen)


def choose(
    logits: torch.Tensor, spec: ExpertSpec, constants: Constants
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token in ascending order, and their weights: (T, used) each.

    See `heddle.models.ops.ExpertSpec`. logits (T, count) float32.
    """
    device, count, of_group = logits.device, len(logits), spec.count // spec.groups
    chosen = torch.empty(count, spec.used, dtype=torch.int64, device=device)
    weights = torch.empty(count, spec.used, device=device)
    biases, scales = (
        constants.floats(values, device) if values else logits
        for values in (spec.selection_bias, spec.expert_scales)
    )
    _choose[(count,)](
        chosen,
        weights,
        logits.contiguous(),
        biases,
        scales,
        spec.count,
        of_group,
        spec.scale,
        SCORING=spec.scoring,
        NORMALISED=spec.normalised,
        BIASES=bool(spec.selection_bias),
        SCALES=bool(spec.expert_scales),
        USED=spec.used,
        GROUPS=spec.groups,
        GROUPS_USED=spec.groups_used,
        GROUP_BEST=spec.group_best,
        ROWS=power_of_two_from(spec.groups),
        COLUMNS=power_of_two_from(of_group),
        num_warps=1,
    )
    return chosen, weights


@triton.jit
def _own_choices(chosen, at, tokens, first, count, used):
    """The experts of the choices `at`, counted from `first`; below 0 where there is no token."""
    own = at < tl.minimum(count, tl.load(tokens) * used)
    return tl.load(chosen + at, mask=own, other=-1) - first


@triton.jit(do_not_specialize=["count"])
def _count(counts, chosen, tokens, first, count, used, BLOCK: tl.constexpr):
    """How many choices an expert has."""
    expert = tl.program_id(0)
    found = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, count, BLOCK):
        own = _own_choices(chosen, begin + tl.arange(0, BLOCK), tokens, first, count, used)
        found += (own == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(found, 0))


@triton.jit(do_not_specialize=["count", "most"])
def _place(
    sources, places, matrices, firsts, slots, counts, chosen, tokens, first, experts, count, most,
    used, TILE: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill the tiles of one expert. The last program fills the tiles that no expert needs, and the
    slots of choices that are left out."""
    expert = tl.program_id(0)
    number = tl.arange(0, EXPERTS)
    each = tl.load(counts + number, mask=number < experts, other=0)
    tiles = (each + TILE - 1) // TILE
    begin = tl.sum(tl.where(number < expert, tiles, 0), 0)
    filled = tl.sum(tl.where(number == expert, each, 0), 0)
    is_last = expert == experts
    end = tl.where(is_last, most, begin + (filled + TILE - 1) // TILE)
    matrix = tl.where(is_last, -1, expert)
    for tile in range(begin, end, BLOCK):
        at = tile + tl.arange(0, BLOCK)
        tl.store(matrices + at, (at * 0 + matrix).to(tl.int64), mask=at < end)
        tl.store(firsts + at, (at * 0 + begin).to(tl.int64), mask=at < end)
    for slot in range(begin * TILE + filled, end * TILE, BLOCK):
        at = slot + tl.arange(0, BLOCK)
        tl.store(sources + at, tl.full((BLOCK,), -1, tl.int64), mask=at < end * TILE)
        tl.store(places + at, tl.full((BLOCK,), -1, tl.int64), mask=at < end * TILE)
    slot = begin * TILE
    for choice in range(0, count, BLOCK):
        at = choice + tl.arange(0, BLOCK)
        own = _own_choices(chosen, at, tokens, first, count, used)
        left_out = ((own < 0) | (own >= experts)) & (at < tl.where(is_last, count, 0))
        has_slot = own == tl.where(is_last, 1 << 30, expert)
        ones = has_slot.to(tl.int32)
        taken = slot + tl.cumsum(ones, 0) - ones
        tl.store(sources + taken, (at // used).to(tl.int64), mask=has_slot)
        tl.store(places + taken, taken.to(tl.int64), mask=has_slot)
        tl.store(slots + at, tl.where(is_last, -1, taken).to(tl.int64), mask=has_slot | left_out)
        slot += tl.sum(ones, 0)


def tiles_of_experts(
    chosen: torch.Tensor, first: int, experts: int, tokens: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Sort the choices (T, used) of `experts` experts from `first` on; others are left out.

    Tokens from `tokens` (1,) on are padding. An expert's tiles lie side by side, in the order of
    the experts, and have its tokens in ascending order. There are as many tiles as the choices can
    need, so that nothing waits for the device.

    Returns:
        The token (slots,) of each slot, and the slot itself, -1 where a tile has none; the expert
        (tiles,) of each tile, -1 where it is not used, and the first tile of that expert; the slot
        (T, used) of each choice, -1 where it is left out. All are int64.
    """
    count, used = chosen.numel(), chosen.shape[1]
    most = count // TILE + min(experts, count)

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int64, device=chosen.device)

    sources, places = empty(most * TILE), empty(most * TILE)
    matrices, firsts, slots = empty(most), empty(most), empty(*chosen.shape)
    counts = torch.empty(experts, dtype=torch.int32, device=chosen.device)
    _count[(experts,)](counts, chosen, tokens, first, count, used, BLOCK=_BLOCK)
    _place[(experts + 1,)](
        sources,
        places,
        matrices,
        firsts,
        slots,
        counts,
        chosen,
        tokens,
        first,
        experts,
        count,
        most,
        used,
        TILE=TILE,
        EXPERTS=power_of_two_from(experts),
        BLOCK=_BLOCK,
    )
    return sources, places, matrices, firsts, slots
