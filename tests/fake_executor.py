"""An executor without a model: pages hold token ids, and the next token is a hash of those ids.

Scores of prompt tokens are hashes too. An embedding shows which tokens were pooled, in which order.

It trusts nothing. A sequence that comes back must bring mirostat's bound with it, which here is how
many tokens there were. Every chunk must go on where the slot's last one ended, carry the tokens the
sequence has there, and find the whole history in its pages; so a page that two sequences share by
mistake, a gap, or a read before a write fails the test that caused it.
"""

from __future__ import annotations

import math
import threading
import zlib
from array import array
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from heddle.embedding import EmbeddingParams, Pooling
from heddle.errors import GrammarError, NonFiniteLogitsError, StepAbandonedError
from heddle.executor import DeviceMemory, ModelShape
from heddle.executors.failures import sampler_failed
from heddle.outputs import PromptLogprob
from heddle.roofline import Limits, ModelWork
from heddle.sampling_params import SamplingParams
from heddle.state import PAGE_TOKENS, StateMemory
from heddle.step import (
    UNKNOWN,
    Binding,
    Chunk,
    Deferred,
    Failed,
    Pooled,
    Sampled,
    Scored,
    StepPlan,
    StepResult,
    WindowPages,
)
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from heddle.errors import HeddleError
    from heddle.executor import Executor, LogitsSummary
    from heddle.state import WindowMemory
    from heddle.token_rules import GrammarState, TokenRules

VOCABULARY = 32
END = 0
"""The end-of-sequence token of tests."""

WORK = ModelWork(
    weight_bytes=1000,
    token_multiply_adds=500,
    row_multiply_adds=50,
    kv_layers=((0, 2.0), (64, 2.0)),
)
"""The cost of a step, as this executor reports it: two layers, one of them with a window."""

SHAPE = ModelShape(layers=1, kv_heads=1, head_dim=2, vocabulary=VOCABULARY, context=512, width=2)


MEMORY = DeviceMemory(free=2 * 10**9, total=5 * 10**9)


def next_token(
    history: Sequence[int], params: SamplingParams, forbidden: Sequence[int] = ()
) -> int:
    """The next token of a sequence. It depends on the seed and on every token before."""
    return draw([token for token in range(VOCABULARY) if token not in forbidden], history, params)


def draw(allowed: Sequence[int], history: Sequence[int], params: SamplingParams) -> int:
    """One of the tokens, by a hash of the seed and of every token before."""
    return allowed[zlib.crc32(repr((params.seed, list(history))).encode()) % len(allowed)]


def tokens_of(mask: bytes) -> list[int]:
    """The tokens that a grammar's mask allows."""
    return [token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1]


def mirostat_bound(history: Sequence[int], params: SamplingParams) -> float | None:
    """Mirostat's bound after `history`, which goes from step to step beside the tokens."""
    return float(len(history)) if params.mirostat else None


def score(history: Sequence[int], target: int, top: int) -> PromptLogprob:
    """The score of `target` after `history`: a hash. Token t has the log probability -t / 8."""
    logprob = -(zlib.crc32(repr(list(history)).encode()) % 800) / 8 - target / 8
    likeliest = tuple((token, -token / 8) for token in range(min(top, VOCABULARY)))
    return PromptLogprob(target, logprob, target + 1, likeliest)


def solo_scores(prompt: Sequence[int], top: int) -> tuple[PromptLogprob | None, ...]:
    """The scores of a prompt's tokens, whatever else is in the batch."""
    return (None, *(score(prompt[:i], prompt[i], top) for i in range(1, len(prompt))))


def embedding(tokens: Sequence[int]) -> array[float]:
    """An embedding of the pooled tokens, in this order. Short, and its length is not 1."""
    return array("f", [zlib.crc32(repr(list(tokens)).encode()) % 4096 / 4096, len(tokens)])


def embeddings_of(tokens: Sequence[int]) -> array[float]:
    """The embeddings of the tokens, one after another."""
    return array("f", [number for token in tokens for number in embedding([token])])


def solo_output(prompt: Sequence[int], params: SamplingParams, capacity: int) -> list[int]:
    """The output of the sequence when it runs alone."""
    tokens = list(prompt)
    most = capacity if params.max_tokens is None else params.max_tokens
    limit = min(capacity, len(tokens) + most)
    while len(tokens) < limit:
        tokens.append(next_token(tokens, params))
        if tokens[-1] == END and not params.ignore_eos:
            break
    return tokens[len(prompt) :]


EMPTY_STATE = 17
STATE_BYTES = 4


def state_after(tokens: Sequence[int], state: int = EMPTY_STATE) -> int:
    """The state after `tokens`. This recurrence stands for layers with fixed-size state."""
    for token in tokens:
        state = (state * 1_000_003 + token + 1) % 2**32
    return state


def blank_pages(count: int) -> list[list[int]]:
    """Pages that hold no token yet."""
    return [[-1] * PAGE_TOKENS for _ in range(count)]


@dataclass
class Occupant:
    """A slot as the executor sees it. `computed` is None until the first chunk sets it."""

    params: SamplingParams | EmbeddingParams
    history: list[int]
    rules: TokenRules
    unseen: list[int]  # by the grammar
    pooled: list[int] = field(default_factory=list)
    grammar: GrammarState | None = None
    computed: int | None = None
    failure: HeddleError | None = None


def _copied(plan: StepPlan) -> StepPlan:
    """The plan with its own lists of pages: the cache grows those of the sequences."""
    return replace(
        plan,
        chunks=tuple(
            replace(
                chunk,
                pages=[*chunk.pages],
                windows=[WindowPages(one.first, [*one.pages], one.source) for one in chunk.windows],
            )
            for chunk in plan.chunks
        ),
    )


@dataclass
class FakeExecutor:
    """Implements `heddle.executor.Executor`.

    `before_submit` and `before_step` run in `submit` and `collect` with the step's number, from 0;
    a test raises there to inject a fault. Where `before_bind` raises, the sampler fails. No token
    can be sampled after a history for which `poisonous` is true; the error has `figures`. `defers`
    gives the histories after which sampling waits until a future is done. While `gate` is closed,
    every step waits; `entered` is set when a step has arrived there. `abandon` releases a waiting
    step without a result. If it `runs_ahead`, it takes a step before the last one is collected, and
    computes both in `collect`.
    """

    pages: int = 64
    page_bytes: int = 1000
    windows: tuple[WindowMemory, ...] = ()
    snapshots: int = 0
    snapshot_tokens: int = 64
    summary: str = "nothing real"
    held_bytes: int = 1000
    device_memory: DeviceMemory | None = MEMORY
    compute_seconds: float = 0.0
    work: ModelWork = WORK
    page_format: str = "token ids"
    shape: ModelShape = SHAPE
    before_step: Callable[[int], None] = lambda step: None
    before_submit: Callable[[int], None] = lambda step: None
    before_bind: Callable[[Binding], None] = lambda binding: None
    summarize: Callable[[], LogitsSummary | None] = lambda: None
    poisonous: Callable[[Sequence[int]], bool] = lambda history: False
    figures: dict[str, float | None] = field(default_factory=dict)
    defers: Callable[[Sequence[int]], Future[None] | None] = lambda history: None
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    may_go_back: bool = False  # so that pages behind a window may still be held
    steps: int = 0
    closed: bool = False
    head: Executor | None = None
    abandoned: bool = False
    runs_ahead: bool = False
    submitted: list[StepPlan] = field(default_factory=list)
    slots: dict[int, Occupant] = field(default_factory=dict)
    plans: list[list[tuple[int, int, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()
        self.content = blank_pages(self.pages)
        self.window_content = [blank_pages(window.pages) for window in self.windows]
        self.states: dict[int, int] = {}
        self.states_at: dict[int, dict[int, int]] = {}  # of the last chunk, by number of tokens
        self.kept_states: dict[int, int] = {}

    @property
    def memory(self) -> StateMemory:
        return StateMemory(
            self.pages,
            self.page_bytes - sum(window.page_bytes for window in self.windows),
            self.windows,
            self.snapshots,
            snapshot_bytes=STATE_BYTES if self.snapshots else 0,
            snapshot_tokens=self.snapshot_tokens,
        )

    def submit(self, plan: StepPlan) -> None:
        most = 1 if self.runs_ahead else 0
        assert len(self.submitted) <= most, "a step is submitted before the last one was collected"
        self.before_submit(self.steps + len(self.submitted))
        self.submitted.append(_copied(plan) if self.runs_ahead else plan)

    def collect(self) -> StepResult:
        assert self.submitted, "a step is collected that was not submitted"
        try:
            return self._compute(self.submitted.pop(0))
        except Exception:
            self.submitted.clear()
            raise

    def _compute(self, plan: StepPlan) -> StepResult:
        self.entered.set()
        assert self.gate.wait(PATIENCE), "the test never opened the gate"
        if self.abandoned:
            self._spoil(plan)
            raise StepAbandonedError("the step was abandoned")
        self.steps += 1
        self.plans.append([(c.slot, c.start, len(c.tokens)) for c in plan.chunks])
        self.before_step(self.steps - 1)
        for binding in plan.bindings:
            self._bind(binding)
        plan = replace(plan, chunks=tuple(map(self._with_token, plan.chunks)))
        assert len({chunk.slot for chunk in plan.chunks}) == len(plan.chunks)
        for copy in plan.copies:
            of = self.content if copy.window is None else self.window_content[copy.window]
            of[copy.target] = list(of[copy.source])
        for slot in plan.clears:
            self.states[slot] = EMPTY_STATE
        for restore in plan.restores:
            self.states[restore.slot] = self.kept_states[restore.snapshot]
        for chunk in plan.chunks:
            self._write(chunk)
        for copied in plan.snapshots:
            self.kept_states[copied.snapshot] = self.states[copied.slot]
        # Reading after all writing: a page written by two sequences shows. Where a first chunk does
        # not begin at 0, the pages must hold what came before, as a prefix cache promised.
        return StepResult(
            tuple(s for chunk in plan.chunks for s in self._read(chunk)),
            tuple(self._score(chunk) for chunk in plan.chunks if chunk.score is not None),
            tuple(s for chunk in plan.chunks for s in self._pool(chunk)),
        )

    def read_page(self, page: int, windows: Sequence[int] = ()) -> memoryview:
        self._check_reading(page)
        contents = [self.content[page]]
        contents += [of[one] for of, one in zip(self.window_content, windows, strict=True)]
        content = array("i", chain.from_iterable(contents)).tobytes()
        return memoryview(content.ljust(self.page_bytes, b"."))

    def _check_reading(self, page: int) -> None:
        """A step ahead may be in flight. It must not write to the page."""
        assert len(self.submitted) <= (1 if self.runs_ahead else 0), "while a step computes"
        for chunk in self.submitted[0].chunks if self.submitted else ():
            assert chunk.tokens[0] == UNKNOWN, "only a step that was planned ahead"
            assert page != chunk.pages[chunk.start // PAGE_TOKENS], "the step writes to it"

    def write_page(self, page: int, content: memoryview, windows: Sequence[int] = ()) -> None:
        assert not self.submitted, "a page is written while a step computes"
        assert len(content) == self.page_bytes
        tokens = list(content[: 4 * PAGE_TOKENS * (1 + len(windows))].cast("i"))
        self.content[page] = tokens[:PAGE_TOKENS]
        for group, (of, one) in enumerate(zip(self.window_content, windows, strict=True), 1):
            of[one] = tokens[group * PAGE_TOKENS : (group + 1) * PAGE_TOKENS]

    def read_snapshot(self, snapshot: int) -> memoryview:
        assert len(self.submitted) <= (1 if self.runs_ahead else 0), "while a step computes"
        return memoryview(self.kept_states[snapshot].to_bytes(STATE_BYTES, "little"))

    def write_snapshot(self, snapshot: int, content: memoryview) -> None:
        assert not self.submitted, "a snapshot is written while a step computes"
        self.kept_states[snapshot] = int.from_bytes(content, "little")

    def watch(self, failed: Callable[[str], None]) -> None:
        self.fail = failed

    def logits_summary(self) -> LogitsSummary | None:
        return self.summarize()

    def abandon(self) -> None:
        self.abandoned = True
        self.gate.set()

    def close(self) -> None:
        self.closed = True

    def measure_limits(self) -> Limits:
        return Limits(
            threads=2,
            isa="paper",
            multiplication="by hand",
            multiply_rate=1e6,
            memory_rate=1e5,
            memory_buffer=1 << 20,
            weights_rate=1e5,
            barriers=3,
            barrier_seconds=4e-6,
        )

    def _bind(self, binding: Binding) -> None:
        history = [*binding.prompt, *binding.output]
        if isinstance(binding.params, SamplingParams):
            assert binding.params.seed is not None
            bound = mirostat_bound(history, binding.params) if binding.output else None
            assert binding.mu == bound, "mirostat's bound was lost"
        occupant = Occupant(binding.params, history, binding.rules, list(binding.output))
        try:
            self.before_bind(binding)
        except Exception as cause:
            occupant.failure = sampler_failed(cause)
        if binding.rules.grammar is not None:
            occupant.grammar = binding.rules.grammar.begin()
        self.slots[binding.slot] = occupant

    def _with_token(self, chunk: Chunk) -> Chunk:
        """The chunk with the token of the step before, or with any if there was none."""
        if chunk.tokens[0] != UNKNOWN:
            return chunk
        occupant = self.slots[chunk.slot]
        params, rules = occupant.params, occupant.rules
        assert isinstance(params, SamplingParams), "only texts run ahead"
        known = params.needs_known_output or rules.needs_known_output
        assert not known, "the host must know the token"
        assert len(chunk.tokens) == 1
        assert chunk.sample
        if len(occupant.history) == chunk.start:
            occupant.history.append(END)  # sampling failed, and the sequence has ended
        return replace(chunk, tokens=occupant.history[chunk.start :])

    def _spoil(self, plan: StepPlan) -> None:
        """Fill the places that an abandoned step would have written with rubbish."""
        for copy in plan.copies:
            of = self.content if copy.window is None else self.window_content[copy.window]
            of[copy.target] = [-2] * PAGE_TOKENS
        for chunk in plan.chunks:
            for position in range(chunk.start, chunk.start + len(chunk.tokens)):
                self.content[chunk.pages[position // PAGE_TOKENS]][position % PAGE_TOKENS] = -2

    def _write(self, chunk: Chunk) -> None:
        occupant = self.slots[chunk.slot]
        end = chunk.start + len(chunk.tokens)
        assert chunk.tokens, "a chunk without tokens"
        assert occupant.computed in (None, chunk.start), "a gap, or tokens computed twice"
        count = len(chunk.tokens) - chunk.guesses
        known = chunk.start + count
        assert count > 0, "a chunk of guesses alone"
        assert list(chunk.tokens[:count]) == occupant.history[chunk.start : known]
        assert len(chunk.pages) == -(-end // PAGE_TOKENS), "more or fewer pages than tokens need"
        asked = occupant.params
        generates = isinstance(asked, SamplingParams) and asked.max_tokens != 0
        assert chunk.sample == (generates and known == len(occupant.history))
        assert chunk.guesses <= chunk.uncertain <= len(chunk.tokens)
        assert not chunk.uncertain or chunk.sample
        for position, token in enumerate(chunk.tokens, chunk.start):
            number, place = position // PAGE_TOKENS, position % PAGE_TOKENS
            self.content[chunk.pages[number]][place] = token
            for of, window in zip(self.window_content, chunk.windows, strict=True):
                of[window.pages[number - window.first]][place] = token
        if self.snapshots:
            self._fold(chunk)
        occupant.computed = known

    def _fold(self, chunk: Chunk) -> None:
        """A small recurrence: the state after each token depends on all tokens before."""
        state = self.states[chunk.slot]
        assert state == state_after(self.slots[chunk.slot].history[: chunk.start]), "another state"
        self.states_at[chunk.slot] = {}
        for end, token in enumerate(chunk.tokens, chunk.start + 1):
            state = self.states_at[chunk.slot][end] = state_after([token], state)
        self.states[chunk.slot] = state

    def _choose(self, occupant: Occupant, history: Sequence[int]) -> int:
        """The next token if there is no grammar, or if the grammar allows it."""
        return next_token(history, occupant.params, occupant.rules.forbidden)

    def _draw(self, allowed: Sequence[int], occupant: Occupant, history: Sequence[int]) -> int:
        """The next token from `allowed`, if the grammar forbids the one chosen first."""
        return draw(allowed, history, occupant.params)

    def _read(self, chunk: Chunk) -> list[Sampled | Failed | Deferred]:
        occupant = self.slots[chunk.slot]
        stored = [token for page in chunk.pages for token in self.content[page]]
        history = stored[: occupant.computed]
        assert history == occupant.history[: occupant.computed], "pages hold another history"
        for number, window in enumerate(chunk.windows):
            self._check_window(chunk, number, window, history)
        if not chunk.sample:
            return []
        if occupant.failure is not None:
            return [Failed(chunk.slot, occupant.failure)]
        may_wait = not self.snapshots or chunk.uncertain > chunk.guesses
        if may_wait and (ready := self.defers(history)) is not None:
            assert occupant.computed is not None
            occupant.computed -= 1
            self._go_back(chunk, occupant)
            return [Deferred(chunk.slot, ready)]
        outcomes: list[Sampled | Failed | Deferred] = []
        for guess in (*chunk.tokens[len(chunk.tokens) - chunk.guesses :], None):
            if self.poisonous(occupant.history):
                return [*outcomes, Failed(chunk.slot, self._failure())]
            outcomes.append(self._sample(chunk, occupant))
            if occupant.history[-1] != guess or isinstance(outcomes[-1], Failed):
                break
            assert occupant.computed is not None
            occupant.computed += 1
        if len(outcomes) <= chunk.guesses:
            self._go_back(chunk, occupant)
        return outcomes

    def _go_back(self, chunk: Chunk, occupant: Occupant) -> None:
        """Let the state be that before the uncertain tokens."""
        if self.snapshots:
            occupant.computed = certain = chunk.start + len(chunk.tokens) - chunk.uncertain
            self.states[chunk.slot] = state_after(occupant.history[:certain])

    def _failure(self) -> NonFiniteLogitsError:
        return NonFiniteLogitsError("the logits are NaN", logits=self.figures)

    def _sample(self, chunk: Chunk, occupant: Occupant) -> Sampled | Failed:
        history = occupant.history
        token = self._choose(occupant, history)
        if occupant.grammar is not None:
            try:
                allowed = tokens_of(occupant.grammar.next_mask(occupant.unseen))
            except GrammarError as error:
                return Failed(chunk.slot, error)
            if allowed and token not in allowed:  # an empty mask allows all
                token = self._draw(allowed, occupant, history)
            occupant.unseen = [token]
        history.append(token)
        bound = mirostat_bound(history, occupant.params)
        return Sampled(chunk.slot, token, math.nan, mu=bound)

    def _check_window(
        self, chunk: Chunk, number: int, window: WindowPages, history: Sequence[int]
    ) -> None:
        """Check that the chunk's pages hold its window, and no page before it."""
        memory, of = self.windows[number], self.window_content[number]
        first = memory.first_page(chunk.start)
        assert window.first == first or (self.may_go_back and window.first < first), "pages behind"
        assert len(window.pages) <= memory.reach
        stored = [token for page in window.pages for token in of[page]]
        seen = max(0, chunk.start - memory.positions + 1)
        begin = seen - window.first * PAGE_TOKENS
        assert stored[begin : begin + len(history) - seen] == history[seen:], "another window"

    def _score(self, chunk: Chunk) -> Scored | Failed:
        """Scores of the chunk's targets. The chunk has been written, and its history is right."""
        assert chunk.score is not None
        history, scores = self.slots[chunk.slot].history, []
        for after, target in enumerate(chunk.score.targets, chunk.start + chunk.score.first):
            assert chunk.start <= after < chunk.start + len(chunk.tokens), "not of this chunk"
            assert history[after + 1] == target
            if self.poisonous(history[: after + 1]):
                return Failed(chunk.slot, self._failure())
            scores.append(score(history[: after + 1], target, chunk.score.top))
        return Scored(chunk.slot, tuple(scores))

    def _pool(self, chunk: Chunk) -> list[Pooled | Failed]:
        if chunk.pool is None:
            return []
        occupant = self.slots[chunk.slot]
        occupant.pooled += chunk.tokens[chunk.pool.first :]
        if not chunk.pool.complete:
            return []
        assert occupant.computed == len(occupant.history)
        if self.poisonous(occupant.history):
            return [Failed(chunk.slot, NonFiniteLogitsError("the states are NaN"))]
        assert isinstance(occupant.params, EmbeddingParams), "others pool nothing"
        if occupant.params.pooling is Pooling.NONE:
            return [Pooled(chunk.slot, embeddings_of(occupant.pooled))]
        cls = occupant.params.pooling is Pooling.CLS
        return [Pooled(chunk.slot, embedding(occupant.pooled[:1] if cls else occupant.pooled))]
