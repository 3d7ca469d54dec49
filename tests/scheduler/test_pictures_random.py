"""Sequences with pictures agree with the naive model, whoever shares pages and steps with them.

Looks have no rows at first, and get them at random. The executor puts a token that no text has in
the place of each row, and trusts no page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import initialize, rule
from machine import Machine, wishes

from cache_integrity import check_cache
from fake_executor import solo_output
from fake_sight import SeeingExecutor, lay, look_at, rows_of, shown
from heddle.errors import InvalidRequestError
from heddle.scheduler.sequence import Sequence
from heddle.state import FIRST_KEY

if TYPE_CHECKING:
    from heddle.pictures import Laid, Look
    from heddle.step import StepPlan

SIZES = (1, 5, 33, 70)
"""Rows of the pictures."""

parts = st.lists(
    st.lists(st.integers(1, 26), min_size=1, max_size=40) | st.integers(0, len(SIZES) - 1),
    min_size=1,
    max_size=4,
)


class Pictures(Machine):
    laid: Laid | None = None

    @initialize(whole=st.booleans(), axes=st.sampled_from([0, 3]))
    def open_eyes(self, whole: bool, axes: int) -> None:
        self.whole, self.axes = whole, axes
        self.looks: dict[int, Look] = {}

    def make_executor(self, pages: int) -> SeeingExecutor:
        return SeeingExecutor(pages, defers=self.put_off)

    @rule(
        parts=parts,
        seen=st.booleans(),
        seed=st.integers(0, 3),
        most=st.none() | st.integers(1, 60),
        copies=st.integers(1, 3),
        wish=wishes,
    )
    def add_pictures(
        self, parts: list[Any], seen: bool, seed: int, most: int | None, copies: int, wish: str
    ) -> None:
        self.laid = lay(
            *(self.look(part, seen) if isinstance(part, int) else part for part in parts),
            whole=self.whole,
            axes=self.axes,
        )
        more = {"seed": seed, "max_tokens": most, "ignore_eos": True, "wish": wish}
        try:
            if self.laid.pictures.least_chunk > self.batch_tokens and copies <= self.room:
                with pytest.raises(InvalidRequestError, match="batch_tokens"):
                    self.add_copies(self.laid.tokens, copies, **more)
            else:
                self.add_copies(self.laid.tokens, copies, **more)
        finally:
            self.laid = None

    def look(self, number: int, seen: bool) -> Look:
        if number not in self.looks:
            self.looks[number] = look_at(number, SIZES[number], seen=seen)
        return self.looks[number]

    def make_sequence(self, identity: int, params: Any, prompt: list[int]) -> Sequence:
        one = super().make_sequence(identity, params, prompt)
        if self.laid is None:
            return one
        ends, pictures = one.stop_tokens, self.laid.pictures
        return Sequence(identity, params, [*prompt], len(prompt), ends, pictures=pictures)

    def add_copies(self, prompt: list[int], copies: int, **more: Any) -> None:
        first = len(self.expected)
        super().add_copies(prompt, copies, **more)
        for sequence in self.live:
            if sequence.id >= first and self.expected[sequence.id]:
                seen = self.prompt_of(sequence)
                self.expected[sequence.id] = solo_output(seen, sequence.params, self.capacity)

    def prompt_of(self, sequence: Sequence) -> list[int]:
        return shown(super().prompt_of(sequence), sequence.pictures)

    @rule()
    def see(self) -> None:
        """Give one look its rows."""
        unseen = (look for look in self.looks.values() if look.rows is None)
        if (look := next(unseen, None)) is not None:
            look.take(rows_of(look.key - FIRST_KEY, look.count))

    def schedule(self) -> StepPlan:
        self.executor.holders = self.scheduler.slots  # type: ignore[attr-defined]
        while not (plan := super().schedule()).chunks:
            assert any(look.rows is None for look in self.looks.values()), "nobody advances"
            self.see()
        return plan

    def check_plan(self, plan: StepPlan) -> None:
        check_cache(self.cache)
        assert sum(len(chunk.tokens) for chunk in plan.chunks) <= self.batch_tokens
        slots = {chunk.slot for chunk in plan.chunks}
        running = [one for one in self.live if one.slot >= 0]
        assert slots or all(one.waits for one in running)
        assert not any(one.waits for one in running if one.slot in slots)

    def cannot_shrink(self, plan: StepPlan) -> None:
        tokens = sum(len(chunk.tokens) for chunk in plan.chunks)
        assert any(one.least_chunk >= tokens for one in self.live)
        self.fail(plan)


TestPictures = Pictures.TestCase
TestPictures.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
