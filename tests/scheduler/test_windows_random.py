"""Random conversations over a prefix cache whose model has windowed layers beside others.

This adds groups of windowed pages to the state machine of `test_prefix_random.py`. The executor
detects a sequence that reads a windowed page of another sequence, or holds a page behind its
window. A request must begin at the longest position whose windows are still in the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import initialize
from test_prefix_random import PrefixMachine

from fake_executor import FakeExecutor
from heddle.state import NO_SHAPE, PAGE_TOKENS, Load, TokenArray, Window, WindowMemory, pages_for

if TYPE_CHECKING:
    from heddle.scheduler.sequence import Sequence
    from heddle.step import StepPlan

windows = st.integers(1, 8) | st.integers(30, 100)


class WindowMachine(PrefixMachine):
    @initialize(
        slots=st.integers(1, 4),
        batch_tokens=st.integers(1, 6) | st.integers(7, 100),
        pages=st.integers(2, 8) | st.integers(30, 60),
        most_nodes=st.just(0) | st.integers(1, 6),
        run_tokens=st.sampled_from([PAGE_TOKENS, 2 * PAGE_TOKENS, 4 * PAGE_TOKENS]),
        positions=st.lists(windows, min_size=1, max_size=2),
        more=st.integers(0, 2) | st.integers(0, 20),
    )
    def start(
        self,
        slots: int,
        batch_tokens: int,
        pages: int,
        most_nodes: int,
        run_tokens: int,
        positions: list[int],
        more: int,
    ) -> None:
        load = Load(slots, 400, batch_tokens)
        self.groups = []
        for window in (Window(one, NO_SHAPE) for one in positions):
            reach = load.reach(window)
            count = min(pages, reach + more)
            self.groups.append(WindowMemory(window.positions, count, reach=reach))
        super().start(slots, batch_tokens, pages, most_nodes, run_tokens)
        self.seen |= {"shortened": 0, "revoked": 0}
        self.alone: set[int] = set()  # with few pages a follower continues alone

    def make_executor(self, pages: int) -> FakeExecutor:
        return FakeExecutor(pages, windows=tuple(self.groups))

    def revocations(self) -> int:
        """Number of pages revoked from the tree, in all windowed groups."""
        pools = [group.pool for group in self.cache._pools.windows]
        return sum(ticket // pool.size for pool in pools for ticket in pool._tickets)

    # --- what must hold --------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        before = self.revocations()
        self.before = {s.id: (s.computed, s.leader) for s in self.live}
        self.revoked = lambda: self.revocations() > before
        plan = super().schedule()
        self.seen["revoked"] += self.revoked()
        return plan

    def check_plan(self, plan: StepPlan) -> None:
        for s in self.live:
            computed, leader = self.before[s.id]
            if leader is not None and (s.leader, s.computed) == (None, computed):
                self.alone.add(s.id)
        super().check_plan(plan)

    def shares(self, s: Sequence) -> bool:
        return super().shares(s) and s.id not in self.alone

    def check_beginning(self, s: Sequence, known: list[tuple[str | None, list[int]]]) -> None:
        if self.revoked() or s.id in self.alone:
            return
        known_length = self.length_in_tree(s)
        resumable = [p for p in range(known_length + 1) if self.is_resumable(s, p)]
        longest = max(resumable)
        whole = max(p for p in resumable if not p % PAGE_TOKENS)
        self.seen["shortened"] += longest < known_length
        if s.leader is not None:
            assert s.computed == whole, f"{s.computed} of {resumable}"
            self.seen["followed"] += 1
        elif s.computed != longest:
            assert s.computed == whole
            reach = max((group.reach for group in self.groups), default=0)  # costs are upper bounds
            assert min(self.scheduler.prefixes.unclaimed().pages) <= 2 * reach, "there was room"
        self.seen["found"] += s.computed > 0
        self.seen["in part"] += s.computed % PAGE_TOKENS > 0

    def length_in_tree(self, s: Sequence) -> int:
        run = TokenArray("i", s.tokens[: s.first_needed])
        return self.cache.prefixes.tree.match(s.params.cache_salt, run).length

    def is_resumable(self, s: Sequence, length: int) -> bool:
        """Whether all pages that a token at this position attends to hold its own tokens."""
        run = TokenArray("i", s.tokens[:length])
        path = self.cache.prefixes.tree.match(s.params.cache_salt, run).path
        for number, (memory, content) in enumerate(
            zip(self.groups, self.executor.window_content, strict=True)
        ):
            named = {}
            for node in path[1:]:
                for index, ticket in enumerate(node.windows[number], node.start // PAGE_TOKENS):
                    named[index] = self.cache._pools.windows[number].pool.page(ticket)
            first = memory.first_page(length)
            pages = [named[index] for index in range(first, pages_for(length))]
            if None in pages:
                return False
            stored = [token for page in pages for token in content[page]]
            begin = first * PAGE_TOKENS
            assert stored[: length - begin] == s.tokens[begin:length], "a ticket for another page"
        return True

    def check_nothing_is_computed_twice(self, plan: StepPlan) -> None:
        if not self.revocations():
            super().check_nothing_is_computed_twice(plan)

    def paths(self) -> list[tuple[str | None, list[int]]]:
        return []

    def end(self) -> None:
        super().end()
        for group in self.cache._pools.windows:
            assert group.pool.free == group.pool.size


TestWindows = WindowMachine.TestCase
TestWindows.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
