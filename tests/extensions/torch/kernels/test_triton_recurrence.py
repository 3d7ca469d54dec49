"""Recurrences by Triton kernels: those on tensors, and exact in any chunks and company."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from triton_device import DEVICE, run_without_interpreter, torch

from heddle.models.ops import LinearAttentionSpec, StatePlace
from heddle.step import Chunk, StepPlan

from heddle.extensions.torch.layout import Layout  # isort: skip
from heddle.extensions.torch.open_blocks import BLOCK, state_count  # isort: skip
from heddle.extensions.torch.ops import TorchOps  # isort: skip
from heddle.extensions.torch.triton_ops import TritonOps  # isort: skip
from heddle.extensions.torch.weights import Filters  # isort: skip

if TYPE_CHECKING:
    from pathlib import Path

SLOTS, BEFORE = 3, 16  # elements of the state that belong to something else
TOKENS, SOME = 2 * BLOCK + 1, BLOCK + 3


class States:
    """States of `SLOTS` slots: what `FixedStates` is to operations."""

    slots = SLOTS

    def __init__(self, count: int) -> None:
        self.table = torch.zeros(2 * SLOTS, BEFORE + count + 3, device=DEVICE)

    def rows(self, chunk: Chunk) -> tuple[int, int]:
        return chunk.slot, chunk.slot + SLOTS

    def first_element(self, place: StatePlace) -> int:
        return place.first

    def part(self, chunk: Chunk, place: StatePlace, *, certain: bool = False) -> Any:
        return self.table[self.rows(chunk)[certain], place.first : place.first + place.count]


def run(kind: type[TorchOps], compute: Any, states: States, *chunks: tuple[int, int, int, int]):
    """Results of chunks (slot, first token, tokens, uncertain ones), one after the other."""
    plan = [
        Chunk(slot, first, [1] * count, [0, 0], False, uncertain=uncertain)
        for slot, first, count, uncertain in chunks
    ]
    layout = Layout.of(StepPlan((), tuple(plan)), 1, DEVICE, has_states=False)
    ops = kind(layout, None, states, None, lambda: None)  # type: ignore[arg-type]
    rows = [row for _, first, count, _ in chunks for row in range(first, first + count)]
    rows += [0] * (len(layout.tokens) - len(rows))
    return compute(ops, torch.tensor(rows, device=DEVICE))[: layout.count]


def values(width: int, seed: int):
    return torch.randn(TOKENS, width, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def convolution(bias: bool) -> tuple[Any, int]:
    channels, taps = 37, 4
    x, weights = values(channels, 1), values(channels, 2)[:taps].T.contiguous()
    filters = Filters(weights, values(channels, 3)[0] if bias else None)
    place = StatePlace(0, BEFORE, channels * (taps - 1))
    activation = "silu" if bias else "identity"
    return lambda ops, rows: ops.causal_conv(x[rows], filters, place, activation), place.count


def attention(spec: LinearAttentionSpec, by_row: bool = False, skip: bool = False):
    wide = spec.key_heads * spec.key_dim
    q, k = values(wide, 1), values(wide, 2) / spec.key_dim**0.5
    v, strength = values(spec.heads * spec.value_dim, 3), values(spec.heads, 4).sigmoid()
    decay = values(spec.heads * (spec.key_dim if by_row else 1), 5).sigmoid()
    own = values(spec.heads, 6)[0] if skip else None
    place = StatePlace(0, BEFORE, spec.state_count)

    def compute(ops: TorchOps, rows: Any) -> Any:
        return ops.linear_attend(
            q[rows], k[rows], v[rows], decay[rows], strength[rows], place, spec, own
        )

    return compute, state_count(spec, decay.shape[1])


def scan(channels: int, elements: int) -> tuple[Any, int]:
    q, k, v = values(elements, 1), values(elements, 2), values(channels, 3)
    step, skip = values(channels, 4).sigmoid(), values(channels, 6)[0]
    rates = -values(channels * elements, 5)[0].exp()
    place = StatePlace(0, BEFORE, channels * elements)

    def compute(ops: TorchOps, rows: Any) -> Any:
        return ops.selective_scan(q[rows], k[rows], v[rows], step[rows], rates, skip, place)

    return compute, place.count


DELTA = LinearAttentionSpec(2, 1, 12, 35, corrects=True)
RECURRENCES = {
    "convolution": convolution(True),
    "bare convolution": convolution(False),
    "delta rule": attention(DELTA),
    "tiled heads": attention(LinearAttentionSpec(4, 2, 8, 8, corrects=True, tiled=True)),
    "decay of rows": attention(DELTA, by_row=True),
    "selective scan": scan(21, 6),
    "skip": attention(LinearAttentionSpec(2, 1, 8, 16, corrects=False), skip=True),
}
of_each = pytest.mark.parametrize("name", RECURRENCES)


@of_each
def test_a_recurrence_is_the_one_on_tensors(name: str) -> None:
    compute, count = RECURRENCES[name]
    found, expected = States(count), States(count)
    steps = (
        ((2, 0, 6, 0), (0, 0, 5, 2)),
        ((2, 6, 10, 10), (0, 5, 2, 0)),
        ((0, 7, 12, 4), (2, 16, 1, 1)),
        ((0, 19, 14, 9), (2, 17, 16, 0)),
        ((1, 0, TOKENS, 1),),  # the state to keep follows two full blocks
    )
    for chunks in steps:
        rows = run(TritonOps, compute, found, *chunks)
        torch.testing.assert_close(rows, run(TorchOps, compute, expected, *chunks))
        torch.testing.assert_close(found.table, expected.table)


@of_each
def test_a_recurrence_is_exact_in_any_chunks_and_company(name: str) -> None:
    """Results, the state, and the one before uncertain tokens."""
    compute, count = RECURRENCES[name]
    whole = States(count)
    rows = run(TritonOps, compute, whole, (0, 0, SOME, 2))
    cut = States(count)
    parts = [
        run(TritonOps, compute, cut, (0, 0, 1, 0)),
        run(TritonOps, compute, cut, (1, 0, 4, 0), (0, 1, 2, 0))[4:],
        run(TritonOps, compute, cut, (0, 3, SOME - 5, 0), (2, 1, 3, 1))[: SOME - 5],
        run(TritonOps, compute, cut, (0, SOME - 2, 2, 2)),
    ]
    assert torch.equal(torch.cat(parts), rows)
    for row in (0, SLOTS):
        assert torch.equal(cut.table[row], whole.table[row])
    assert not torch.equal(whole.table[0], whole.table[SLOTS])


@pytest.mark.parametrize("name", ["delta rule", "decay of rows", "skip"])
def test_token_by_token_over_the_end_of_a_block(name: str) -> None:
    """Results, states, and the states that are kept before uncertain tokens."""
    compute, count = RECURRENCES[name]
    alone, last = States(count), BLOCK + 1
    run(TritonOps, compute, alone, (0, 0, BLOCK - 3, 0))
    for end in range(BLOCK - 2, last + 1):
        row = run(TritonOps, compute, alone, (0, end - 1, 1, 0))
        again = States(count)
        rows = run(TritonOps, compute, again, (1, 0, end, 2), (2, 0, last, last - end))
        assert torch.equal(rows[end - 1], row[0])
        assert torch.equal(again.table[1], alone.table[0])
        if end < last:
            assert torch.equal(again.table[2 + SLOTS], alone.table[0])
        again.table[1] = again.table[1 + SLOTS]
        run(TritonOps, compute, again, (1, end - 2, 2, 0))
        assert torch.equal(again.table[1], alone.table[0])


def test_the_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    run_without_interpreter("compile_recurrences.py", tmp_path)
