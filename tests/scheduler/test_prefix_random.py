"""Random conversations over one prefix cache, against a naive model of it.

To the state machine of `machine.py` this adds prompts with shared prefixes, next turns, salts,
eviction, flush and the kill switch. The model of the cache is a list of strings, searched one by
one: the paths of the tree, and the computed tokens of running sequences. A request must begin where
its longest match ends. Of two requests that share a prefix only one may compute it. The tokens of
an ended request must be found.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING
from unittest import mock

import hypothesis.strategies as st
from hypothesis import event, settings
from hypothesis.stateful import initialize, rule
from machine import Machine, wishes

from cache_integrity import check_cache
from heddle.cache import radix
from heddle.cache.cache import Cache
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence as Tokens

    from heddle.scheduler.sequence import Sequence
    from heddle.step import StepPlan

DOCUMENTS = [[(7 * i * i + 3 * i + kind) % 31 + 1 for i in range(150)] for kind in range(2)]

tails = st.lists(st.integers(1, 31), max_size=8)
salts = st.sampled_from([None, None, "a"])


def common(one: Tokens[int], other: Tokens[int]) -> int:
    """How many leading tokens are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


class PrefixMachine(Machine):
    @initialize(
        slots=st.integers(1, 4),
        batch_tokens=st.integers(1, 6) | st.integers(7, 100),
        pages=st.integers(2, 8) | st.integers(30, 60),
        most_nodes=st.just(0) | st.integers(1, 6),
        run_tokens=st.sampled_from([PAGE_TOKENS, 2 * PAGE_TOKENS, radix.RUN_TOKENS]),
    )
    def start(
        self, slots: int, batch_tokens: int, pages: int, most_nodes: int, run_tokens: int
    ) -> None:
        self.most_nodes = most_nodes
        self.patch = mock.patch.object(radix, "RUN_TOKENS", run_tokens)
        self.patch.start()
        super().start(slots=slots, batch_tokens=batch_tokens, queue=6, pages=pages, context=400)
        self.every: list[Sequence] = []
        self.seen = {"found": 0, "followed": 0, "in part": 0}

    def make_cache(self, pages: int) -> Cache:
        return Cache(self.executor.memory, most_nodes=self.most_nodes)

    # --- what may happen -------------------------------------------------------------------------

    @rule(
        kind=st.integers(0, 1),
        length=st.integers(1, 150),
        tail=tails,
        copies=st.integers(1, 3),
        most=st.integers(1, 40),
        salt=salts,
        wish=wishes,
    )
    def add_about_a_document(
        self,
        kind: int,
        length: int,
        tail: list[int],
        copies: int,
        most: int,
        salt: str | None,
        wish: str,
    ) -> None:
        prompt = DOCUMENTS[kind][:length] + tail
        self.add_copies(
            prompt, copies, seed=0, ignore_eos=True, wish=wish, max_tokens=most, cache_salt=salt
        )

    @rule(which=st.integers(0, 9), tail=tails, most=st.integers(1, 40))
    def add_next_turn(self, which: int, tail: list[int], most: int) -> None:
        """A prompt that begins with the prompt and output of another request."""
        if not self.live:
            return
        before = self.live[which % len(self.live)]
        salt = before.params.cache_salt
        self.add_copies(
            [*before.tokens, *tail], 1, seed=1, ignore_eos=True, max_tokens=most, cache_salt=salt
        )

    @rule(count=st.integers(1, 10))
    def steps(self, count: int) -> None:
        super().steps(count)

    @rule(now=st.integers(0, 4))
    def flush(self, now: int) -> None:
        if now:
            return
        self.cache.flush()
        stats = self.cache.stats()
        assert (stats.nodes, stats.cached_tokens) == (0, 0)
        assert all(s.table.cursor is None for s in self.live)

    @rule(on=st.integers(0, 7).map(bool))
    def switch(self, on: bool) -> None:
        self.cache.set_enabled(on)
        assert on or self.cache.stats().nodes == 0

    @rule(count=st.integers(1, 3))
    def evict(self, count: int) -> None:
        for _ in range(count):
            self.cache.prefixes.evict()

    # --- what must hold --------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        known = self.paths()
        for s in self.live:
            if s.table.cursor is not None:
                known.append((s.params.cache_salt, s.tokens[: s.computed]))
        not_begun = [s for s in self.live if s.slot < 0 or s.leader is not None]
        flushed = [s for s in not_begun if s.computed and s.table.cursor is None]
        leaders = {s.id: s.leader for s in not_begun}
        evictions = self.cache.stats().evictions
        plan = super().schedule()
        if self.cache.prefixes.enabled and self.cache.stats().evictions == evictions:
            for s in not_begun:
                still_waits = s.leader is not None and s.leader is leaders[s.id]
                if s.slot >= 0 and s not in flushed and not still_waits:
                    self.check_beginning(s, known)
        self.check_following()
        self.check_nothing_is_computed_twice(plan)
        return plan

    def paths(self) -> list[tuple[str | None, list[int]]]:
        """Every string from a root to a leaf of the tree, with its salt."""
        found = []
        for leaf in self.cache.prefixes.tree.walk():
            if not leaf.children:
                tokens: list[int] = []
                node = leaf
                while node.parent is not None:
                    tokens[:0] = node.tokens
                    node = node.parent
                found.append((node.salt, tokens))
        return found

    def check_beginning(self, s: Sequence, known: list[tuple[str | None, list[int]]]) -> None:
        there = [tokens for salt, tokens in known if salt == s.params.cache_salt]
        longest = max((common(tokens, s.tokens[: s.first_needed]) for tokens in there), default=0)
        whole = longest - longest % PAGE_TOKENS
        if s.leader is not None:
            assert s.computed == whole
            self.seen["followed"] += 1
        elif s.computed != longest:
            assert s.computed == whole
            assert min(self.scheduler.prefixes.unclaimed().pages) <= 0, (
                "there was a page to copy from"
            )
        self.seen["found"] += s.computed > 0
        self.seen["in part"] += s.computed > whole

    def check_following(self) -> None:
        running = [s for s in self.live if s.slot >= 0]
        assert all(s.leader is None for s in self.live if s.slot < 0)
        for s in running:
            leader = s.leader
            if leader is not None:
                assert running.index(leader) < running.index(s), "only older ones are followed"
                assert s.computed <= leader.computed or leader.waits or leader.reads_prompt
                assert leader.computed < s.shared_tokens < s.total
                assert leader.tokens[: s.shared_tokens] == s.tokens[: s.shared_tokens]
                assert leader.params.cache_salt == s.params.cache_salt

    def check_nothing_is_computed_twice(self, plan: StepPlan) -> None:
        """Only the last token of a prompt, and tokens whose logits are read, may be."""
        sizes = {chunk.slot: len(chunk.tokens) for chunk in plan.chunks}
        prompts = [
            s
            for s in self.live
            if s.slot in sizes and not (s.generating or s.reads_prompt) and self.shares(s)
        ]
        for one, other in combinations(prompts, 2):
            if one.params.cache_salt == other.params.cache_salt:
                first = max(one.computed, other.computed)
                last = min(s.computed + min(sizes[s.slot], s.remaining - 1) for s in (one, other))
                assert common(one.tokens, other.tokens) <= first or last <= first

    def shares(self, s: Sequence) -> bool:
        """Whether the sequence must not compute what another one computes."""
        return s.table.cursor is not None

    def finish(self, plan: StepPlan, poisoned: int | None = None) -> None:
        before = [s for s in self.live if s.slot >= 0 and s.table.cursor is not None]
        evictions = self.cache.stats().evictions
        super().finish(plan, poisoned)
        if self.cache.stats().evictions == evictions:
            for s in before:
                if s.ended and s.slot < 0 and s.tokens[-1:] and not self.failed(s):
                    self.check_end(s)

    def check_end(self, s: Sequence) -> None:
        """The cache finds the tokens of an ended request."""
        assert self.cache.prefixes.match(s.params.cache_salt, s.tokens).length == s.total - 1
        assert s.computed == s.total - bool(s.output_tokens)

    def failed(self, s: Sequence) -> bool:
        return s.id in self.failures or len(self.said[s.id]) < len(self.expected[s.id])

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        try:
            self.end()
        finally:
            self.patch.stop()

    def end(self) -> None:
        super().teardown()
        for what, count in self.seen.items():
            event(f"{what}: {min(count, 3)}")
        event(f"evictions: {min(self.cache.stats().evictions, 3)}")
        self.cache.flush()
        check_cache(self.cache)
        assert self.cache._pools.pages.free == self.cache.pages.size


TestPrefixCache = PrefixMachine.TestCase
TestPrefixCache.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
