"""What the CPU executor refuses, and what it makes of odd files; results are tested elsewhere."""

from __future__ import annotations

import subprocess
import sys
import time
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gguf_writer import Tensor, write_gguf
from heddle import _native
from heddle.config import EngineConfig
from heddle.errors import (
    ConfigError,
    HeddleError,
    ModelFileError,
    NonFiniteLogitsError,
    OutOfMemoryError,
    UnsupportedModelError,
)
from heddle.executors.cpu import memory
from heddle.executors.cpu.executor import load
from heddle.step import (
    PAGE_TOKENS,
    Binding,
    Chunk,
    PageCopy,
    Scoring,
    StepPlan,
    StepResult,
)
from heddle.types import SamplingParams
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.tensor_types import TensorType
from models.tiny_models import PLAIN

if TYPE_CHECKING:
    from pathlib import Path

GREEDY = SamplingParams(temperature=0, seed=0)
PLAIN_WIDE = replace(PLAIN, head_dim=32)
SMALL = EngineConfig(slots=2, threads=1, kv_cache=1 << 20)


def tiny_file(path: Path, metadata=None, tensors=None) -> GGUFCheckpoint:
    changed = PLAIN.metadata() | (metadata or {})
    kept = [tensors.get(t.name, t) if tensors else t for t in PLAIN.tensors()]
    return GGUFCheckpoint.open(write_gguf(path / "tiny.gguf", changed, [t for t in kept if t]))


# Loads the file of its argument with address space for the stacks of a few threads only.
CROWDED = """
import resource, sys
from pathlib import Path
from heddle.config import EngineConfig
from heddle.errors import ConfigError
from heddle.executors.cpu.executor import load
from heddle.weights.gguf.checkpoint import GGUFCheckpoint

file = GGUFCheckpoint.open(Path(sys.argv[1]))
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (128 << 20), resource.RLIM_INFINITY))
try:
    load(file, EngineConfig(threads=1000, kv_cache=1 << 20))
except ConfigError as error:
    print(error.param, error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts address space as Linux tells it")
def test_threads_that_the_system_does_not_give_are_told(tmp_path: Path) -> None:
    tiny_file(tmp_path)
    command = [sys.executable, "-c", CROWDED, str(tmp_path / "tiny.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("threads the system gives ")
    assert "of 1000 threads" in done.stdout
    assert done.stdout.endswith("; set fewer\n")


def one_token_plan(token: int = 1, page: int = 0) -> StepPlan:
    return StepPlan((Binding(0, GREEDY, [token], []),), (Chunk(0, 0, [token], [page], True),))


def test_a_claimed_context_costs_no_memory(tmp_path):
    executor = load(tiny_file(tmp_path, {"llama.context_length": 2**50}), SMALL)
    assert executor.shape.context == 2**50
    assert executor.pages == SMALL.kv_cache // executor.page_bytes
    assert executor.execute(one_token_plan()).sampled[0].token >= 0


def test_a_closed_executor_holds_nothing_of_the_model(tmp_path):
    executor = load(tiny_file(tmp_path), SMALL)
    executor.execute(one_token_plan())
    weights = weakref.ref(executor._kept[1].output_norm.values)
    computed = executor.compute_seconds
    assert weights() is not None
    executor.close()
    executor.close()
    assert weights() is None
    assert executor.pages * executor.page_bytes > 0
    assert executor.compute_seconds == computed > 0


def test_pages_of_other_cosines_are_others(tmp_path, monkeypatch):
    executor = load(tiny_file(tmp_path), SMALL)
    here, cosine = executor.page_format, np.cos
    assert executor.page_format == here
    monkeypatch.setattr(
        np, "cos", lambda x: np.where(x > 9_000, np.nextafter(cosine(x), 2), cosine(x))
    )
    assert executor.page_format != here


def test_settings_that_do_not_fit_are_named(tmp_path):
    file = tiny_file(tmp_path)
    with pytest.raises(ConfigError, match="kv_cache of 100 bytes does not hold one page"):
        load(file, replace(SMALL, kv_cache=100))
    too_long = PLAIN.metadata()["llama.context_length"] + 1
    with pytest.raises(ConfigError, match="more than the model's"):
        load(file, replace(SMALL, context=too_long))
    levels = _native.isa_levels()
    foreign = "avx512" if "neon" in levels else "neon"
    with pytest.raises(ConfigError, match=f"isa '{foreign}' does not run .* has {levels[0]}"):
        load(file, replace(SMALL, isa=foreign))


def test_q8_0_needs_whole_blocks_of_a_head(tmp_path):
    with pytest.raises(ConfigError, match=r"kv_type q8_0 needs heads of a multiple of 32 .* 16"):
        load(tiny_file(tmp_path), replace(SMALL, kv_type="q8_0"))


def test_q8_0_holds_nearly_twice_the_tokens_in_the_same_bytes(tmp_path):
    PLAIN_WIDE.write(tmp_path / "wide.gguf")
    half, eighth = (
        load(
            GGUFCheckpoint.open(tmp_path / "wide.gguf"), replace(SMALL, kv_type=kv_type, slots=1000)
        )
        for kv_type in ("f16", "q8_0")
    )
    assert half.page_bytes * 34 == eighth.page_bytes * 64
    assert 1.8 * half.pages < eighth.pages <= half.pages * 64 / 34
    assert half.pages * half.page_bytes <= SMALL.kv_cache
    assert "MB in f16 (" in half.summary
    assert "MB in q8_0 (" in eighth.summary


def test_missing_and_misshapen_tensors_are_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.weight is missing"):
        load(tiny_file(tmp_path, tensors={"blk.0.attn_q.weight": None}), SMALL)
    with pytest.raises(ModelFileError, match=r"token_embd\.weight has shape"):
        load(tiny_file(tmp_path, {"llama.vocab_size": PLAIN.vocabulary + 1}), SMALL)


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
def test_hostile_hyperparameters_are_typed_errors(tmp_path, key, value):
    with pytest.raises((ModelFileError, UnsupportedModelError, ConfigError)):
        load(tiny_file(tmp_path, {key: value}), SMALL)


@pytest.mark.parametrize("difference", [-1, 1])
@pytest.mark.parametrize("says_so", [True, False])
def test_a_tokenizer_of_another_size_than_the_embedding_is_refused(tmp_path, difference, says_so):
    """The model would choose tokens that have no text, or be asked for rows that it has not."""
    size = PLAIN.vocabulary
    changes = {
        "tokenizer.ggml.tokens": [str(id) for id in range(size + difference)],
        "llama.vocab_size": size if says_so else None,
    }
    found = rf"is {size}, but the tokenizer has {size + difference} tokens"
    with pytest.raises(ModelFileError, match=found if says_so else "token_embd") as error:
        load(PLAIN.checkpoint(tmp_path, changes), SMALL)
    assert error.value.field == ("llama.vocab_size" if says_so else "token_embd.weight")
    load(PLAIN.checkpoint(tmp_path, changes | {"tokenizer.ggml.tokens": ["t"] * size}), SMALL)


def test_a_poisoned_model_fails_its_sequences_and_not_the_executor(tmp_path):
    poison = next(t for t in PLAIN.tensors() if t.name == "output_norm.weight")
    values = np.full(PLAIN.width, np.nan, np.float32)
    file = tiny_file(tmp_path, tensors={poison.name: replace(poison, data=values.tobytes())})
    executor = load(file, replace(SMALL, allow_nonfinite=True))
    for _ in range(2):
        (failed,) = executor.execute(one_token_plan()).sampled
        assert failed.slot == 0
        assert isinstance(failed.error, NonFiniteLogitsError)
        assert "after the first 1 tokens are NaN or infinite" in failed.error.message


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
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, name, dtype, value):
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
        load(file, SMALL)
    assert e.value.field == name
    load(file, replace(SMALL, allow_nonfinite=True)).close()


def test_rope_divisors_must_be_positive(tmp_path):
    divisors = Tensor.of("rope_freqs.weight", np.zeros(PLAIN.head_dim // 2, np.float32))
    path = write_gguf(tmp_path / "a.gguf", PLAIN.metadata(), [*PLAIN.tensors(), divisors])
    with pytest.raises(ModelFileError, match="positive numbers, got 0"):
        load(GGUFCheckpoint.open(path), SMALL)


def test_a_kv_cache_that_the_machine_cannot_hold_is_refused_with_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_limits", lambda: {"the memory that is available": 10**8})
    huge = EngineConfig(slots=1024, threads=1, kv_cache=100 << 30)
    metadata = {"llama.context_length": 10**6}
    with pytest.raises(
        OutOfMemoryError, match=r"KV cache of 107\.37 GB .* 0\.10 GB: set a smaller"
    ):
        load(tiny_file(tmp_path, metadata), huge)
    load(tiny_file(tmp_path, metadata), replace(huge, kv_cache=1 << 20)).close()


def test_weights_that_the_machine_cannot_hold_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_limits", lambda: {"the memory that is available": 1_000})
    with pytest.raises(OutOfMemoryError, match="take a smaller model") as error:
        load(tiny_file(tmp_path), EngineConfig(threads=1))
    assert error.value.param == "model"


def test_a_copied_page_is_gone_on_from_as_the_original(tmp_path):
    """Eight tokens in page 1; the ninth computed after them, after nothing, and after a copy."""
    executor = load(tiny_file(tmp_path), SMALL)
    binding = Binding(0, replace(GREEDY, logprobs=5), [3], [])
    eight = Chunk(0, 0, [3, 1, 4, 1, 5, 9, 2, 6], [1], True)
    executor.execute(StepPlan((binding,), (eight,)))

    def ninth(page: int, *copies: PageCopy) -> StepResult:
        return executor.execute(StepPlan((), (Chunk(0, 8, [7], [page], True),), copies))

    expected = ninth(1)
    assert ninth(2) != expected, "or the page's content would not matter"
    assert ninth(2, PageCopy(1, 2)) == expected


@pytest.mark.parametrize("isa", _native.isa_levels())
def test_equal_logits_rank_by_token_id(tmp_path, isa):
    """Equal rows of the output matrix give equal logits; ranks are places in `top`."""
    table = next(t for t in PLAIN.tensors() if t.name == "token_embd.weight")
    rows = np.frombuffer(table.data, np.float32).reshape(PLAIN.vocabulary, PLAIN.width).copy()
    equal = [2, 5, 9, 20]
    rows[equal] = rows[2]
    file = tiny_file(tmp_path, tensors={table.name: replace(table, data=rows.tobytes())})
    executor = load(file, replace(SMALL, isa=isa))
    scores = []
    for target in range(PLAIN.vocabulary):
        chunk = Chunk(0, 0, [3], [0], False, Scoring(0, [target], PLAIN.vocabulary))
        (scored,) = executor.execute(StepPlan((), (chunk,))).scored
        scores.append(scored.scores[0])
    assert len({scores[token].logprob for token in equal}) == 1
    first = scores[2].rank
    assert [scores[token].rank for token in equal] == [first, first + 1, first + 2, first + 3]
    assert [token for token, _ in scores[0].top] == sorted(range(32), key=lambda t: scores[t].rank)


@pytest.mark.parametrize("copy", [PageCopy(0, 10**6), PageCopy(-1, 0), PageCopy(0, 0)])
def test_a_page_is_copied_to_another_page_only(tmp_path, copy):
    executor = load(tiny_file(tmp_path), SMALL)
    with pytest.raises(HeddleError, match="refused"):
        executor.execute(replace(one_token_plan(), copies=(copy,)))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_caller_may_work_while_the_step_computes(tmp_path, threads):
    executor = load(tiny_file(tmp_path), replace(SMALL, threads=threads))
    alone = executor.execute(one_token_plan())
    begun, calls = time.perf_counter(), []
    computed = executor.compute_seconds

    def meanwhile():
        start = time.perf_counter()
        time.sleep(0.005)  # work of a known length
        calls.append(time.perf_counter() - start)

    assert executor.execute(one_token_plan(), meanwhile) == alone
    taken = time.perf_counter() - begun
    assert len(calls) == 1
    assert executor.compute_seconds - computed <= taken - calls[0] / threads


def test_what_the_caller_raises_meanwhile_comes_after_the_step(tmp_path):
    executor = load(tiny_file(tmp_path), SMALL)
    with pytest.raises(ZeroDivisionError):
        executor.execute(one_token_plan(), lambda: 1 // 0)
    assert executor.execute(one_token_plan()).sampled


def test_a_refused_plan_leaves_the_callers_work_undone(tmp_path):
    executor, calls = load(tiny_file(tmp_path), SMALL), []
    with pytest.raises(HeddleError, match="refused"):
        executor.execute(one_token_plan(token=-1), lambda: calls.append(1))
    assert not calls


def test_a_plan_out_of_range_is_refused_before_anything_runs(tmp_path):
    executor = load(tiny_file(tmp_path), SMALL)
    for plan in (
        one_token_plan(token=PLAIN.vocabulary),
        one_token_plan(token=-1),
        one_token_plan(page=executor.pages),
        StepPlan((), (Chunk(0, PAGE_TOKENS, [1], [0], False),)),
    ):
        with pytest.raises(HeddleError, match="refused"):
            executor.execute(plan)
    assert executor.execute(one_token_plan()).sampled[0].token >= 0
