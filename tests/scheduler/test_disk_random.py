"""Random conversations over a prefix cache with a disk tier: evict, restore, damage, fill, restart.

To the state machine of `test_prefix_random.py` this adds a directory that outlives the process, and
everything that can happen to it. The tier has no thread here: a rule runs its jobs, or the machine
does when all sequences wait for one; then a job must exist. The executor detects a wrongly restored
page, since its pages hold the tokens themselves.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import initialize, rule
from machine import wishes
from test_prefix_random import PrefixMachine, common, salts, tails

from cache_integrity import check_cache
from heddle.cache.cache import Cache
from heddle.disk.directory import PageDirectory
from heddle.disk.tier import DiskTier
from heddle.scheduler import admission
from heddle.scheduler.scheduler import Scheduler
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence as Tokens

    from heddle.scheduler.sequence import Sequence
    from heddle.step import StepPlan

PAGE_BYTES = 1000
ROOMY = 10**9


class DiskMachine(PrefixMachine):
    @initialize(
        slots=st.integers(1, 4),
        batch_tokens=st.integers(1, 100),
        pages=st.integers(3, 8) | st.integers(30, 60),
        most_nodes=st.just(0) | st.integers(1, 6),
        capacity=st.just(ROOMY) | st.integers(0, 12).map(lambda files: files * 1500),
        ahead=st.integers(1, 3),
        loads=st.integers(1, 4),
    )
    def start(
        self,
        slots: int,
        batch_tokens: int,
        pages: int,
        most_nodes: int,
        capacity: int,
        ahead: int,
        loads: int,
    ) -> None:
        self.path = Path(tempfile.mkdtemp())
        self.disk_capacity, self.ahead = capacity, ahead
        self.loads = mock.patch.object(admission, "_LOADS", loads)
        self.loads.start()
        super().start(slots, batch_tokens, pages, most_nodes, 4 * PAGE_TOKENS)
        self.seen |= {"restored": 0, "waited for disk": 0, "damaged": 0, "full": 0, "restarts": 0}

    def make_cache(self, pages: int) -> Cache:
        directory = PageDirectory(self.path, self.disk_capacity)
        self.tier = DiskTier(
            directory,
            self,
            PAGE_BYTES,
            b"f" * 32,
            threaded=False,
            snapshot_bytes=self.executor.memory.snapshot_bytes,
        )
        self.tier._most_ahead = self.ahead
        return Cache(self.executor.memory, most_nodes=self.most_nodes, disk=self.tier)

    def read_page(self, page: int, windows: Tokens[int] = ()) -> memoryview:
        return self.executor.read_page(page, windows)

    def write_page(self, page: int, content: memoryview, windows: Tokens[int] = ()) -> None:
        self.executor.write_page(page, content, windows)

    def read_snapshot(self, snapshot: int) -> memoryview:
        return self.executor.read_snapshot(snapshot)

    def write_snapshot(self, snapshot: int, content: memoryview) -> None:
        self.executor.write_snapshot(snapshot, content)

    # --- what may happen -------------------------------------------------------------------------

    def add(self, *_: object) -> None:
        """No rule here: a prompt that shares no prefix does not use the disk."""

    @rule(
        kind=st.integers(0, 1),
        length=st.integers(33, 150),
        tail=tails,
        copies=st.integers(1, 3),
        salt=salts,
        wish=wishes,
        steps=st.integers(5, 60),
    )
    def ask_about_a_document(
        self,
        kind: int,
        length: int,
        tail: list[int],
        copies: int,
        salt: str | None,
        wish: str,
        steps: int,
    ) -> None:
        self.add_about_a_document(kind, length, tail, copies, 5, salt, wish)
        self.steps(steps)

    @rule(on=st.integers(0, 20).map(bool))
    def switch(self, on: bool) -> None:
        super().switch(on)

    @rule(count=st.integers(1, 20))
    def disk_works(self, count: int) -> None:
        while count and self.tier.work():
            count -= 1

    @rule(which=st.integers(0, 99), at=st.floats(0, 1, exclude_max=True), how=st.integers(0, 3))
    def damage(self, which: int, at: float, how: int) -> None:
        files = sorted(self.path.glob("*.page"))
        if not files:
            return
        file, other = files[which % len(files)], files[which * 7 % len(files)]
        content = bytearray(file.read_bytes())
        position = int(at * len(content))
        if how == 0:
            file.unlink()
        elif how == 1:
            file.write_bytes(content[:position])
        elif how == 2 and other != file:
            file.write_bytes(other.read_bytes())
        elif content:
            content[position] ^= 1 + which
            file.write_bytes(content)
        self.seen["damaged"] += 1

    @rule(now=st.integers(0, 9))
    def disk_is_full(self, now: int) -> None:
        """The disk stays full until the next start."""
        if not now:
            error = OSError(errno.ENOSPC, "No space left on device")
            mock.patch.object(self.tier._directory, "write", side_effect=error).start()

    @rule(keep=st.sampled_from([True, True, True, False]))
    def restart(self, keep: bool) -> None:
        """End all requests. `keep` saves their pages; without it the process is killed."""
        self.scheduler.cancel_all()
        self.live.clear()
        check_cache(self.cache)
        known = self.paths()
        self.cache.close(keep=keep)
        full = not self.tier.stats().enabled
        self.seen["full"] += full
        if full or not keep or self.seen["damaged"] or self.disk_capacity < ROOMY:
            known.clear()
        self.executor = self.make_executor(self.cache.pages.size)
        self.cache = self.make_cache(self.cache.pages.size)
        queue = self.room - self.slots
        self.scheduler = Scheduler(self.slots, self.batch_tokens, queue, self.cache, self.context)
        self.idle_steps.clear()
        self.seen["restarts"] += 1
        for salt, tokens in known:
            match = self.cache.prefixes.match(salt, [])
            found = self.cache.disk.find(match, [*tokens, 0])
            names = 0 if found is None else len(found.names)
            assert names == len(tokens) // PAGE_TOKENS

    def flush(self, now: int) -> None:
        super().flush(now)
        if not now:
            assert self.tier.stats().files == 0

    # --- what must hold --------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """The next plan that is not empty."""
        plan = self.schedule_once()
        while not plan.chunks:
            self.seen["waited for disk"] += 1
            assert self.tier.work(), "all wait, and for nothing"
            plan = self.schedule_once()
        stats = self.tier.stats()
        assert stats.bytes <= self.disk_capacity
        self.seen["restored"] += stats.restored_tokens > 0
        return plan

    def schedule_once(self) -> StepPlan:
        streams = any(s.generating for s in self.live if s.slot >= 0)
        before = self.tier.stats().restored_tokens
        plan = super().schedule()
        loaded = (self.tier.stats().restored_tokens - before) // PAGE_TOKENS
        assert loaded <= admission._LOADS or not streams, "streams wait for loads"
        awaited = [s.restore for s in self.live if s.restore is not None]
        assert all(restore in awaited for restore in self.tier._restores), "read for no one"
        assert all(s.restore is None for s in self.live if s.slot < 0)
        return plan

    def check_plan(self, plan: StepPlan) -> None:
        if plan.chunks:
            super().check_plan(plan)
            return
        running = [s for s in self.live if s.slot >= 0]
        assert running
        assert all(s.waits for s in running)

    def check_beginning(self, s: Sequence, known: Tokens[tuple[str | None, list[int]]]) -> None:
        """It begins at least where it would without a disk. Earlier restores may add tokens."""
        there = [tokens for salt, tokens in known if salt == s.params.cache_salt]
        longest = max((common(tokens, s.tokens[: s.first_needed]) for tokens in there), default=0)
        whole = longest - longest % PAGE_TOKENS
        self.seen["found"] += s.computed > 0
        self.seen["followed"] += s.leader is not None
        assert s.computed >= (
            whole if s.waits or min(self.scheduler.prefixes.unclaimed().pages) <= 0 else longest
        )
        assert s.restore is None or s.leader is None

    def end(self) -> None:
        try:
            super().end()
        finally:
            self.loads.stop()
            self.cache.close(keep=False)
            assert not list(self.path.glob("*.page*")), "the flush at the end left something"
            shutil.rmtree(self.path)


TestDiskTier = DiskMachine.TestCase
TestDiskTier.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
