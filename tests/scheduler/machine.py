"""A state machine of random adds, cancels, steps and faults against a naive model.

The model knows the output of every request that runs alone, and the order of arrival. Whatever
happens around a request, the request must give that output, end once, and never be overtaken.
"""

from __future__ import annotations

import itertools
import zlib
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis import event
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cache_integrity import check_cache
from fake_executor import END, FakeExecutor, embedding, embeddings_of, solo_output, solo_scores
from heddle.cache.cache import Cache
from heddle.embedding import EmbeddingParams, Pooling
from heddle.errors import ContextLengthError, HeddleError, OverloadedError
from heddle.outputs import FinishReason
from heddle.sampling_params import SamplingParams
from heddle.scheduler.scheduler import Scheduler
from heddle.scheduler.sequence import Sequence
from heddle.state import PAGE_TOKENS
from heddle.step import Failed, Pooled, Sampled, Scored, StepPlan, StepResult
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Collection

    from heddle.scheduler.speculation import Speculator

prompts = st.lists(st.integers(1, 31), min_size=1, max_size=8) | st.integers(1, 120).map(
    lambda length: [7] * length
)
wishes = st.sampled_from(
    ["text", "text", "text", "scored text", "scores", "mean", "cls", "last", "none"]
)
"""What a request asks for: text, log probabilities of its prompt, an embedding."""


def asked(wish: str, seed: int, *, ignore_eos: bool, **fields: Any) -> Any:
    """The parameters of a request."""
    if wish in {"mean", "cls", "last", "none"}:
        priority = fields.get("priority", 0)
        return EmbeddingParams(Pooling(wish), fields.get("cache_salt"), priority=priority)
    if wish == "scores":
        fields["max_tokens"] = 0
    scores = None if wish == "text" else 2
    return SamplingParams(seed=seed, ignore_eos=ignore_eos, prompt_logprobs=scores, **fields)


class Machine(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 4),
        batch_tokens=st.integers(1, 6) | st.integers(7, 100),
        queue=st.integers(0, 5),
        pages=st.integers(1, 6),
        context=st.integers(2, 400),
    )
    def start(self, slots: int, batch_tokens: int, queue: int, pages: int, context: int) -> None:
        self.slots, self.batch_tokens, self.room = slots, batch_tokens, slots + queue
        self.context = context
        self.capacity = min(context, pages * PAGE_TOKENS)
        self.executor = self.make_executor(pages)
        self.cache = self.make_cache(pages)
        self.speculator = self.make_speculator()
        self.scheduler = Scheduler(
            slots, batch_tokens, queue, self.cache, context, speculator=self.speculator
        )
        self.put_off_once: set[tuple[int, ...]] = set()
        self.live: list[Sequence] = []  # in arrival order
        self.expected: dict[int, list[int]] = {}
        self.said: dict[int, list[int]] = {}
        self.told: dict[int, list[object]] = {}
        self.failures: set[int] = set()
        self.idle_steps: dict[int, int] = {}

    def put_off(self, history: Collection[int]) -> Future[None] | None:
        """Defer the token after some histories, the first time, to the next step."""
        said = tuple(history)
        if zlib.crc32(repr(said).encode()) % 7 or said in self.put_off_once:
            return None
        self.put_off_once.add(said)
        ready: Future[None] = Future()
        ready.set_result(None)
        return ready

    def make_executor(self, pages: int) -> FakeExecutor:
        return FakeExecutor(pages, defers=self.put_off)

    def make_speculator(self) -> Speculator | None:
        return None

    def make_cache(self, pages: int) -> Cache:
        return Cache(self.executor.memory)

    @rule(
        prompt=prompts,
        seed=st.integers(0, 3),
        most=st.none() | st.integers(1, 60),
        ignore_eos=st.booleans() | st.just(True),
        copies=st.integers(1, 3),
        wish=wishes,
    )
    def add(
        self,
        prompt: list[int],
        seed: int,
        most: int | None,
        ignore_eos: bool,
        copies: int,
        wish: str,
    ) -> None:
        self.add_copies(
            prompt, copies, seed=seed, max_tokens=most, ignore_eos=ignore_eos, wish=wish
        )

    def add_copies(
        self,
        prompt: list[int],
        copies: int,
        *,
        seed: int,
        ignore_eos: bool,
        wish: str = "text",
        **fields: Any,
    ) -> None:
        first = len(self.expected)
        added = []
        for identity in range(first, first + copies):
            own_seed = seed + identity % 2  # some have equal outputs
            fields["mirostat"] = self.mirostat(own_seed)
            params = asked(wish, own_seed, ignore_eos=ignore_eos, **fields)
            added.append(self.make_sequence(identity, params=params, prompt=prompt))
        try:
            output = added[0].most_output != 0
            if copies <= self.room:
                self.scheduler.add(*added)
        except ContextLengthError:
            assert len(prompt) + output > self.capacity
        except OverloadedError:
            assert len(self.live) + copies > self.room_for()
        else:
            if copies <= self.room:
                assert len(prompt) + output <= self.capacity
                assert len(self.live) + copies <= self.room_for()
                self.live += added
                for sequence in added:
                    said = solo_output(prompt, sequence.params, self.capacity) if output else []
                    self.expected[sequence.id] = said
                    self.said[sequence.id], self.told[sequence.id] = [], []

    def mirostat(self, seed: int) -> int:
        """The version of mirostat that a request asks for."""
        return 2 * (seed % 2)

    def make_sequence(self, identity: int, params: Any, prompt: list[int]) -> Sequence:
        ends = frozenset() if getattr(params, "ignore_eos", False) else frozenset({END})
        return Sequence(identity, params, list(prompt), len(prompt), ends)

    def prompt_of(self, sequence: Sequence) -> list[int]:
        """The prompt as the executor sees it."""
        return sequence.tokens[: sequence.prompt_tokens]

    def room_for(self) -> int:
        """Places for the requests of `add_copies`."""
        return self.room

    @rule(which=st.integers(0, 7))
    def cancel(self, which: int) -> None:
        if self.live:
            self.cancel_one(self.live[which % len(self.live)])

    def cancel_one(self, sequence: Sequence) -> None:
        assert self.scheduler.cancel(sequence.id)
        assert not self.scheduler.cancel(sequence.id)
        self.live.remove(sequence)

    @rule(
        cancel=st.none() | st.integers(0, 7),
        fails=st.integers(0, 5).map(lambda n: n == 5),
        poisoned=st.none() | st.integers(0, 3),
        too_large=st.sampled_from([None] * 8 + ["before", "after"]),
    )
    def step(
        self, cancel: int | None, fails: bool, poisoned: int | None, too_large: str | None
    ) -> None:
        """`too_large`: the memory ends before the step has written anything, or after it."""
        if not self.live:
            return
        plan = self.schedule()
        if cancel is not None:
            self.cancel(cancel)
        if fails:
            self.fail(plan)
        elif too_large and sum(len(chunk.tokens) for chunk in plan.chunks) > 1:
            if too_large == "after":
                execute(self.executor, plan)
            most = self.scheduler.shrink_steps()
            if most is None:
                self.cannot_shrink(plan)
            else:
                self.batch_tokens = most
        else:
            self.finish(plan, poisoned)

    def cannot_shrink(self, plan: StepPlan) -> None:
        raise AssertionError("a step of two tokens may be smaller")

    @rule(count=st.integers(1, 40))
    def steps(self, count: int) -> None:
        while count and self.live:
            self.finish(self.schedule())
            self.agrees_with_the_model()
            count -= 1

    def schedule(self) -> StepPlan:
        fits = min(self.scheduler.prefixes.unclaimed().pages) >= 0
        preemptions = self.scheduler.admission.preemptions
        plan = self.scheduler.schedule()
        assert not fits or self.scheduler.admission.preemptions == preemptions, (
            "no output asked for that"
        )
        self.check_plan(plan)
        return plan

    def finish(self, plan: StepPlan, poisoned: int | None = None) -> None:
        """Run the step and give its result to the scheduler."""
        self.apply(execute(self.executor, plan), poisoned)

    def apply(self, result: StepResult, poisoned: int | None = None) -> None:
        """Give a result to the scheduler. Slot `poisoned` has no token."""
        if poisoned is not None:
            kinds = (result.sampled, result.scored, result.pooled)
            result = StepResult(*(self.poison(one, poisoned) for one in kinds))
        for sequence, outcome, finish in self.scheduler.update(result):
            assert sequence in self.live, "an event for a sequence that ended"
            assert finish is self.take(sequence, outcome)
            if finish is not None:
                self.live.remove(sequence)

    @staticmethod
    def poison(outcomes: tuple[Any, ...], slot: int) -> Any:
        """The outcomes, with a failure in place of the last one of a slot."""
        last = max((i for i, one in enumerate(outcomes) if one.slot == slot), default=None)
        failure = Failed(slot, HeddleError("poisoned"))
        return tuple(failure if i == last else one for i, one in enumerate(outcomes))

    def take(self, sequence: Sequence, outcome: object) -> FinishReason | None:
        """Compare an outcome with the model; returns how the request should have ended."""
        params, said, told = sequence.params, self.said[sequence.id], self.told[sequence.id]
        prompt = self.prompt_of(sequence)
        scores = solo_scores(prompt, 2)[1:] if sequence.prompt_logprobs is not None else ()
        match outcome:
            case Failed():
                self.failures.add(sequence.id)
                return FinishReason.ERROR
            case Scored():
                told += outcome.scores
                assert told == list(scores[: len(told)])
                return None
            case Pooled():
                vectors = {
                    Pooling.MEAN: embedding(prompt),
                    Pooling.LAST: embedding(prompt[-1:]),
                    Pooling.CLS: embedding(prompt[:1]),
                    Pooling.NONE: embeddings_of(prompt),
                }
                assert outcome.vector == vectors[params.pooling]
                return FinishReason.STOP
            case None:
                assert params.max_tokens == 0
                assert told == list(scores)
                return FinishReason.LENGTH
        assert isinstance(outcome, Sampled)
        assert told == list(scores), "before the first token of the output"
        expected = self.expected[sequence.id]
        said.append(outcome.token)
        assert said == expected[: len(said)]
        if len(said) < len(expected):
            return None
        stops = said[-1] == END and not params.ignore_eos
        return FinishReason.STOP if stops else FinishReason.LENGTH

    def fail(self, plan: StepPlan) -> None:
        carried = {chunk.slot for chunk in plan.chunks}
        expected = [s for s in self.live if s.slot in carried]
        assert sorted(self.scheduler.abandon(), key=self.live.index) == expected
        for sequence in expected:
            self.live.remove(sequence)

    def check_plan(self, plan: StepPlan) -> None:
        """Check the budget, the order of service, and that no sequence is left out."""
        check_cache(self.cache)
        assert 1 <= sum(len(chunk.tokens) for chunk in plan.chunks) <= self.batch_tokens
        running = [s for s in self.live if s.slot >= 0]
        sizes = {chunk.slot: chunk.known for chunk in plan.chunks}
        for s in running:
            if s.again and s.slot in sizes:
                sizes[s.slot] -= s.again
        decodes = [s for s in running if s.generating]
        assert all(sizes.get(s.slot, 1) == 1 for s in decodes)
        again = sum(s.again for s in running if not s.waits)
        if len(decodes) + again < self.batch_tokens:
            assert all(s.slot in sizes for s in decodes), "a decode was left out"
            prompts = [s for s in running if not s.generating and not s.waits]
            self.check_prompts(prompts, sizes)
        most = -(-(self.slots + again) // self.batch_tokens)
        left_out = [s for s in running if s.slot not in sizes and not s.waits]
        idle = {s.id: self.idle_steps.get(s.id, 0) + 1 for s in left_out}
        assert all(idle.get(s.id, 0) < most for s in decodes), "a decode starves"
        self.idle_steps = idle

    def check_prompts(self, prompts: list[Sequence], sizes: dict[int, int]) -> None:
        """Check that prompts get tokens in order of arrival."""
        for earlier, later in itertools.pairwise(prompts):
            assert later.slot not in sizes or sizes[earlier.slot] == self.most_of(earlier)

    def most_of(self, sequence: Sequence) -> int:
        """Tokens of a sequence that one step of any size may compute."""
        return sequence.remaining

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "live"):
            return
        check_cache(self.cache)
        running = [s for s in self.scheduler.slots if s is not None]
        assert sorted(running, key=self.live.index) == self.live[: len(running)], "overtaken"
        assert self.scheduler.queue.waiting == len(self.live) - len(running)
        assert self.scheduler.busy == bool(self.live)
        held = {page for s in running for page in (*s.table.pages, s.table.source)} - {None}
        assert self.cache.pages.available == self.cache.pages.size - len(held)
        for number, window in enumerate(self.executor.windows):
            tables = [s.table.windows[number] for s in running if s.table.windows]
            held = {page for table in tables for page in (*table.pages, table.source)} - {None}
            assert self.cache.pages.available_by_group.pages[1 + number] == window.pages - len(held)

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        self.steps(20_000)
        assert not self.live, "no end in sight"
        event(f"preemptions: {min(self.scheduler.admission.preemptions, 3)}")
        sizes = [window.pages for window in self.executor.windows]
        assert self.cache.pages.available_by_group.pages == (self.cache.pages.size, *sizes)
        assert self.scheduler.slots == [None] * self.slots
