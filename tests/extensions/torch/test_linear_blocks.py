"""Linear attention in blocks: near its definition, and exact however the tokens are divided."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from heddle.models.ops import LinearAttentionSpec

torch = pytest.importorskip("torch")
from heddle.extensions.torch import linear_blocks  # noqa: E402
from heddle.extensions.torch.linear_blocks import Inputs, State, attend_run  # noqa: E402
from heddle.extensions.torch.open_blocks import BLOCK, state_count  # noqa: E402

TOKENS = 3 * BLOCK + 3
KINDS = {
    "delta rule": (LinearAttentionSpec(4, 2, 24, 20, corrects=True), False),
    "tiled heads": (LinearAttentionSpec(4, 2, 8, 8, corrects=True, tiled=True), False),
    "decay of rows": (LinearAttentionSpec(3, 3, 28, 28, corrects=True), True),
    "Mamba-2": (LinearAttentionSpec(4, 1, 16, 20, corrects=False), False),
}
of_each = pytest.mark.parametrize("kind", KINDS)


def tokens_of(kind: str, *, alike: bool = False) -> Inputs:
    """Random tokens; `alike`: all with the same key."""
    spec, by_row = KINDS[kind]
    generator = torch.Generator().manual_seed(1)

    def normal(rows: int, width: int) -> Any:
        return torch.randn(rows, width, generator=generator)

    def directions(rows: int) -> Any:
        by_head = normal(rows, spec.key_heads * spec.key_dim).view(rows, -1, spec.key_dim)
        return (by_head / by_head.norm(dim=-1, keepdim=True)).reshape(rows, -1)

    keys = directions(1).expand(TOKENS, -1) if alike else directions(TOKENS)
    factors = spec.heads * (spec.key_dim if by_row else 1)
    decay = torch.rand(TOKENS, factors, generator=generator) ** 0.1
    decay[7] = 0.0  # everything before is forgotten
    strength = torch.rand(TOKENS, spec.heads, generator=generator)
    return Inputs(
        directions(TOKENS), keys, normal(TOKENS, spec.heads * spec.value_dim), decay, strength
    )


def beginning(kind: str) -> State:
    spec, by_row = KINDS[kind]
    factors = spec.heads * (spec.key_dim if by_row else 1)
    return State.within(torch.zeros(state_count(spec, factors)), spec, factors)


def run(kind: str, inputs: Inputs, cuts: list[int]) -> tuple[Any, State]:
    """Results of chunks that end at the cuts, and the state after them."""
    spec, state = KINDS[kind][0], beginning(kind)
    found = [
        attend_run(inputs.part(slice(begin, end)), state, None, begin % BLOCK, 0, spec)
        for begin, end in pairwise([0, *cuts])
    ]
    return torch.cat(found), state


def same(one: State, other: State) -> bool:
    return all(map(torch.equal, (one.matrix, *one.rows), (other.matrix, *other.rows)))


def token_by_token(kind: str, inputs: Inputs) -> Any:
    """The definition, `Ops.linear_attend`, in the type of the inputs."""
    spec = KINDS[kind][0]
    heads = [spec.key_head(head) for head in range(spec.heads)]
    state = inputs.v.new_zeros(spec.heads, spec.key_dim, spec.value_dim)
    found = []
    for q, k, v, decay, strength in zip(*inputs, strict=True):
        query, key = (one.view(-1, spec.key_dim)[heads, :, None] for one in (q, k))
        state = state * decay.view(spec.heads, -1, 1)
        change = v.view(spec.heads, 1, -1)
        if spec.corrects:
            change = change - (state * key).sum(1, keepdim=True)
        state = state + key * (strength[:, None, None] * change)
        found.append((state * query).sum(1).flatten())
    return torch.stack(found)


@of_each
@pytest.mark.parametrize("alike", [False, True])
def test_rounding_is_that_of_the_definition(kind: str, alike: bool) -> None:
    """With keys that are all alike, a block has the largest sums that cancel."""
    inputs = tokens_of(kind, alike=alike)
    exact = token_by_token(kind, Inputs(*(one.double() for one in inputs)))
    error = (run(kind, inputs, [TOKENS])[0] - exact).abs().max()
    usual = (token_by_token(kind, inputs) - exact).abs().max()
    assert 0 < error < 5 * usual
    assert error < 2e-6


@of_each
def test_a_token_has_the_same_bits_in_any_chunks(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = tokens_of(kind)
    expected, last = run(kind, inputs, [TOKENS])
    generator = torch.Generator().manual_seed(3)
    monkeypatch.setattr(linear_blocks, "_KEYS", 1)  # one block at a time
    for most in (1, 7, 40):
        sizes = torch.randint(1, most + 1, (TOKENS,), generator=generator)
        cuts = [cut for cut in sizes.cumsum(0).tolist() if cut < TOKENS]
        found, state = run(kind, inputs, [*cuts, TOKENS])
        assert torch.equal(found, expected)
        assert same(state, last)


@of_each
def test_the_state_before_uncertain_tokens_is_that_of_the_certain_ones(kind: str) -> None:
    inputs, spec = tokens_of(kind), KINDS[kind][0]
    begin = BLOCK - 3
    expected, last = run(kind, inputs, [begin + 2 * BLOCK])
    for certain in (0, 1, 3, 4, BLOCK + 3, 2 * BLOCK - 1):
        _, state = run(kind, inputs, [begin])
        kept, part = beginning(kind), inputs.part(slice(begin, begin + 2 * BLOCK))
        found = attend_run(part, state, kept, begin % BLOCK, certain, spec)
        assert torch.equal(found, expected[begin:])
        assert same(state, last)
        assert same(kept, run(kind, inputs, [begin + certain])[1])


@of_each
@pytest.mark.parametrize("field", ["v", "k", "strength"])
def test_a_number_that_is_not_finite_has_no_effect_on_tokens_before(kind: str, field: str) -> None:
    """And the tokens after it get the same bits, too, in any chunks."""
    inputs, bad = tokens_of(kind), BLOCK + 5
    expected = run(kind, inputs, [TOKENS])[0]
    for value in (torch.nan, torch.inf):
        broken = Inputs(*(one.clone() for one in inputs))
        getattr(broken, field)[bad, 0] = value
        found = run(kind, broken, [TOKENS])[0]
        assert torch.equal(found[:bad], expected[:bad])
        assert not found[bad:, 0].isfinite().all()
        by_one = run(kind, broken, [*range(BLOCK, 2 * BLOCK + 3), TOKENS])[0]
        assert torch.equal(by_one.nan_to_num(9.0), found.nan_to_num(9.0))
