"""Plans as integers: what rank 0 sends is what the other ranks read."""

from __future__ import annotations

from array import array
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.extensions.torch.ranks.plans import decode_plan, encode_plan
from heddle.step import Chunk, PageCopy, Pool, Scoring, StateCopy, StepPlan, WindowPages

numbers = st.integers(0, 1 << 33)
runs = st.lists(numbers, max_size=5).map(tuple)
chunks = st.builds(
    Chunk,
    slot=numbers,
    start=numbers,
    tokens=runs,
    pages=runs,
    sample=st.booleans(),
    score=st.none() | st.builds(Scoring, numbers, runs, numbers),
    pool=st.none() | st.builds(Pool, numbers, st.booleans()),
    windows=st.lists(st.builds(WindowPages, numbers, runs.map(list)), max_size=2),
    guesses=numbers,
    uncertain=numbers,
    keep_states=numbers,
)
state_copies = st.lists(st.builds(StateCopy, numbers, numbers), max_size=3).map(tuple)
plans = st.builds(
    StepPlan,
    bindings=st.just(()),
    chunks=st.lists(chunks, max_size=3).map(tuple),
    copies=st.lists(st.builds(PageCopy, numbers, numbers, st.none() | numbers), max_size=3).map(
        tuple
    ),
    clears=runs,
    restores=state_copies,
    snapshots=state_copies,
)


@given(plans, runs)
def test_a_plan_arrives_as_it_was_sent(plan: StepPlan, rewound: tuple[int, ...]) -> None:
    found, slots = decode_plan(encode_plan(plan, rewound))
    assert slots == rewound
    assert astuple(found) == astuple(plan)


@given(plans, st.data())
def test_a_plan_that_was_cut_or_has_more_is_refused(plan: StepPlan, data: st.DataObject) -> None:
    content = encode_plan(plan, ())
    size = array("q").itemsize
    end = data.draw(st.integers(0, len(content) // size - 1))
    for wrong in (content[: end * size], content + bytes(size)):
        with pytest.raises(ValueError, match="a plan"):
            decode_plan(wrong)
