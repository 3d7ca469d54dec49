"""Masks and biases: an edit that cannot be computed ends only its own request."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest

from heddle.errors import EngineFailedError, GrammarError, HeddleError
from heddle.executors.cpu import mask_threads
from heddle.executors.cpu.logit_edits import LogitEdits
from heddle.sampling_params import SamplingParams
from heddle.step import Binding, Chunk
from heddle.token_rules import LogitEdit, TokenRules
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


@dataclass
class Grammar:
    """Allows the tokens that it observed last, or fails."""

    failure: Exception | None = None

    def begin(self) -> Grammar:
        return self

    def next_mask(self, tokens: Sequence[int]) -> bytes:
        if self.failure is not None:
            raise self.failure
        return bytes(tokens)

    def rewind(self, count: int) -> bool:
        raise AssertionError(f"{count} tokens were not guessed")


@dataclass
class Sampler:
    masks: list[bytes] = field(default_factory=list)
    biases: list[list[float]] = field(default_factory=list)

    def edit(self, *edits: LogitEdit) -> None:
        self.masks += [edit.mask for edit in edits]
        self.biases += [np.frombuffer(edit.bias, np.float32).tolist() for edit in edits]


def chunks(*slots: int, guesses: Sequence[int] = ()) -> list[Chunk]:
    return [Chunk(slot, 0, [1, *guesses], [0], True, guesses=len(guesses)) for slot in slots]


def bind(masks: LogitEdits, slot: int, grammar: Grammar | None, output: list[int]) -> None:
    masks.bind(Binding(slot, SamplingParams(seed=1), [1], output, TokenRules(grammar=grammar)))


@pytest.fixture
def two() -> Callable[[Exception], tuple[LogitEdits, list[Sampler]]]:
    """Make masks of slots 0 and 1; the mask of slot 0 raises the given failure."""

    def made(failure: Exception) -> tuple[LogitEdits, list[Sampler]]:
        masks, samplers = LogitEdits(), [Sampler(), Sampler()]
        bind(masks, 0, Grammar(failure), [])
        bind(masks, 1, Grammar(), [7])
        fill = masks.begin_edits(chunks(0, 1), dict(enumerate(samplers)))
        assert fill is not None
        fill()
        return masks, samplers

    return made


@pytest.mark.usefixtures("masks_in_time")
@pytest.mark.parametrize(
    ("failure", "told"),
    [(GrammarError("too much"), GrammarError), (RuntimeError("a bug"), EngineFailedError)],
)
def test_a_grammar_that_fails_ends_its_own_request(
    two: Callable, failure: Exception, told: type[HeddleError]
) -> None:
    masks, samplers = two(failure)
    assert [sampler.masks for sampler in samplers] == [[b""], [b"\7"]]
    assert isinstance(masks.failure(0), told)
    assert str(failure) in str(masks.failure(0))
    assert masks.failure(1) is None
    bind(masks, 0, None, [])
    assert masks.failure(0) is None, "whoever comes next has no part in it"


@pytest.mark.usefixtures("masks_in_time")
def test_a_grammar_gets_the_tokens_since_its_last_mask(two: Callable) -> None:
    masks, samplers = two(GrammarError("too much"))
    masks.observe(1, [3])
    masks.observe(1, [4])
    masks.begin_edits(chunks(1), {1: samplers[1]})()
    assert samplers[1].masks == [b"\7", b"\3\4"]


def test_a_late_mask_is_used_in_a_later_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_threads, "PATIENCE", 0.5)  # enough for slot 1
    gate = threading.Event()

    class Slow(Grammar):
        def next_mask(self, tokens: Sequence[int]) -> bytes:
            assert gate.wait(PATIENCE)
            return bytes(tokens)

    masks, samplers = LogitEdits(), [Sampler(), Sampler()]
    bind(masks, 0, Slow(), [5])
    bind(masks, 1, Grammar(), [7])
    fill(masks, samplers)
    assert [sampler.masks for sampler in samplers] == [[b"\0"], [b"\7"]]
    late = masks.late(0)
    assert late is not None
    assert masks.late(1) is None
    masks.observe(1, [8])
    gate.set()
    late.result(PATIENCE)
    fill(masks, samplers)
    assert [sampler.masks[1:] for sampler in samplers] == [[b"\5"], [b"\10"]]
    assert masks.late(0) is None


@pytest.mark.usefixtures("masks_in_time")
def test_a_mask_that_waits_is_not_made_for_a_sequence_that_has_left() -> None:
    gate, told = threading.Event(), list[list[int]]()

    class Slow(Grammar):
        def next_mask(self, tokens: Sequence[int]) -> bytes:
            assert gate.wait(PATIENCE)
            return bytes(tokens)

    class Telling(Grammar):
        def next_mask(self, tokens: Sequence[int]) -> bytes:
            told.append(list(tokens))
            return bytes(tokens)

    masks, samplers = LogitEdits(), [Sampler(), Sampler()]
    bind(masks, 0, Slow(), [5])
    bind(masks, 1, Telling(), [7])
    assert masks.begin_edits(chunks(0, 1), dict(enumerate(samplers))) is not None
    bind(masks, 1, Telling(), [8])
    gate.set()
    fill(masks, samplers)
    assert told == [[8]]


def fill(masks: LogitEdits, samplers: list[Sampler]) -> None:
    give = masks.begin_edits(chunks(0, 1), dict(enumerate(samplers)))
    assert give is not None
    give()


@pytest.mark.usefixtures("masks_in_time")
def test_a_thread_that_does_not_start_ends_only_the_request(monkeypatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    masks, samplers = LogitEdits(), [Sampler(), Sampler()]
    bind(masks, 0, Grammar(), [5])
    bind(masks, 1, None, [7])
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", start)
        fill(masks, samplers)
    assert "can't start new thread" in str(masks.failure(0))
    assert masks.failure(1) is None
    bind(masks, 0, Grammar(), [5])
    fill(masks, samplers)
    assert masks.failure(0) is None
    assert samplers[0].masks == [b"", b"\5"]


@dataclass
class Letters:
    """Allows the token after the last one, and those after it that are named."""

    can_rewind: bool
    also: tuple[int, ...] = ()
    seen: list[int] = field(default_factory=list)
    calls: list[list[int]] = field(default_factory=list)

    def begin(self) -> Letters:
        self.seen = []
        return self

    def next_mask(self, tokens: Sequence[int]) -> bytes:
        self.calls.append(list(tokens))
        self.seen += tokens
        allowed = {len(self.seen), *self.also}
        return sum(1 << token for token in allowed).to_bytes(2, "little")

    def rewind(self, count: int) -> bool:
        del self.seen[len(self.seen) - count :]
        return self.can_rewind


@pytest.mark.usefixtures("masks_in_time")
@pytest.mark.parametrize("can_rewind", [True, False])
def test_masks_after_guesses_and_the_way_back(can_rewind: bool) -> None:
    grammar, sampler = Letters(can_rewind, also=(9,)), Sampler()
    masks = LogitEdits()
    bind(masks, 0, grammar, [9, 9])  # type: ignore[arg-type]

    def masks_of(*guesses: int) -> list[list[int]]:
        sampler.masks.clear()
        give = masks.begin_edits(chunks(0, guesses=guesses), {0: sampler})  # type: ignore[dict-item]
        assert give is not None
        give()
        return [[t for t in range(16) if mask[t // 8] >> t % 8 & 1] for mask in sampler.masks]

    assert masks_of(2, 3, 9, 6) == [[2, 9], [3, 9], [4, 9], [5, 9]]  # 6 is not allowed there
    masks.observe(0, [2, 9])  # the first guess was right
    assert masks_of(4) == [[4, 9], [5, 9]]
    assert grammar.seen == [9, 9, 2, 9, 4]
    masks.observe(0, [4, 5])
    assert masks_of() == [[6, 9]]
    assert grammar.seen == [9, 9, 2, 9, 4, 5]
    again = [call for call in grammar.calls if len(call) > 3]
    assert again == ([] if can_rewind else [[9, 9, 2, 9]])


def test_late_masks_of_other_guesses_are_not_used() -> None:
    gate = threading.Event()

    class Slow(Letters):
        def next_mask(self, tokens: Sequence[int]) -> bytes:
            assert gate.wait(PATIENCE)
            return super().next_mask(tokens)

    masks, sampler = LogitEdits(), Sampler()
    bind(masks, 0, Slow(True, also=(7,)), [])  # type: ignore[arg-type]
    for guesses in ((0, 1), (0, 7)):
        give = masks.begin_edits(chunks(0, guesses=guesses), {0: sampler})  # type: ignore[dict-item]
        assert give is not None
        give()
        gate.set()
        if (late := masks.late(0)) is not None:
            late.result(PATIENCE)
    allowed = [[t for t in range(16) if mask[t // 8] >> t % 8 & 1] for mask in sampler.masks[1:]]
    assert allowed == [[0, 7], [1, 7]], "the mask after 0, 1 is not the one after 0, 7"


class Counted:
    """Adds the length of the output to the logit of the prompt's first token."""

    def __init__(self, bias: float = 0.0, *, rewinds: bool = False) -> None:
        self.begun = 0
        self._extra, self._rewinds = bias, rewinds

    def begin(self, prompt: Sequence[int]) -> Counted:
        self.begun += 1
        self._place, self._seen = prompt[0], 0
        return self

    def next_bias(self, tokens: Sequence[int]) -> NDArray[np.float32] | None:
        self._seen += len(tokens)
        if self._seen == 1:
            return None
        bias = np.zeros(self._place + 1, np.float32)
        bias[self._place] = self._seen + self._extra
        return bias

    def rewind(self, count: int) -> bool:
        self._seen -= count
        return self._rewinds


def bind_processors(edits: LogitEdits, *processors: Counted, output: Sequence[int] = ()) -> None:
    rules = TokenRules(processors=processors)
    edits.bind(Binding(0, SamplingParams(seed=1), [1, 2], output, rules))


def biases(edits: LogitEdits, guesses: Sequence[int] = ()) -> list[list[float]]:
    sampler = Sampler()
    give = edits.begin_edits(chunks(0, guesses=guesses), {0: sampler})
    assert give is not None
    give()
    return sampler.biases


@pytest.mark.usefixtures("masks_in_time")
@pytest.mark.parametrize("rewinds", [True, False])
def test_a_processor_follows_the_tokens_and_not_the_guesses(rewinds: bool) -> None:
    edits, processor = LogitEdits(), Counted(rewinds=rewinds)
    bind_processors(edits, processor, output=[5, 6])
    assert biases(edits, [7, 8]) == [[0, 2], [0, 3], [0, 4]]
    edits.observe(0, [7, 9])
    assert biases(edits) == [[0, 4]]
    assert processor.begun == (1 if rewinds else 2), "one that cannot go back begins again"


@pytest.mark.usefixtures("masks_in_time")
def test_biases_of_processors_add_up() -> None:
    edits = LogitEdits()
    bind_processors(edits, Counted(0.5), Counted(-4.0), output=[5])
    assert biases(edits) == [[]], "none of them adds anything"
    edits.observe(0, [6])
    assert biases(edits) == [[0, 0.5]]


@pytest.mark.usefixtures("masks_in_time")
@pytest.mark.parametrize("bias", [math.inf, math.nan])
def test_a_bias_that_cannot_be_added_ends_its_request(bias: float) -> None:
    edits = LogitEdits()
    bind_processors(edits, Counted(bias))
    biases(edits)
    failure = edits.failure(0)
    assert isinstance(failure, EngineFailedError)
    assert "logits processor failed: a bias must be a row of numbers below infinity" in str(failure)


@pytest.mark.usefixtures("masks_in_time")
def test_an_error_of_a_processor_is_the_error_of_its_request() -> None:
    class Refusing(Counted):
        def next_bias(self, tokens: Sequence[int]) -> NDArray[np.float32] | None:
            raise GrammarError("not here", param="logits_processors")

    edits = LogitEdits()
    bind_processors(edits, Refusing())
    biases(edits)
    assert isinstance(edits.failure(0), GrammarError)
