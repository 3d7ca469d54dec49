"""The duties of every executor (`heddle.executor.Executor`), on each device of the registry."""

# Outcomes are unions; each test knows which member its plan gives.
# mypy: disable-error-code="attr-defined, assignment, return-value"

from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_files import GREEDY, SMALL, one_token_plan, poisoned_file, tiny_file

from devices import EXECUTORS, load_on
from gguf_writer import Tensor, write_gguf
from heddle import _native
from heddle.embedding import EmbeddingParams, Pooling
from heddle.errors import (
    ConfigError,
    GrammarError,
    HeddleError,
    ModelFileError,
    NonFiniteLogitsError,
    NothingAllowedError,
    StepAbandonedError,
    UnsupportedModelError,
)
from heddle.executor import LogitsSummary
from heddle.executors.devices import loader
from heddle.executors.failures import summarize
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
    WindowPages,
)
from heddle.token_rules import TokenRules
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.tensor_types import TensorType
from models.tiny.gemma3 import TinyGemma3
from models.tiny.llama import MODELS as LLAMA
from models.tiny.llama import PLAIN
from models.window_pages import windows_of
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from heddle.executor import Executor

pytestmark = pytest.mark.usefixtures("masks_in_time")

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7]
PROMPT += [5, 0, 2, 8, 8, 4]
"""More than a page."""


@pytest.fixture(params=EXECUTORS)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def executor(device: str, tmp_path: Path) -> Executor:
    return load_on(device, tiny_file(tmp_path), SMALL)


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"device 'abacus' .*: cpu, .*, torch, cuda") as error:
        loader("abacus")
    assert error.value.param == "device"


@pytest.mark.parametrize("device", ["cpu:0", "cuda:", "cuda:x", "torch:1"])
def test_only_a_gpu_has_a_number(device: str) -> None:
    with pytest.raises(ConfigError, match=f"device '{device}' is unknown"):
        loader(device)


@pytest.mark.parametrize(("device", "extra"), [("torch", "torch"), ("cuda:1", "cuda")])
def test_a_device_without_torch_names_the_extra(device, extra, monkeypatch) -> None:
    for name in [one for one in sys.modules if one.startswith("heddle.extensions.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=rf"install 'heddle\[{extra}\]'") as error:
        loader(device)
    assert error.value.param == "device"


def test_a_claimed_context_costs_no_memory(device, tmp_path):
    executor = load_on(device, tiny_file(tmp_path, {"llama.context_length": 2**50}), SMALL)
    assert executor.shape.context == 2**50
    assert executor.memory.pages == SMALL.kv_cache // executor.memory.token_page_bytes
    assert execute(executor, one_token_plan()).sampled[0].token >= 0


def test_settings_that_do_not_fit_are_named(device, tmp_path):
    file = tiny_file(tmp_path)
    with pytest.raises(ConfigError, match="kv_cache of 100 bytes does not hold one page"):
        load_on(device, file, replace(SMALL, kv_cache=100))
    too_long = PLAIN.metadata()["llama.context_length"] + 1
    with pytest.raises(ConfigError, match="more than the model's"):
        load_on(device, file, replace(SMALL, context=too_long))


def test_q8_0_needs_whole_blocks_of_a_head(device, tmp_path):
    with pytest.raises(ConfigError, match=r"kv_type q8_0 needs heads with a multiple of 32 .* 16"):
        load_on(device, tiny_file(tmp_path), replace(SMALL, kv_type="q8_0"))


def test_missing_and_misshapen_tensors_are_named(device, tmp_path):
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.weight is missing"):
        load_on(device, tiny_file(tmp_path, tensors={"blk.0.attn_q.weight": None}), SMALL)
    with pytest.raises(ModelFileError, match=r"token_embd\.weight has shape"):
        load_on(device, tiny_file(tmp_path, {"llama.vocab_size": PLAIN.vocabulary + 1}), SMALL)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 2**62),
        ("llama.block_count", float("inf")),
        ("llama.embedding_length", 2**40),
        ("llama.attention.head_count", 2**40),
        ("llama.attention.key_length", 2**31),
        ("llama.attention.key_length", 7),
        ("llama.rope.dimension_count", 2**40),
        ("llama.rope.dimension_count", 7),
        ("llama.rope.freq_base", float("nan")),
        ("llama.rope.freq_base", np.array([1e300])),
        ("llama.attention.layer_norm_rms_epsilon", float("inf")),
        ("llama.vocab_size", 2**62),
        ("llama.feed_forward_length", 2**62),
    ],
)
def test_hostile_hyperparameters_are_typed_errors(device, tmp_path, key, value):
    with pytest.raises((ModelFileError, UnsupportedModelError, ConfigError)):
        load_on(device, tiny_file(tmp_path, {key: value}), SMALL)


@pytest.mark.parametrize("difference", [-1, 1])
@pytest.mark.parametrize("says_so", [True, False])
def test_a_tokenizer_of_another_size_than_the_embedding_is_refused(
    device, tmp_path, difference, says_so
):
    """The model would choose tokens without text, or look up rows that it lacks."""
    size = PLAIN.vocabulary
    changes = {
        "tokenizer.ggml.tokens": [str(id) for id in range(size + difference)],
        "llama.vocab_size": size if says_so else None,
    }
    found = rf"is {size}, but the tokenizer has {size + difference} tokens"
    with pytest.raises(ModelFileError, match=found if says_so else "token_embd") as error:
        load_on(device, PLAIN.checkpoint(tmp_path, changes), SMALL)
    assert error.value.field == ("llama.vocab_size" if says_so else "token_embd.weight")
    right = changes | {"tokenizer.ggml.tokens": ["t"] * size}
    load_on(device, PLAIN.checkpoint(tmp_path, right), SMALL).close()


def test_rope_divisors_must_be_positive(device, tmp_path):
    divisors = Tensor.of("rope_freqs.weight", np.zeros(PLAIN.head_dim // 2, np.float32))
    path = write_gguf(tmp_path / "a.gguf", PLAIN.metadata(), [*PLAIN.tensors(), divisors])
    with pytest.raises(ModelFileError, match="positive numbers, got 0"):
        load_on(device, GGUFCheckpoint.open(path), SMALL)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("output_norm.weight", TensorType.F32),
        ("blk.0.attn_norm.weight", TensorType.F32),
        ("blk.1.ffn_down.weight", TensorType.F32),
        ("token_embd.weight", TensorType.F16),
        ("blk.0.attn_q.weight", TensorType.BF16),
        ("blk.0.attn_q.weight", TensorType.Q8_0),
        ("blk.0.ffn_up.weight", TensorType.Q4_1),
    ],
)
def test_weights_that_are_not_finite_are_refused_by_name(device, tmp_path, name, dtype, value):
    """One weight, the scale of one block, or (Q4_1) its minimum."""
    tensor = next(t for t in PLAIN.tensors() if t.name == name)
    size = np.prod(tensor.shape) // dtype.block_elements * dtype.block_bytes
    data = bytearray(tensor.data if dtype is TensorType.F32 else size)
    single = np.array([value], np.float32)
    half = single.astype(np.float16).tobytes()
    raw = {TensorType.F32: single.tobytes(), TensorType.BF16: single.tobytes()[2:]}.get(dtype, half)
    at = {TensorType.Q8_0: 3 * 34, TensorType.Q4_1: 3 * 20 + 2}.get(dtype, 5 * len(raw))
    data[at : at + len(raw)] = raw
    damaged = replace(tensor, data=bytes(data), type=dtype)
    file = tiny_file(tmp_path, tensors={name: damaged})
    with pytest.raises(ModelFileError, match=rf"{name} has infinite or NaN.*allow-nonfinite") as e:
        load_on(device, file, SMALL)
    assert e.value.field == name
    load_on(device, file, replace(SMALL, allow_nonfinite=True)).close()


def test_a_poisoned_model_fails_its_sequences_and_not_the_executor(device, tmp_path):
    poison = next(t for t in PLAIN.tensors() if t.name == "output_norm.weight")
    values = np.full(PLAIN.width, np.nan, np.float32)
    file = tiny_file(tmp_path, tensors={poison.name: replace(poison, data=values.tobytes())})
    executor = load_on(device, file, replace(SMALL, allow_nonfinite=True))
    for _ in range(2):
        (failed,) = execute(executor, one_token_plan()).sampled
        assert failed.slot == 0
        assert isinstance(failed.error, NonFiniteLogitsError)
        assert "NaN or infinite after 1 token (" in failed.error.message


def figures_of(failed: object, length: int) -> None:
    """Check that a failure has the figures of a row of `length` NaN, in its message too."""
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, NonFiniteLogitsError)
    finite = {"minimum": None, "maximum": None, "mean": None}
    counts = {"length": length, "nan": length, "inf": 0, "negative_inf": 0, "negative_rows": 0}
    assert failed.error.logits == counts | finite
    assert f" ({length} values: {length} NaN, 0 inf, 0 -inf; none" in failed.error.message


def test_an_error_has_figures_of_the_row_that_failed(device, tmp_path):
    clean = load_on(device, tiny_file(tmp_path), SMALL)
    prompt = [3, 1, 4]
    binding = Binding(0, GREEDY, prompt, [])
    plan = StepPlan((binding,), (Chunk(0, 0, prompt, [0], True),))
    token = execute(clean, plan).sampled[0].token
    poisoned = poisoned_file(tmp_path, token)
    executor = load_on(device, poisoned, replace(SMALL, allow_nonfinite=True))
    bad = Chunk(1, 0, [2, token], [1], True)
    guessed = Chunk(0, 0, [*prompt, token], [0], True, guesses=1, uncertain=1)
    plan = StepPlan((Binding(1, GREEDY, [2, token], []), binding), (bad, guessed))
    first, fine, second = execute(executor, plan).sampled
    figures_of(first, PLAIN.vocabulary)
    assert fine.token == token
    assert "after 4 tokens" in second.error.message
    figures_of(second, PLAIN.vocabulary)


def test_an_error_of_a_prompt_has_figures_of_its_last_row_that_failed(device, tmp_path):
    executor = load_on(device, poisoned_file(tmp_path, 11), replace(SMALL, allow_nonfinite=True))
    scored = Chunk(0, 0, [3, 11, 4], [0], False, Scoring(0, [11, 4], 0))
    long = Chunk(1, 0, PROMPT, page_table(1, len(PROMPT)), False, Scoring(0, PROMPT[1:], 0))
    fine, failed = execute(executor, StepPlan((), (long, scored))).scored
    assert len(fine.scores) == len(PROMPT) - 1
    figures_of(failed, PLAIN.vocabulary)
    bindings = (Binding(1, EmbeddingParams(Pooling.MEAN), [3, 11], []),)
    embedded = Chunk(1, 0, [3, 11], [1], False, pool=Pool(0, complete=True))
    (failed,) = execute(executor, StepPlan(bindings, (embedded,))).pooled
    figures_of(failed, PLAIN.width)
    each = (Binding(1, EmbeddingParams(Pooling.NONE), [11, 11], []),)
    embedded = replace(embedded, tokens=[11, 11])
    (failed,) = execute(executor, StepPlan(each, (embedded,))).pooled
    figures_of(failed, 2 * PLAIN.width)


def test_a_row_that_a_later_one_replaced_has_no_figures(tmp_path):
    """The native program keeps the logits of 32 rows."""
    executor = load_on("cpu", poisoned_file(tmp_path, 11), replace(SMALL, allow_nonfinite=True))
    scored = Chunk(0, 0, [3, 11, 4], [0], False, Scoring(0, [11, 4], 0))
    for after in (31, 32):
        long = Chunk(1, 0, PROMPT, page_table(1, len(PROMPT)), False, Scoring(0, PROMPT[:after], 0))
        failed, _ = execute(executor, StepPlan((), (scored, long))).scored
        if after == 31:
            figures_of(failed, PLAIN.vocabulary)
        else:
            assert failed.error.logits == {}
            assert "infinite after 3 tokens. The model file" in failed.error.message


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


def page_table(first: int, tokens: int) -> list[int]:
    return list(range(first, first + -(-tokens // PAGE_TOKENS)))


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


# --- windowed layers -----------------------------------------------------------------------------

WINDOWED = TinyGemma3("windowed", heads=4, kv_heads=2, head_dim=16, layers=7, window=40)
LONG = [(7 * i * i + 3 * i) % 31 + 1 for i in range(150)]


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> GGUFCheckpoint:
    path = tmp_path_factory.mktemp("model") / "windowed.gguf"
    metadata = WINDOWED.metadata() | {"gemma3.context_length": 512}
    return GGUFCheckpoint.open(write_gguf(path, metadata, WINDOWED.tensors()))


def long_prompt(executor: Executor, step: int) -> StepResult:
    """Compute LONG in chunks that hold only the pages they attend to. Return the last result."""
    bindings, result = (Binding(0, replace(GREEDY, logprobs=5), LONG, []),), StepResult(())
    for start in range(0, len(LONG), step):
        end = min(start + step, len(LONG))
        chunk = windowed_chunk(executor, start, end)
        result, bindings = execute(executor, StepPlan(bindings, (chunk,))), ()
    return result


def windowed_chunk(executor: Executor, start: int, end: int) -> Chunk:
    windows = windows_of(executor.memory, start, end)
    sample = end == len(LONG)
    return Chunk(0, start, LONG[start:end], page_table(0, end), sample, windows=windows)


def test_released_windowed_pages_change_no_bit(device, windowed):
    config = replace(SMALL, kv_cache=8 << 20)
    whole = load_on(device, windowed, replace(config, batch_tokens=512))
    giving = load_on(device, windowed, replace(config, batch_tokens=16))
    assert not whole.memory.windows
    assert giving.memory.windows
    assert whole.page_format != giving.page_format
    assert long_prompt(giving, 16) == long_prompt(whole, len(LONG)) == long_prompt(giving, 7)


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


def test_a_page_of_each_group_is_read_written_and_copied(device, windowed):
    executor = load_on(device, windowed, replace(SMALL, kv_cache=8 << 20, batch_tokens=16))
    expected = long_prompt(executor, 16)
    chunk = windowed_chunk(executor, 144, 150)
    (window,) = chunk.windows
    content = executor.read_page(chunk.pages[-1], [window.pages[-1]])
    assert len(content) == executor.memory.token_page_bytes
    free = next(i for i in range(executor.memory.windows[0].pages) if i not in window.pages)
    executor.write_page(10, content, [free])
    moved = replace(
        chunk,
        pages=[*chunk.pages[:-1], 10],
        windows=[WindowPages(window.first, [*window.pages[:-1], free])],
    )
    assert execute(executor, StepPlan((), (moved,))) == expected
    executor.write_page(10, bytes(len(content)), [window.pages[-1]])
    copies = (PageCopy(chunk.pages[-1], 10), PageCopy(free, window.pages[-1], window=0))
    back = replace(chunk, pages=moved.pages)
    assert execute(executor, StepPlan((), (back,), copies)) == expected


def test_a_plan_without_pages_that_a_window_reaches_is_refused(device, windowed):
    executor = load_on(device, windowed, replace(SMALL, kv_cache=8 << 20, batch_tokens=16))
    expected = long_prompt(executor, 16)
    chunk = windowed_chunk(executor, 144, 150)
    (window,) = chunk.windows
    for bad in (
        [],
        [WindowPages(window.first + 1, window.pages[1:])],
        [WindowPages(window.first, window.pages[:-1])],
        [WindowPages(window.first, [*window.pages[:-1], 10**6])],
    ):
        with pytest.raises(HeddleError, match="refused"):
            execute(executor, StepPlan((), (replace(chunk, windows=bad),)))
    assert execute(executor, StepPlan((), (chunk,))) == expected


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


def test_devices_agree_on_tokens_and_log_probabilities(tmp_path):
    """The CPU quantises activations to 8 bits only for quantised weights; here none are."""
    cpu, reference = (
        prefill(load_on(device, tiny_file(tmp_path), SMALL), []).sampled[0]
        for device in ("cpu", "reference")
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


def test_logits_are_summarised(executor):
    assert executor.logits_summary() is None
    execute(executor, one_token_plan())
    figures = executor.logits_summary()
    assert (figures.length, figures.nan, figures.inf) == (executor.shape.vocabulary, 0, 0)
    assert (figures.negative_inf, figures.negative_rows) == (0, 0)
    assert figures.minimum < figures.mean < figures.maximum


def test_a_summary_counts_what_is_not_finite() -> None:
    nan, inf = math.nan, math.inf
    rows = [[nan, inf, -1], [-inf, 9, 5], [4, -3, 1], [-inf, -2, -1], [nan, -1, -1]]
    figures = summarize(np.array(rows, np.float32))
    assert figures == LogitsSummary(15, 2, 1, 2, 1, -3.0, 9.0, 1.0)
    assert str(figures) == (
        "15 values: 2 NaN, 1 inf, 2 -inf; the finite ones are -3 to 9; rows with only negative"
        " values: 1"
    )
    assert summarize(np.float32([nan] * 3)) == LogitsSummary(3, 3, 0, 0, 0, None, None, None)
