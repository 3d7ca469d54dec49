"""A state machine of random requests and faults against an engine, step by step.

The machine runs the engine thread's steps itself, so that every run is the same. The fake executor
knows the output of every request that runs alone. Whatever fails around a request, the request gets
that output or a prefix of it, and ends exactly once; no slot and no page is lost. The machines of
`tests/scheduler` do the same below, with windows, snapshots and a failing disk.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

import hypothesis.strategies as st
from hypothesis import event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cache_integrity import check_cache
from fake_executor import FakeExecutor, solo_output
from fake_model import fake_model
from heddle.config import EngineConfig
from heddle.engine import Engine
from heddle.engine.health import HealthState
from heddle.errors import (
    ContextLengthError,
    EngineClosedError,
    EngineFailedError,
    ModelPoisonedError,
    OverloadedError,
)
from heddle.outputs import Delta, FinishReason
from heddle.sampling_params import SamplingParams
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.engine.requests.request import Ticket
    from heddle.step import Binding

BROKEN_SAMPLER, NOT_FINITE = 5, 6
"""Seeds of requests whose sampler cannot be made, and whose logits become NaN."""

WHOLE = (FinishReason.STOP, FinishReason.LENGTH)

prompts = st.lists(st.integers(1, 30), min_size=1, max_size=8) | st.integers(1, 120).map(
    lambda length: [7] * length
)


class SteppedThread:
    """Stands for the engine thread. It runs when it is joined; before, the machine steps."""

    ident = None

    def __init__(self, target: Callable[[], None], **_: Any) -> None:
        self._target: Callable[[], None] | None = target

    def start(self) -> None:
        """Nothing runs by itself."""

    def is_alive(self) -> bool:
        return self._target is not None

    def join(self, timeout: float | None = None) -> None:
        target, self._target = self._target, None
        if target is not None:
            target()


class BrokenObserver:
    """Every call of it raises."""

    def __getattr__(self, name: str) -> object:
        raise ValueError(f"no {name}")


@dataclass
class Caller:
    """A request, its right output, and what it got. Its sink raises after `sink_fails` deltas."""

    expected: list[int]
    sink_fails: int | None
    ticket: Ticket | None = None
    cancelled: bool = False
    late: int = 0  # deltas after its end; the engine would catch an assertion of a sink
    deltas: list[Delta] = field(default_factory=list)

    def sink(self, delta: Delta) -> None:
        self.late += self.ended
        self.deltas.append(delta)
        if len(self.deltas) == self.sink_fails:
            raise ValueError("the sink is full")

    @property
    def ended(self) -> bool:
        """Whether the engine sends no more."""
        return len(self.deltas) == self.sink_fails or bool(self.deltas and self.deltas[-1].finish)

    @property
    def complete(self) -> bool:
        """Whether it got its whole output."""
        return bool(self.deltas) and self.deltas[-1].finish in WHOLE

    def check(self) -> None:
        """Compare with the output of the request alone."""
        assert not self.late, "a delta after the last one"
        tokens = [token.token for delta in self.deltas for token in delta.tokens]
        assert tokens == self.expected[: len(tokens)]
        if self.complete:
            assert tokens == self.expected


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 4),
        batch_tokens=st.integers(1, 100),
        queue=st.integers(0, 5),
        pages=st.integers(2, 6),
    )
    def start(self, slots: int, batch_tokens: int, queue: int, pages: int) -> None:
        logging.disable()  # broken observers fill the log
        self.pages, self.room = pages, slots + queue
        self.config = EngineConfig(
            slots=slots,
            batch_tokens=batch_tokens,
            queue=queue,
            min_free_memory=0,
            batch_window_us=0,
            watchdog=0,
        )
        self.load()

    def load(self) -> None:
        """Load the model, at first or again."""

        def before_bind(binding: Binding) -> None:
            assert isinstance(binding.params, SamplingParams)
            if binding.params.seed == BROKEN_SAMPLER:
                raise ValueError("no such stage")

        self.executor = FakeExecutor(self.pages, before_bind=before_bind)
        self.executor.poisonous = self.is_not_finite
        with mock.patch.object(threading, "Thread", SteppedThread):
            self.engine = Engine(fake_model(self.executor), self.config)
        self.thread = self.engine.thread
        self.thread._wait = self.thread._thread.join  # type: ignore[method-assign]  # it runs then
        self.engine.thread.observe(BrokenObserver())  # type: ignore[arg-type]
        self.live: list[Caller] = []

    def is_not_finite(self, history: Sequence[int]) -> bool:
        slots = self.executor.slots.values()
        of = [slot for slot in slots if slot.history[: len(history)] == list(history)]
        seeds = [slot.params.seed for slot in of if isinstance(slot.params, SamplingParams)]
        return bool(seeds) and set(seeds) == {NOT_FINITE}

    # --- what may happen -------------------------------------------------------------------------

    @rule(
        prompt=prompts,
        seed=st.integers(0, 3) | st.sampled_from([BROKEN_SAMPLER, NOT_FINITE]),
        most=st.integers(1, 60) | st.just(500),
        ignore_eos=st.booleans() | st.just(True),
        sink_fails=st.none() | st.none() | st.integers(1, 20),
        copies=st.integers(1, 4),
    )
    def submit(
        self,
        prompt: list[int],
        seed: int,
        most: int,
        ignore_eos: bool,
        sink_fails: int | None,
        copies: int,
    ) -> None:
        for _ in range(copies):
            self.submit_one(prompt, seed, most, ignore_eos, sink_fails)

    def submit_one(
        self, prompt: list[int], seed: int, most: int, ignore_eos: bool, sink_fails: int | None
    ) -> None:
        params = SamplingParams(seed=seed, max_tokens=most, ignore_eos=ignore_eos)
        capacity = self.pages * PAGE_TOKENS
        caller = Caller(solo_output(prompt, params, capacity), sink_fails)
        try:
            caller.ticket = self.engine.submit(prompt, params, caller.sink)
        except ContextLengthError:
            assert len(prompt) >= capacity
        except OverloadedError:
            assert len(self.thread._loop.delivery.requests) >= self.room
        else:
            self.live.append(caller)

    @rule(prompt=st.just([99]) | st.integers(200, 300).map(lambda length: [1] * length))
    def submit_what_cannot_run(self, prompt: list[int]) -> None:
        try:
            self.engine.submit(prompt, SamplingParams(seed=1), lambda delta: None)
        except Exception as error:
            assert getattr(error, "status", None) == 400
        else:
            raise AssertionError("it was accepted")

    @rule(which=st.integers(0, 7))
    def cancel(self, which: int) -> None:
        if self.live:
            caller = self.live[which % len(self.live)]
            assert caller.ticket is not None
            caller.cancelled = True
            caller.ticket.cancel()

    @rule(
        cancel=st.none() | st.integers(0, 7),
        text_fails=st.integers(0, 9).map(lambda n: n == 9),
        fault=st.none() | st.none() | st.sampled_from(["before_submit", "before_step"]),
        error=st.sampled_from([RuntimeError("no device"), MemoryError("no memory")]),
    )
    def step(
        self, cancel: int | None, text_fails: bool, fault: str | None, error: Exception
    ) -> None:
        """A step. Meanwhile a client leaves, the text of a token cannot be made, or it fails."""
        if fault is not None and self.thread._loop.scheduler.busy:
            self.forward_pass_fails(error, fault)
            return
        if not self.has_work:
            return
        if cancel is not None:
            self.executor.before_step = lambda step: self.cancel(cancel)
        if text_fails and self.live:
            ticket = self.live[-1].ticket
            assert ticket is not None
            if (request := self.thread._loop.delivery.requests.get(ticket.id)) is not None:
                request.detokenizer = mock.Mock(**{"push.side_effect": IndexError("no piece")})
        assert self.thread._loop.step()
        self.executor.before_step = lambda step: None

    @rule(count=st.integers(1, 15))
    def steps(self, count: int) -> None:
        while count and self.has_work:
            assert self.thread._loop.step()
            self.nothing_is_lost()
            count -= 1

    def forward_pass_fails(self, error: Exception, where: str) -> None:
        def fail(step: int) -> None:
            raise error

        setattr(self.executor, where, fail)
        callers = list(self.live)
        self.thread._thread.join()  # it ends by itself
        assert self.engine.health.state is HealthState.POISONED
        assert str(error) in str(self.engine.health.poison)
        assert all(caller.ended for caller in callers)
        self.check_errors(callers, str(error))
        later = Caller([], None)
        try:
            self.engine.submit([1], SamplingParams(seed=1), later.sink)
        except ModelPoisonedError:
            event("poisoned")
        else:
            raise AssertionError("a poisoned engine accepts requests")
        self.end_and_load_again()

    @rule(now=st.integers(0, 5), drain=st.booleans())
    def close(self, now: int, drain: bool) -> None:
        if now != 5:
            return
        callers = list(self.live)
        self.engine.close(drain=drain)
        assert self.engine.health.state is HealthState.CLOSED
        assert all(caller.ended for caller in callers)
        for caller in callers:
            caller.check()
            if isinstance(caller.deltas[-1].error, EngineClosedError):
                assert not drain
        event("drained" if drain else "closed")
        self.end_and_load_again()

    def check_errors(self, callers: list[Caller], cause: str) -> None:
        """The requests of the failed step, and no others, hear that it failed."""
        poison = self.engine.health.poison
        assert poison is not None
        carried = {chunk.request for chunk in poison.chunks}
        for caller in callers:
            caller.check()
            assert caller.ticket is not None
            error = caller.deltas[-1].error
            if error is None:
                assert caller.cancelled or caller.sink_fails or caller.complete
            elif cause in error.message:
                kind = EngineFailedError if caller.ticket.id in carried else ModelPoisonedError
                assert type(error) is kind

    def end_and_load_again(self) -> None:
        self.engine.close()
        assert self.executor.closed
        self.nothing_is_lost()
        assert not self.live
        self.check_empty()
        self.load()

    # --- what must hold --------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a step would not wait."""
        thread = self.thread
        cancels = thread.cancels.pending() & thread._loop.delivery.requests.keys()
        return bool(thread._loop.scheduler.busy or thread._loop.delivery.pending or cancels)

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "live"):
            return
        for caller in self.live:
            caller.check()
        self.live = [caller for caller in self.live if not caller.ended]
        check_cache(self.thread._loop.cache)
        running = [s for s in self.thread._loop.scheduler.slots if s is not None]
        held = {page for s in running for page in (*s.table.pages, s.table.source)} - {None}
        assert self.thread._loop.cache.pages.available == self.pages - len(held)

    def check_empty(self) -> None:
        snapshot = self.engine.snapshot()
        assert (snapshot.running, snapshot.queue_depth, snapshot.pages_used) == (0, 0, 0)
        assert not self.thread._loop.delivery.requests

    def teardown(self) -> None:
        logging.disable(logging.NOTSET)
        if not hasattr(self, "live"):
            return
        survivors = [c for c in self.live if not c.cancelled and c.sink_fails is None]
        self.steps(20_000)
        assert not self.live, "no end in sight"
        event(f"survivors: {min(len(survivors), 3)}")
        self.check_empty()
        self.engine.close()


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
