"""An executor in a process of its own gives the bits that it gives without one."""

# Outcomes are unions; each test knows which member its plan gives.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import gc
import math
import weakref
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from adapters import random_changes
from configs import configured
from devices import APART, load_on
from engram_writer import write_version_2
from heddle.embedding import EmbeddingParams
from heddle.errors import EngineFailedError, GrammarError, StepMemoryError, UnsupportedModelError
from heddle.executors.cpu import mask_threads
from heddle.extensions.engrams.bias import EngramBias
from heddle.extensions.engrams.library import EngramLibrary
from heddle.extensions.processes.load import load_in_process
from heddle.extensions.processes.rules import Rules, RulesReader, RulesWriter
from heddle.sampling_params import SamplingParams, Stage
from heddle.step import AdapterUse, Binding, Chunk, Deferred, Failed, Pool, Scoring, StepPlan
from heddle.token_rules import TokenPieces, TokenRules, TokenSequences
from heddle.weights.low_rank import Whole
from heddle.weights.tensor_types import TensorType
from models.rig import Rig
from models.tiny import gemma3, glm4_moe, llama, qwen3_5
from patience import PATIENCE
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.executor import Executor
    from heddle.extensions.engrams.library import OpenEngram
    from heddle.step import StepResult
    from models.tiny.base import TinyModel

pytestmark = pytest.mark.usefixtures("masks_in_time")

CONFIG = configured(slots=8, threads=1, kv_cache=1 << 20, rank_timeout=30)
SHORT = SamplingParams(temperature=0, max_tokens=6, logprobs=2, ignore_eos=True)
PROMPTS = [[(7 * i * i + 3 * i) % 31 + 1 for i in range(length)] for length in (70, 9, 40)]
PROMPTS.append([*PROMPTS[0][:50], 5, 6])

slow = {"torch, process": pytest.mark.torch_slow}
"""CI runs this device as `cuda` runs it, sampling in its process."""
apart = pytest.mark.parametrize(
    "device", [pytest.param(name, marks=slow.get(name, ())) for name in APART]
)


@apart
@pytest.mark.parametrize("model", [llama.PLAIN, gemma3.MODELS[0], qwen3_5.MODELS[0]], ids=str)
def test_requests_get_the_same_bits(device: str, model: TinyModel, tmp_path: Path) -> None:
    """In chunks, in company, with wrong guesses, from a prefix in memory or on disk."""
    checkpoint = replace(model, context=1024).checkpoint(tmp_path)
    same = {"threads": 1, "kv_cache": 1 << 20}
    alone = Rig(checkpoint, device=APART[device], slots=1, prefix_cache=False, **same)
    bits, page_format = alone.one_by_one(PROMPTS, SHORT), alone.executor.page_format
    alone.close()
    for outputs in (None, bits):
        beside = Rig(
            checkpoint, tmp_path / "disk", outputs, device=device, slots=3, batch_tokens=33, **same
        )
        assert beside.executor.page_format == page_format
        assert beside.run(PROMPTS, SHORT) == bits
        assert beside.run(PROMPTS, SHORT) == bits
        assert max(one or 0 for one in beside.found) >= 32
        beside.close()
    assert beside.tier is not None
    if not beside.executor.memory.fixed:  # prompts are too short for snapshots of states
        assert beside.tier.stats().restored_tokens > 0


class Alternating:
    """Allows odd tokens and even tokens in turns. After `most` tokens, it fails."""

    def __init__(self, most: int = 100, mask: Callable[[], None] = lambda: None) -> None:
        self._most, self._mask, self._seen = most, mask, 0

    def begin(self) -> Alternating:
        return Alternating(self._most, self._mask)

    def next_mask(self, tokens: Sequence[int]) -> bytes:
        self._mask()
        self._seen += len(tokens)
        if self._seen >= self._most:
            raise GrammarError("it takes too much", param="grammar")
        return bytes([0b01010101 << self._seen % 2] * 4)

    def rewind(self, count: int) -> bool:
        self._seen -= count
        return True


def table(folder: Path, **more: int) -> OpenEngram:
    follows = {(token,): {token + 1: 3, 9: 1} for token in range(20)}
    path = write_version_2(folder / "docs.engr", follows, 32, bytes(32))
    return EngramLibrary(alpha=1.0, unchecked=False).load("docs", path)


def every_rule(folder: Path) -> list[tuple[SamplingParams, TokenRules]]:
    """Parameters and rules of slots. Two share each object."""
    params = SamplingParams(temperature=1, seed=3, logprobs=3)
    texts = tuple(bytes([97 + token]) for token in range(32))
    breakers, pieces = TokenSequences(((1,), (2, 3))), TokenPieces(texts, (2,))
    engram = EngramBias(((table(folder).table, 2.0),), alpha=1.5)
    dry = replace(params, dry_multiplier=2.0, dry_allowed_length=1)
    return [
        (params, TokenRules(grammar=Alternating())),
        (params, TokenRules(grammar=Alternating(2))),
        (params, TokenRules(extensions=(engram,))),
        (dry, TokenRules(breakers=breakers, extensions=(engram,))),
        (dry, TokenRules(breakers=breakers, bad_sequences=((4, 5),), forbidden=(7,))),
        (replace(params, samplers=(Stage.INFILL,)), TokenRules(pieces=pieces)),
        (replace(params, mirostat=2), TokenRules(pieces=pieces, end_tokens=(2,))),
        (replace(params, logit_bias={5: 3.0, 6: -math.inf}), TokenRules()),
    ]


def shown(result: StepResult) -> str:
    return repr(
        (result.sampled, result.scored, result.pooled, [one.tobytes() for one in result.states])
    )


def steps_of(executor: Executor, folder: Path) -> list[str]:
    """Results of steps with every sampler; then of scores, embeddings and kept states."""
    rules = every_rule(folder)
    texts = [[slot + 1, 2, 3, slot + 1, 2] for slot in range(len(rules))]
    bindings = tuple(
        Binding(slot, params, texts[slot], [], own) for slot, (params, own) in enumerate(rules)
    )
    found, failed = [], set[int]()
    for _ in range(4):
        chunks = []
        for slot, text in enumerate(texts):
            start = 0 if bindings else len(text) - 1
            if slot not in failed:
                chunks.append(Chunk(slot, start, text[start:], [slot], True))
        result = execute(executor, StepPlan(bindings, tuple(chunks)))
        bindings = ()
        failed |= {one.slot for one in result.sampled if isinstance(one, Failed)}
        for one in result.sampled:
            if not isinstance(one, Failed):
                texts[one.slot].append(one.token)
        found.append(shown(result))
    assert failed == {1}
    embedding = Binding(0, EmbeddingParams(), [1, 2, 3], [])
    scored = Binding(1, SamplingParams(seed=1, prompt_logprobs=2), [4, 5, 6], [])
    chunks = [
        Chunk(0, 0, [1, 2, 3], [0], False, pool=Pool(0, complete=True)),
        Chunk(1, 0, [4, 5, 6], [1], True, score=Scoring(0, [5, 6], 2), keep_states=2),
    ]
    result = execute(executor, StepPlan((embedding, scored), tuple(chunks)))
    assert len(result.scored) == len(result.pooled) == len(result.states) == 1
    return [*found, shown(result), repr(executor.logits_summary())]


@apart
def test_every_rule_reaches_the_process(device: str, tmp_path: Path) -> None:
    checkpoint, found = llama.PLAIN.checkpoint(tmp_path), []
    for name in (APART[device], device):
        executor = load_on(name, checkpoint, CONFIG)
        found.append(steps_of(executor, tmp_path))
        assert executor.measure_limits().memory_rate > 0
        executor.close()
    assert found[0] == found[1]


def plan_of(rules: TokenRules, params: SamplingParams = SHORT) -> StepPlan:
    binding = Binding(0, replace(params, seed=0), [1, 2], [], rules)
    return StepPlan((binding,), (Chunk(0, 0, [1, 2], [0], True),))


@apart
def test_a_late_mask_defers_its_sequence(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask_threads, "PATIENCE", 0.001)
    go, ended = Future[None](), Future[None]()
    checkpoint, found = llama.PLAIN.checkpoint(tmp_path), []
    grammar = Alternating(mask=lambda: go.result(PATIENCE))
    executor = load_on(device, checkpoint, CONFIG)
    (late,) = execute(executor, plan_of(TokenRules(grammar=grammar))).sampled
    assert isinstance(late, Deferred)
    late.ready.add_done_callback(ended.set_result)
    go.set_result(None)
    ended.result(PATIENCE)
    again = StepPlan((), (Chunk(0, 1, [2], [0], True),))
    found += execute(executor, again).sampled
    executor.close()
    executor = load_on(APART[device], checkpoint, CONFIG)
    assert found == [*execute(executor, plan_of(TokenRules(grammar=Alternating()))).sampled]
    executor.close()


@apart
def test_a_table_that_was_replaced_fails_its_sequence_only(device: str, tmp_path: Path) -> None:
    executor = load_on(device, llama.PLAIN.checkpoint(tmp_path), CONFIG)
    opened = table(tmp_path)
    write_version_2(tmp_path / "new", {(1,): {2: 1}}, 32, bytes(32)).replace(opened.path)
    engram = EngramBias(((opened.table, 1.0),), alpha=1.0)
    (failed,) = execute(executor, plan_of(TokenRules(extensions=(engram,)))).sampled
    assert "docs.engr changed after it was loaded" in failed.error.message
    (sampled,) = execute(executor, plan_of(TokenRules())).sampled
    assert sampled.token >= 0
    executor.close()


def test_shared_objects_travel_once_and_are_forgotten_with_their_last_request() -> None:
    writer, reader = RulesWriter(), RulesReader()

    def arrived(rules: TokenRules) -> TokenRules:
        dropped, content = writer.take_dropped(), msgspec.msgpack.encode(writer.write(rules))
        reader.drop(dropped)
        return reader.read(msgspec.msgpack.decode(content, type=Rules))

    kept = TokenSequences(((1,),))
    first = arrived(TokenRules(breakers=kept)).breakers
    assert first is not None
    assert first.sequences == kept.sequences
    other = weakref.ref(arrived(TokenRules(breakers=TokenSequences(((2,),)))).breakers)
    assert other() is not None
    gc.collect()
    assert arrived(TokenRules(breakers=kept)).breakers is first
    gc.collect()
    assert other() is None


@apart
def test_a_head_gives_the_same_bits(device: str, tmp_path: Path) -> None:
    model = next(one for one in glm4_moe.MODELS if one.mtp)
    states = np.random.RandomState(3).normal(0, 2, (4, model.width)).astype(np.float32)
    binding = Binding(0, SamplingParams(temperature=0, seed=1, logprobs=5), [], [])
    head = StepPlan((binding,), (Chunk(0, 0, [1, 2, 3, 4], [0], True, states=states),))
    found = []
    for name in (APART[device], device):
        executor = load_on(name, model.checkpoint(tmp_path), CONFIG)
        assert executor.head is not None
        first = execute(executor, plan_of(TokenRules()))
        found.append((execute(executor.head, head), first, executor.head.memory))
        executor.close()
    assert found[0] == found[1]


def test_a_second_step_is_submitted_before_the_first_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    checkpoint = llama.PLAIN.checkpoint(tmp_path)
    steps = [plan_of(TokenRules())]
    steps += [StepPlan((), (Chunk(0, 2 + i, [3 + i], [0], True),)) for i in range(4)]
    executor = load_on("cpu", checkpoint, CONFIG)
    expected = [execute(executor, plan) for plan in steps]
    executor.close()
    ahead = load_in_process("ahead_device:load", checkpoint, CONFIG)
    assert ahead.runs_ahead
    for _ in range(2):
        ahead.submit(steps[0])
        found = []
        for plan in steps[1:]:
            ahead.submit(plan)
            found.append(ahead.collect())
        found.append(ahead.collect())
        assert found == expected
        ahead.submit(steps[0])
        ahead.submit(replace(steps[1], clears=(0,)))
        with pytest.raises(StepMemoryError):  # it ended both steps
            ahead.collect()
    ahead.close()


@apart
def test_a_refused_plan_fails_its_step(device: str, tmp_path: Path) -> None:
    executor = load_on(device, llama.PLAIN.checkpoint(tmp_path), CONFIG)
    with pytest.raises(EngineFailedError, match="the step was refused"):
        execute(executor, StepPlan((), (Chunk(0, 0, [1], [1 << 20], False),)))
    executor.close()
    executor.close()
    assert executor.shape.vocabulary == 32


@apart
def test_adapters_have_the_same_bits(device: str, tmp_path: Path) -> None:
    """They go when nothing refers to them, and a matrix that is none is refused by name."""
    checkpoint = llama.PLAIN.checkpoint(tmp_path)
    beside: Any = load_on(device, checkpoint, CONFIG)
    alone: Any = load_on(APART[device], checkpoint, CONFIG)
    changes = random_changes(alone, 1)
    found = []
    for executor in (alone, beside):
        adapters = [executor.make_adapter(random_changes(alone, seed)) for seed in (1, 2)]
        if device == "cpu":  # the one that has them
            head = alone.adaptable()["output"]
            eye = np.eye(head.out_features, head.in_features, dtype=np.float32)
            whole = Whole(eye, TensorType.F16)
            others = random_changes(alone, 1, gains=True) | {"output": whole}
            adapters[0] = executor.make_adapter(others)
        uses = AdapterUse(adapters[0]), AdapterUse(adapters[1], 0.5)
        score = Scoring(0, PROMPTS[1][1:], 5)
        chunks = [
            Chunk(slot, 0, PROMPTS[1], [slot], False, score, adapters=uses[:slot])
            for slot in range(3)
        ]
        found.append(execute(executor, StepPlan((), tuple(chunks))).scored)
    assert found[0] == found[1]
    assert adapters[0].bytes > 0
    dropped = adapters[0].number
    del adapters, uses, chunks
    gc.collect()
    assert dropped in beside._adapters._dropped
    beside.make_adapter(changes)
    assert dropped not in beside._adapters._dropped
    with pytest.raises(UnsupportedModelError, match="nothing"):
        beside.make_adapter({"nothing": next(iter(changes.values()))})
    beside._adapts = False  # as with ranks
    with pytest.raises(UnsupportedModelError, match="not supported where this model runs"):
        beside.make_adapter(changes)
    beside.close()
