"""The duties of every executor (`heddle.executor.Executor`), on each device of the registry."""

# Outcomes are unions; each test knows which member its plan gives.
# mypy: disable-error-code="attr-defined, assignment, return-value"

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_files import GREEDY, PROMPT, SMALL, one_token_plan, page_table, tiny_file

from devices import load_on
from heddle import _native
from heddle.embedding import EmbeddingParams, Pooling
from heddle.errors import (
    GrammarError,
    HeddleError,
    NothingAllowedError,
    StepAbandonedError,
)
from heddle.process_memory import machine_memory
from heddle.sampling_params import SamplingParams
from heddle.state import PAGE_TOKENS
from heddle.step import (
    Binding,
    Chunk,
    Failed,
    PageCopy,
    Pool,
    Scoring,
    StepPlan,
    StepResult,
)
from heddle.token_rules import TokenRules
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from models.tiny.llama import MODELS as LLAMA
from models.tiny.llama import PLAIN
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.executor import Executor

pytestmark = pytest.mark.usefixtures("masks_in_time")


def test_a_claimed_context_costs_no_memory(device, tmp_path):
    executor = load_on(device, tiny_file(tmp_path, {"llama.context_length": 2**50}), SMALL)
    assert executor.shape.context == 2**50
    assert executor.memory.pages == SMALL.kv_cache // executor.memory.token_page_bytes
    assert execute(executor, one_token_plan()).sampled[0].token >= 0


def test_a_copied_page_gives_the_same_token_as_the_original(device, tmp_path):
    """Page 1 has eight tokens. The ninth is computed after page 1, an empty page and a copy."""
    executor = load_on(device, tiny_file(tmp_path), SMALL)
    binding = Binding(0, replace(GREEDY, logprobs=5), [3], [])
    eight = Chunk(0, 0, [3, 1, 4, 1, 5, 9, 2, 6], [1], True)
    execute(executor, StepPlan((binding,), (eight,)))

    def ninth(page: int, *copies: PageCopy) -> StepResult:
        return execute(executor, StepPlan((), (Chunk(0, 8, [7], [page], True),), copies))

    expected = ninth(1)
    assert ninth(2) != expected, "or the page's content would not matter"
    assert ninth(2, PageCopy(1, 2)) == expected


@pytest.mark.parametrize(
    ("device", "isa"), [("reference", "auto"), *(("cpu", isa) for isa in _native.isa_levels())]
)
def test_equal_logits_rank_by_token_id(device, isa, tmp_path):
    """Equal rows of the output matrix give equal logits; ranks are places in `top`."""
    table = next(t for t in PLAIN.tensors() if t.name == "token_embd.weight")
    rows = np.frombuffer(table.data, np.float32).reshape(PLAIN.vocabulary, PLAIN.width).copy()
    equal = [2, 5, 9, 20]
    rows[equal] = rows[2]
    file = tiny_file(tmp_path, tensors={table.name: replace(table, data=rows.tobytes())})
    executor = load_on(device, file, replace(SMALL, isa=isa))
    scores = []
    for target in range(PLAIN.vocabulary):
        chunk = Chunk(0, 0, [3], [0], False, Scoring(0, [target], PLAIN.vocabulary))
        (scored,) = execute(executor, StepPlan((), (chunk,))).scored
        scores.append(scored.scores[0])
    assert len({scores[token].logprob for token in equal}) == 1
    first = scores[2].rank
    assert [scores[token].rank for token in equal] == [first, first + 1, first + 2, first + 3]
    assert [token for token, _ in scores[0].top] == sorted(range(32), key=lambda t: scores[t].rank)


@pytest.mark.parametrize("copy", [PageCopy(0, 10**6), PageCopy(-1, 0), PageCopy(0, 0)])
def test_a_page_copy_needs_two_different_valid_pages(device, tmp_path, copy):
    executor = load_on(device, tiny_file(tmp_path), SMALL)
    with pytest.raises(HeddleError, match="refused"):
        execute(executor, replace(one_token_plan(), copies=(copy,)))


def test_a_plan_out_of_range_is_refused_before_anything_runs(device, tmp_path):
    executor = load_on(device, tiny_file(tmp_path), SMALL)
    for plan in (
        one_token_plan(token=PLAIN.vocabulary),
        one_token_plan(token=-1),
        one_token_plan(page=executor.memory.pages),
        StepPlan((), (Chunk(0, PAGE_TOKENS, [1], [0], False),)),
    ):
        with pytest.raises(HeddleError, match="refused"):
            execute(executor, plan)
    assert execute(executor, one_token_plan()).sampled[0].token >= 0


# --- submit and collect --------------------------------------------------------------------------


def test_work_between_submit_and_collect_changes_nothing(executor):
    alone = execute(executor, one_token_plan())
    computed = executor.compute_seconds
    assert computed > 0
    executor.submit(one_token_plan())
    np.linalg.norm(np.ones((300, 300)), 2)  # the caller's own work
    assert executor.collect() == alone
    assert executor.compute_seconds > computed


def test_a_plan_that_is_refused_leaves_nothing_to_collect(executor):
    with pytest.raises(HeddleError, match="refused"):
        executor.submit(one_token_plan(token=-1))
    assert execute(executor, one_token_plan()).sampled[0].token >= 0


def test_abandoned_and_later_steps_have_no_result(executor):
    executor.submit(one_token_plan())
    executor.abandon()
    with pytest.raises(StepAbandonedError):
        executor.collect()
    with pytest.raises(StepAbandonedError):
        execute(executor, one_token_plan())
    executor.close()


def test_a_closed_executor_still_reports_its_sizes(executor):
    execute(executor, one_token_plan())
    computed = executor.compute_seconds
    executor.submit(one_token_plan())
    executor.close()
    executor.close()
    assert executor.memory.pages * executor.memory.token_page_bytes > 0
    assert executor.shape.vocabulary == PLAIN.vocabulary
    assert executor.compute_seconds >= computed > 0
    assert "KV cache" in executor.summary


def test_the_work_of_an_executor_is_that_of_its_model(executor):
    work, width = executor.work, PLAIN.width
    attention = 2 * PLAIN.q_width * width + 2 * PLAIN.kv_width * width
    layer = attention + 3 * width * PLAIN.ffn_width
    assert work.token_multiply_adds == PLAIN.layers * layer
    assert work.row_multiply_adds == PLAIN.vocabulary * width
    assert len(work.kv_layers) == PLAIN.layers
    assert work.weight_bytes > 0


# --- exactness -----------------------------------------------------------------------------------


def prefill(executor: Executor, cuts: Sequence[int], slot: int = 0, first: int = 0) -> StepResult:
    """Compute PROMPT in chunks. Return the result of the last one, with five logprobs."""
    binding = Binding(slot, replace(GREEDY, logprobs=5), PROMPT, [])
    result, bindings = StepResult(()), (binding,)
    for start, end in pairwise([0, *cuts, len(PROMPT)]):
        pages, last = page_table(first, end), end == len(PROMPT)
        chunk = Chunk(slot, start, PROMPT[start:end], pages, sample=last)
        result, bindings = execute(executor, StepPlan(bindings, (chunk,))), ()
    return result


@pytest.mark.parametrize("cuts", [[1], [7, 8, 31], [32], list(range(1, len(PROMPT)))])
def test_a_prompt_in_chunks_gives_the_same_bits(executor, cuts):
    assert prefill(executor, cuts) == prefill(executor, [])


def test_a_sequence_beside_another_gives_the_same_bits(executor):
    alone = prefill(executor, [])
    binding = Binding(0, replace(GREEDY, logprobs=5), PROMPT, [])
    other = Binding(1, SamplingParams(seed=3), [7, 7, 7], [])
    mine = Chunk(0, 0, PROMPT, page_table(0, len(PROMPT)), True)
    beside = Chunk(1, 0, [7, 7, 7], [3], True)
    result = execute(executor, StepPlan((other, binding), (beside, mine)))
    assert result.sampled[1:] == alone.sampled


def test_pages_that_were_read_can_be_written_elsewhere(executor):
    expected = prefill(executor, [32])
    content = executor.read_page(0)
    assert len(content) == executor.memory.token_page_bytes
    executor.write_page(2, content)
    chunk = Chunk(0, 32, PROMPT[32:], [2, 3], True)
    binding = Binding(0, replace(GREEDY, logprobs=5), PROMPT, [])
    assert execute(executor, StepPlan((binding,), (chunk,))) == expected


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.9, seed=5, logprobs=2, repetition_penalty=1.3),
        SamplingParams(temperature=1.2, seed=6, mirostat=2),
    ],
)
def test_preemption_changes_no_token(executor, params):
    def generate(binding: Binding, count: int) -> list[object]:
        tokens, outcomes, computed = [*binding.prompt, *binding.output], [], 0
        bindings: tuple[Binding, ...] = (binding,)
        for _ in range(count):
            chunk = Chunk(0, computed, tokens[computed:], page_table(0, len(tokens)), True)
            (outcome,) = execute(executor, StepPlan(bindings, (chunk,))).sampled
            computed, bindings = len(tokens), ()
            tokens.append(outcome.token)
            outcomes.append(outcome)
        return outcomes

    whole = generate(Binding(0, params, PROMPT, []), 6)
    output = [outcome.token for outcome in whole[:3]]
    resumed = generate(Binding(0, params, PROMPT, output, mu=whole[2].mu), 3)
    assert resumed == whole[3:]
    assert (whole[0].mu is None) == (params.mirostat == 0)


def test_the_page_format_depends_on_the_served_context_where_rope_does(device, tmp_path):
    """Keys of one context must not be restored from disk into another."""
    longrope = next(model for model in LLAMA if model.scaling == "longrope")
    for model, differs in ((longrope, True), (PLAIN, False)):
        checkpoint = model.checkpoint(tmp_path)
        formats = set()
        for context in (8, 32):
            executor = load_on(device, checkpoint, replace(SMALL, context=context))
            formats.add(executor.page_format)
            executor.close()
        assert (len(formats) > 1) == differs


# --- scores and embeddings -----------------------------------------------------------------------


def test_scores_equal_the_logprobs_of_the_same_tokens_sampled(executor):
    count = len(PROMPT)
    score = Scoring(0, PROMPT[1:], 3)
    chunk = Chunk(0, 0, PROMPT, page_table(0, count), False, score)
    (scored,) = execute(executor, StepPlan((), (chunk,))).scored
    assert [one.token for one in scored.scores] == PROMPT[1:]
    binding = Binding(1, replace(GREEDY, logprobs=3), PROMPT[:10], [])
    sample = Chunk(1, 0, PROMPT[:10], [2], True)
    (sampled,) = execute(executor, StepPlan((binding,), (sample,))).sampled
    assert scored.scores[9].top == sampled.top
    first, second = (
        StepPlan((), (Chunk(0, *at, page_table(0, count), False, part),))
        for at, part in (
            ((0, PROMPT[:20]), Scoring(0, PROMPT[1:21], 3)),
            ((20, PROMPT[20:]), Scoring(0, PROMPT[21:], 3)),
        )
    )
    cut = [*execute(executor, first).scored[0].scores, *execute(executor, second).scored[0].scores]
    assert cut == list(scored.scores)
    nothing = Chunk(0, 0, [3], [0], False, Scoring(0, [], 3))
    assert execute(executor, StepPlan((), (nothing,))).scored[0].scores == ()


def embedded(executor, pooling: Pooling, cuts: Sequence[int], *company: Chunk):
    """The embedding of PROMPT in chunks that end at `cuts`, each after the chunks of `company`."""
    bindings: tuple[Binding, ...] = (Binding(0, EmbeddingParams(pooling), PROMPT, []),)
    for start, end in pairwise([0, *cuts, len(PROMPT)]):
        pool = Pool(0, complete=end == len(PROMPT))
        chunk = Chunk(0, start, PROMPT[start:end], page_table(0, end), False, pool=pool)
        result, bindings = execute(executor, StepPlan(bindings, (*company, chunk))), ()
        assert len(result.pooled) == (end == len(PROMPT))
    return result.pooled[0].vector


def test_an_embedding_is_the_same_unit_mean_for_any_chunks(executor):
    whole = embedded(executor, Pooling.MEAN, [])
    assert len(whole) == PLAIN.width
    assert math.isclose(math.fsum(x * x for x in whole), 1.0, rel_tol=1e-6)
    assert embedded(executor, Pooling.MEAN, [5, 33]) == whole


def test_the_states_of_all_tokens_are_the_same_for_any_chunks_and_company(executor):
    whole = embedded(executor, Pooling.NONE, [])
    other = Chunk(1, 0, PROMPT[:3], [3], False)
    assert embedded(executor, Pooling.NONE, [5, 33], other) == whole
    kept = Chunk(0, 0, PROMPT, page_table(0, len(PROMPT)), False, keep_states=len(PROMPT))
    (states,) = execute(executor, StepPlan((), (kept,))).states
    assert states.shape == (len(PROMPT), PLAIN.width)
    assert whole.tobytes() == states.astype(np.float32).tobytes()


# --- grammars and rules --------------------------------------------------------------------------


class Countdown:
    """Allows the tokens 20, 19, 18, ... in turn. Raises `failure` in place of its second mask."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure

    def begin(self) -> Countdown:
        state = Countdown(self.failure)
        state.seen = 0
        return state

    def next_mask(self, tokens: Sequence[int]) -> bytes:
        self.seen += len(tokens)
        if self.seen and self.failure is not None:
            raise self.failure
        return (1 << 20 - self.seen).to_bytes(4, "little")

    def rewind(self, count: int) -> bool:
        self.seen -= count
        return True


def constrained(executor: Executor, rules: TokenRules, output: Sequence[int] = ()) -> list[object]:
    """The outcomes of two steps in slot 0."""
    tokens, bindings = [1, *output], (Binding(0, GREEDY, [1], output, rules),)
    outcomes: list[object] = []
    for computed in (0, len(tokens)):
        chunk = Chunk(0, computed, tokens[computed:], [0], True)
        outcomes += execute(executor, StepPlan(bindings, (chunk,))).sampled
        bindings = ()
        tokens.append(getattr(outcomes[-1], "token", 0))
    return outcomes


def test_a_grammar_continues_after_the_bound_output(executor):
    rules = TokenRules(grammar=Countdown())
    assert [outcome.token for outcome in constrained(executor, rules)] == [20, 19]
    assert [outcome.token for outcome in constrained(executor, rules, [20])] == [19, 18]


@pytest.mark.parametrize("failure", [GrammarError("too much work"), ZeroDivisionError()])
def test_a_grammar_that_fails_ends_its_own_sequence(executor, failure):
    first, second = constrained(executor, TokenRules(grammar=Countdown(failure)))
    assert first.token == 20
    assert isinstance(second, Failed)
    assert isinstance(second.error, HeddleError)
    assert execute(executor, one_token_plan()).sampled[0].token >= 0


def test_rules_that_leave_no_token_end_the_sequence(executor):
    rules = TokenRules(grammar=Countdown(), forbidden=(20,))
    failed = constrained(executor, rules)[0]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, NothingAllowedError)


def test_forbidden_tokens_are_not_sampled(executor):
    (free,) = execute(executor, one_token_plan()).sampled
    binding = Binding(0, GREEDY, [1], [], TokenRules(forbidden=(free.token,)))
    (held,) = execute(executor, StepPlan((binding,), (Chunk(0, 0, [1], [0], True),))).sampled
    assert held.token != free.token


# --- agreement ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4"])
def test_devices_agree_on_tokens_and_log_probabilities(tmp_path, kv_type):
    """The CPU quantises activations to 8 bits only for quantised weights; here none are."""
    file = GGUFCheckpoint.open(replace(PLAIN, head_dim=32).write(tmp_path / "tiny.gguf"))
    config = replace(SMALL, kv_type=kv_type)
    cpu, reference = (
        prefill(load_on(device, file, config), []).sampled[0] for device in ("cpu", "reference")
    )
    assert cpu.token == reference.token
    assert [token for token, _ in cpu.top] == [token for token, _ in reference.top]
    found, expected = ([logprob for _, logprob in one.top] for one in (cpu, reference))
    assert np.allclose(found, expected, atol=2e-3)


def test_the_reference_measures_its_limits(tmp_path):
    limits = load_on("reference", tiny_file(tmp_path), SMALL).measure_limits()
    assert min(limits.multiply_rate, limits.memory_rate, limits.weights_rate) > 0


def test_a_sampler_that_fails_ends_only_its_sequence(executor):
    broken = replace(GREEDY)
    object.__setattr__(broken, "samplers", ("no stage",))
    chunks = tuple(Chunk(slot, 0, [3, 1, 4], [slot], sample=True) for slot in range(2))
    bindings = (Binding(0, GREEDY, [3, 1, 4], []), Binding(1, broken, [3, 1, 4], []))
    alone = execute(executor, StepPlan(bindings[:1], chunks[:1])).sampled[0]
    fine, failed = execute(executor, StepPlan(bindings, chunks)).sampled
    assert fine == alone
    assert (type(failed), failed.slot) == (Failed, 1)
    assert "the request's sampler failed" in failed.error.message
    again = (Binding(1, GREEDY, [3, 1, 4], []),)
    assert execute(executor, StepPlan(again, chunks[1:])).sampled[0].token == alone.token


def test_the_memory_of_the_device_is_known(executor):
    found, machine = executor.device_memory, machine_memory()
    assert machine is not None
    assert found.total == machine.total
    assert 0 < found.free < found.total
