"""Routing by Triton kernels: the experts of torch's operations, and tiles of each expert."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from triton_device import DEVICE, torch

from heddle.models.ops import ExpertSpec

from heddle.extensions.torch import routing  # isort: skip
from heddle.extensions.torch.constants import Constants  # isort: skip
from heddle.extensions.torch.kernels.routing import choose, tiles_of_experts  # isort: skip
from heddle.extensions.torch.tiles import TILE  # isort: skip

SPREAD = tuple(float(i % 5) for i in range(24))
SPECS = [
    ExpertSpec(24, 5, "softmax"),
    ExpertSpec(24, 5, "softmax", normalised=True, scale=1.5),
    ExpertSpec(24, 3, "softmax_of_chosen", expert_scales=SPREAD),
    ExpertSpec(24, 2, "sparsemixer"),
    ExpertSpec(24, 4, "sigmoid", normalised=True, groups=4, groups_used=2),
    ExpertSpec(24, 4, "sigmoid", groups=3, groups_used=1, group_best=1, selection_bias=SPREAD),
    ExpertSpec(24, 8, "softmax", groups=24, groups_used=8, group_best=1),
    ExpertSpec(1, 1, "sigmoid"),
]


def logits_of(spec: ExpertSpec, tokens: int = 12):
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(tokens, spec.count, generator=generator) * 2
    logits[7] = 1.0  # all equal: the lower index
    logits[8, ::2] = 1.0
    logits[10] = 2 + 0.01 * logits[10]  # near each other
    return logits.to(DEVICE)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_tokens_choose_the_experts_of_torch(spec: ExpertSpec) -> None:
    logits = logits_of(spec)
    chosen, weights = choose(logits, spec, Constants())
    expected, factors = routing.choose(logits, spec, Constants())
    assert torch.equal(chosen, expected)
    torch.testing.assert_close(weights, factors)
    for token in (0, 7, 11):
        alone = choose(logits[token : token + 1], spec, Constants())
        assert torch.equal(alone[0][0], chosen[token])
        assert torch.equal(alone[1][0], weights[token])


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_token_that_is_not_finite_has_experts(spec: ExpertSpec, value: float) -> None:
    """Kernels after this one read as many experts as there should be, and all of them exist."""
    logits = logits_of(spec)
    finite = choose(logits, spec, Constants())
    logits[3, :: max(1, spec.count // 3)] = value
    logits[4] = value
    found = choose(logits, spec, Constants())
    if value == -torch.inf:
        assert torch.equal(found[0][3], routing.choose(logits, spec, Constants())[0][3])
    steps = found[0].diff(dim=-1)
    assert (steps > 0).all()
    assert found[0].min() >= 0
    assert found[0].max() < spec.count
    others = [token for token in range(len(logits)) if token not in (3, 4)]
    for own, expected in zip(found, finite, strict=True):
        assert torch.equal(own[others], expected[others])


def test_a_value_that_is_not_a_number_stays_visible() -> None:
    spec = replace(SPECS[1], scoring="softmax_of_chosen")
    logits = logits_of(spec)
    logits[3, 20] = torch.nan
    chosen, weights = choose(logits, spec, Constants())
    assert 20 in chosen[3]
    assert weights[3].isnan().any()


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize(
    ("count", "used", "experts", "tokens"),
    [(1, 1, 1, 1), (16, 2, 5, 11), (16, 3, 12, 16), (400, 4, 5, 350), (16, 2, 7, 0)],
)
def test_the_tiles_of_an_expert_have_its_tokens(
    count: int, used: int, experts: int, tokens: int, first: int
) -> None:
    chooser = np.random.default_rng(count)
    every = first + experts + 2  # some belong to other ranks
    chosen = np.stack([np.sort(chooser.choice(every, used, False)) for _ in range(count)])
    found = tiles_of_experts(
        torch.from_numpy(chosen).to(DEVICE), first, experts, torch.tensor([tokens], device=DEVICE)
    )
    sources, places, matrices, firsts, slots = (one.cpu().numpy() for one in found)
    tile = 0
    for expert in range(experts):
        own = [t for t in range(tokens) if first + expert in chosen[t]]
        end = tile + -(-len(own) // TILE)
        slot = np.arange(tile * TILE, end * TILE)
        assert sources[slot].tolist() == own + [-1] * (len(slot) - len(own))
        assert places[slot].tolist() == slot[: len(own)].tolist() + [-1] * (len(slot) - len(own))
        assert (matrices[tile:end] == expert).all()
        assert (firsts[tile:end] == tile).all()
        for token, at in zip(own, slot, strict=False):
            assert slots[token][chosen[token] == first + expert] == [at]
        tile = end
    assert (sources[tile * TILE :] == -1).all()
    assert (places[tile * TILE :] == -1).all()
    assert (matrices[tile:] == -1).all()
    assert len(matrices) == count * used // TILE + min(experts, count * used)
    left_out = (chosen < first) | (chosen >= first + experts)
    left_out[tokens:] = True
    assert ((slots == -1) == left_out).all()
