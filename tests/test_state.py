"""Kinds of state: how layers are grouped and how a budget is divided among the groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.state import (
    NO_SHAPE,
    PAGE_TOKENS,
    SNAPSHOT_TOKENS,
    Fixed,
    KvShape,
    Load,
    Pages,
    Shared,
    StateKind,
    StateMemory,
    Window,
    WindowMemory,
    divide,
    without_last_layer,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

LOAD = Load(slots=4, context=8192, batch_tokens=64)
ONE, TWO = KvShape(1, 16), KvShape(2, 16)
GEMMA: list[StateKind] = [*[Window(512, ONE)] * 5, Pages(ONE)]


def bytes_of_page(layers: int, shape: KvShape) -> int:
    return 1000 * layers * shape.heads


def divided(kinds: Sequence[StateKind], load: Load, budget: int) -> StateMemory:
    """The memory of a model whose layers keep one kind each."""
    return divide([[kind] for kind in kinds], load, budget, bytes_of_page)


def test_layers_of_one_kind_form_a_group() -> None:
    memory = divided([*GEMMA, Window(128, ONE), *GEMMA], LOAD, 10**9)
    assert memory.layers == (5, 12)
    assert [(w.positions, w.layers) for w in memory.windows] == [
        (512, (0, 1, 2, 3, 4, 7, 8, 9, 10, 11)),
        (128, (6,)),
    ]
    assert memory.token_page_bytes == 13_000


def test_with_one_kind_the_budget_is_divided_as_if_there_were_no_groups() -> None:
    kinds: list[StateKind] = [Pages(ONE)] * 3
    assert divided(kinds, LOAD, 50_000) == StateMemory(16, 3000, layers=(0, 1, 2), shape=ONE)
    assert divided(kinds, LOAD, 10**9).pages == 4 * 8192 // PAGE_TOKENS
    assert divided(kinds, LOAD, 2999).pages == 0


@pytest.mark.parametrize("load", [Load(4, 512, 64), Load(4, 8192, 8192)])
def test_a_window_that_spares_no_page_counts_as_all_positions(load: Load) -> None:
    memory = divided(GEMMA, load, 10**9)
    assert (memory.windows, memory.layers) == ((), tuple(range(6)))


def test_windows_get_twice_what_full_slots_need_and_the_rest_goes_to_all_positions() -> None:
    memory = divided(GEMMA, LOAD, 10**9)
    (window,) = memory.windows
    assert window.reach == (512 + 64) // PAGE_TOKENS + 1 == 19
    assert window.pages == 2 * 4 * 19
    assert memory.pages == 4 * 8192 // PAGE_TOKENS


def test_in_little_room_all_groups_have_as_many_pages() -> None:
    memory = divided(GEMMA, LOAD, 60_000)
    assert (memory.pages, memory.windows[0].pages) == (10, 10)


def test_states_of_slots_come_first_and_snapshots_for_every_run_of_tokens() -> None:
    kinds: list[list[StateKind]] = [[Fixed(320)], [Pages(ONE)], [], [Fixed(128), Pages(ONE)]]
    memory = divide(kinds, LOAD, 8 * 448 + 80_000, bytes_of_page)
    assert (memory.snapshot_bytes, memory.states) == (448, 8)
    assert (memory.layers, memory.fixed) == ((1, 3), ((0, 320), (3, 128)))
    assert memory.snapshots == -(-memory.pages * PAGE_TOKENS // SNAPSHOT_TOKENS)
    assert 78_000 < memory.bytes <= 8 * 448 + 80_000


def test_large_snapshots_take_no_more_than_the_pages() -> None:
    kinds: list[list[StateKind]] = [[Fixed(100_000)], [Pages(ONE)]]
    memory = divide(kinds, LOAD, 8 * 100_000 + 2_000_000, bytes_of_page)
    assert memory.pages == 1_000
    assert memory.snapshots == 10
    rare = divide(kinds, replace(LOAD, state_every=8192), 8 * 100_000 + 2_000_000, bytes_of_page)
    assert (rare.snapshots, rare.snapshot_tokens) == (4, 8192)
    assert rare.pages > 1_000


def test_a_recurrent_model_has_pages_without_bytes() -> None:
    memory = divided([Fixed(800)] * 2, LOAD, 10**6)
    assert (memory.page_bytes, memory.layers) == (0, ())
    assert memory.pages > 0
    assert memory.snapshots > 0


KINDS: list[StateKind] = [
    *(Pages(ONE), Pages(TWO), Shared(0)),
    *(Window(3, ONE), Window(100, ONE), Window(100, TWO)),
    Fixed(70),
]


def test_layers_of_another_shape_have_pages_of_their_own() -> None:
    kinds: list[StateKind] = [Window(512, TWO), Pages(ONE), Shared(0), Shared(1), Pages(TWO)]
    memory = divided(kinds, LOAD, 10**9)
    assert (memory.layers, memory.shape, memory.page_bytes) == ((1,), ONE, 1000)
    found = [(w.positions, w.layers, w.shape, w.page_bytes) for w in memory.windows]
    assert found == [(512, (0,), TWO, 2000), (LOAD.context, (4,), TWO, 2000)]


def test_a_window_of_another_shape_stays_apart_although_it_spares_no_page() -> None:
    load = Load(slots=4, context=512, batch_tokens=64)
    memory = divided([Window(512, TWO), Pages(ONE)], load, 10**9)
    (window,) = memory.windows
    assert (memory.layers, window.layers) == ((1,), (0,))
    assert (window.pages, window.reach) == (memory.pages, 512 // PAGE_TOKENS)


def test_without_layers_the_pages_have_a_shape_and_no_bytes() -> None:
    memory = divided([Fixed(800)], LOAD, 10**6)
    assert (memory.shape, memory.page_bytes) == (NO_SHAPE, 0)


@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=9),
    st.builds(Load, st.integers(1, 9), st.integers(1, 5000), st.integers(1, 600)),
    st.integers(0, 10**7),
)
def test_the_budget_holds_and_one_sequence_fits(
    kinds: list[StateKind], load: Load, budget: int
) -> None:
    memory = divided(kinds, load, budget)
    if memory.pages < 1:
        return
    assert memory.bytes <= budget + memory.snapshot_bytes
    assert memory.pages <= load.slots * load.sequence_pages
    for window in memory.windows:
        assert window.pages >= min(memory.pages, window.reach), "a sequence alone must fit"


@given(st.integers(1, 300), st.integers(0, 2000), st.integers(1, 300))
def test_a_chunk_sees_no_more_pages_than_the_reach(window: int, start: int, count: int) -> None:
    load = Load(1, 4096, count)
    first = WindowMemory(window, 1).first_page(start)
    assert (start + count - 1) // PAGE_TOKENS - first + 1 <= load.reach(Window(window, ONE))
    assert first * PAGE_TOKENS <= max(0, start - window + 1) < (first + 1) * PAGE_TOKENS


def test_a_prediction_head_takes_its_share_of_the_budget() -> None:
    memory = divided([*GEMMA, *GEMMA, Pages(ONE)], LOAD, 10**6)
    model, head = without_last_layer(memory, bytes_of_page)
    assert memory.layers == (5, 11, 12)
    assert (model.layers, model.page_bytes, model.windows) == ((5, 11), 2000, memory.windows)
    assert (head.layers, head.page_bytes, head.windows) == ((0,), 1000, ())
    assert model.pages == head.pages == memory.pages > 0
    assert model.bytes + head.bytes == memory.bytes <= 10**6
