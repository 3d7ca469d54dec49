"""A step with guesses gives the tokens that steps without guesses give one by one."""

# Outcomes are unions; each test knows which member its plan gives.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_files import GREEDY, SMALL, tiny_file

from devices import EXECUTORS, load_on
from heddle import _native
from heddle.executors.devices import loader
from heddle.sampling_params import SamplingParams
from heddle.step import Binding, Chunk, Deferred, Failed, Sampled, StepPlan
from heddle.token_rules import TokenRules
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from heddle.executor import Executor
    from heddle.step import Outcome

pytestmark = pytest.mark.usefixtures("masks_in_time")

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
LOGGED = replace(GREEDY, logprobs=3)
PARAMS = {
    "greedy": LOGGED,
    "drawn": replace(LOGGED, temperature=1.5, seed=5),
    "penalised": replace(
        LOGGED, temperature=1.0, seed=6, repetition_penalty=1.5, frequency_penalty=1.0, top_k=9
    ),
    "surprised": replace(LOGGED, temperature=1.0, seed=7, mirostat=2),
    "diluted": replace(LOGGED, temperature=1.0, seed=8, dry_multiplier=1.0, xtc_probability=0.5),
    "worded": replace(LOGGED, min_tokens=5, temperature=2.0, seed=9),
}
RULES = {"worded": TokenRules(end_tokens=(2, 3, 4), bad_sequences=((7,), (5, 6)))}


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest, tmp_path: Path) -> Executor:
    return load_on(request.param, tiny_file(tmp_path), SMALL)


def one_by_one(executor: Executor, binding: Binding, count: int) -> list[Outcome]:
    tokens = list(binding.prompt)
    bindings: tuple[Binding, ...] = (binding,)
    outcomes: list[Outcome] = []
    computed = 0
    for _ in range(count):
        chunk = Chunk(0, computed, tokens[computed:], [0, 1], True)
        outcomes += execute(executor, StepPlan(bindings, (chunk,))).sampled
        computed, bindings = len(tokens), ()
        tokens.append(outcomes[-1].token)
    return outcomes


def with_guesses(
    executor: Executor, binding: Binding, guesses: Sequence[Sequence[int]]
) -> list[list[Sampled | Failed | Deferred]]:
    """The outcomes of each step; the first step has the prompt and no guesses."""
    tokens, steps, computed = list(binding.prompt), [], 0
    bindings: tuple[Binding, ...] = (binding,)
    for guessed in ((), *guesses):
        chunk_tokens = [*tokens[computed:], *guessed]
        chunk = Chunk(0, computed, chunk_tokens, [0, 1], True, guesses=len(guessed))
        outcomes = list(execute(executor, StepPlan(bindings, (chunk,))).sampled)
        steps.append(outcomes)
        computed, bindings = len(tokens) + len(outcomes) - 1, ()
        tokens += [outcome.token for outcome in outcomes]
    return steps


@pytest.mark.parametrize("kind", PARAMS)
def test_right_guesses_are_confirmed_and_the_first_wrong_one_ends_the_step(executor, kind):
    binding = Binding(0, PARAMS[kind], PROMPT, [], RULES.get(kind, TokenRules()))
    alone = one_by_one(executor, binding, 12)
    said = [outcome.token for outcome in alone]
    wrong = (said[5] + 1) % executor.shape.vocabulary
    steps = with_guesses(
        executor,
        binding,
        [said[1:4], [wrong, *said[6:8]], [said[6], wrong, said[8]], said[8:10], [], said[11:12]],
    )
    assert [len(step) for step in steps][:4] == [1, 4, 1, 2 + (said[7] == wrong)]
    flat = [outcome for step in steps for outcome in step][: len(alone)]
    # Mirostat's bound is the one after a step: earlier tokens of the step have it too.
    assert [replace(one, mu=None) for one in flat] == [replace(one, mu=None) for one in alone]
    ends = np.cumsum([len(step) for step in steps]) - 1
    for end in ends[ends < len(alone)]:
        assert flat[end].mu == alone[end].mu


def test_guesses_in_company(executor):
    """Neighbours with and without guesses change nothing."""
    bindings = tuple(
        Binding(slot, PARAMS[kind], PROMPT, []) for slot, kind in enumerate(["drawn", "greedy"])
    )
    alone = [one_by_one(executor, replace(binding, slot=0), 4) for binding in bindings]
    said = [[outcome.token for outcome in outcomes] for outcomes in alone]
    chunks = tuple(Chunk(slot, 0, PROMPT, [2 + slot], True) for slot in range(2))
    execute(executor, StepPlan(bindings, chunks))
    chunks = tuple(
        Chunk(
            slot,
            len(PROMPT),
            [said[slot][0], *said[slot][1 : 1 + count]],
            [2 + slot],
            True,
            guesses=count,
        )
        for slot, count in enumerate((2, 1))
    )
    both = execute(executor, StepPlan((), chunks)).sampled
    assert [outcome.slot for outcome in both] == [0, 0, 0, 1, 1]
    assert [outcome.token for outcome in both] == said[0][1:4] + said[1][1:3]
    expected = [replace(one, slot=0) for one in both]
    assert expected == alone[0][1:4] + alone[1][1:3]


class Rising:
    """Allows the two tokens after the last one. Counts the tokens that it was given."""

    def __init__(self) -> None:
        self.last = 3

    def begin(self) -> Rising:
        return Rising()

    def next_mask(self, tokens: Sequence[int]) -> bytes:
        self.last = tokens[-1] if tokens else self.last
        return (0b110 << self.last).to_bytes(8, "little")

    def rewind(self, count: int) -> bool:
        return False


def test_a_grammar_forbids_and_the_way_back_is_found(executor):
    params = SamplingParams(temperature=3.0, seed=3, max_tokens=20)
    binding = Binding(0, params, PROMPT, [], TokenRules(grammar=Rising()))  # type: ignore[arg-type]
    said = [outcome.token for outcome in one_by_one(executor, binding, 9)]
    other = said[1] + 1 if said[1] - said[0] == 1 else said[1] - 1  # allowed, and not drawn
    guesses = [[other, other + 1], said[2:4], [said[5], 1], said[7:9]]
    steps = with_guesses(executor, binding, guesses)
    assert [len(step) for step in steps] == [1, 1, 3, 2, 2 + 1]
    assert [outcome.token for step in steps for outcome in step][:9] == said


def test_a_failure_after_right_guesses_keeps_them(executor):
    """No token is left after the second output token."""
    params = replace(GREEDY, logprobs=None)

    class Two(Rising):
        def begin(self) -> Two:
            return Two()

        def next_mask(self, tokens: Sequence[int]) -> bytes:
            self.last = self.last + len(tokens)
            return bytes([0, 2, 0]) if self.last < 5 else bytes(3)

    binding = Binding(0, params, PROMPT, [], TokenRules(grammar=Two()))  # type: ignore[arg-type]
    steps = with_guesses_until_failure(executor, binding, [9, 9, 9])
    assert [type(outcome) for outcome in steps] == [Sampled, Failed]
    assert f"after {len(PROMPT) + 2} tokens" in steps[1].error.message


def with_guesses_until_failure(executor, binding, guesses):
    first = Chunk(0, 0, binding.prompt, [0, 1], True)
    (token,) = execute(executor, StepPlan((binding,), (first,))).sampled
    chunk = Chunk(0, len(PROMPT), [token.token, *guesses], [0, 1], True, guesses=len(guesses))
    return execute(executor, StepPlan((), (chunk,))).sampled


def test_native_steps_with_bad_guesses_are_refused(tmp_path):
    executor = loader("cpu")(tiny_file(tmp_path), SMALL)
    sampler = _native.Sampler(_native.SamplerParams({}, []))
    ids, positions = np.array([3, 1, 4], np.int32), np.array([0, 1, 2], np.int32)
    spans, pages = np.array([[0, 3, 0, 0, 0]], np.int32), np.array([0], np.int32)
    for rows, guesses in (([2], [1]), ([0, 2], [1]), ([1, 2], [0]), ([2], [-1]), ([2], [0, 0])):
        arrays = ids, positions, spans, pages, np.array(rows, np.int32)
        with pytest.raises(ValueError, match=r"sampler|guesses"):
            executor._program.begin(*arrays, [sampler], guesses=guesses)
