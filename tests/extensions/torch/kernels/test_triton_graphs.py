"""Recorded steps have the bits of steps without a recording, and padding changes nothing."""

# Outcomes are unions; each test knows which member its plan gives.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from triton_device import DEVICE, torch

from configs import configured
from heddle.config import EngineConfig
from heddle.sampling_params import SamplingParams
from heddle.state import pages_for
from heddle.step import UNKNOWN, Binding, Chunk, Scoring, StepPlan, WindowPages
from heddle.weights.tensor_types import TensorType
from models import rig
from models.tiny import deepseek_v2, gemma2, gemma3, gpt_oss, llama, qwen3_5, qwen3_moe
from steps import execute

from triton.runtime.errors import OutOfResources  # isort: skip
from heddle.extensions.torch import attention, graphs, load, program, triton_ops, weights  # isort: skip
from heddle.extensions.torch.kernels import matmul  # isort: skip
from heddle.extensions.torch.layout import (  # isort: skip
    SPLIT,
    Layout,
    PlanIntegers,
    Spare,
)
from heddle.extensions.torch.ops import TorchOps  # isort: skip
from heddle.extensions.torch.tiles import TILE, padded  # isort: skip
from heddle.extensions.torch.triton_ops import TritonOps  # isort: skip

if DEVICE.type == "cpu":
    from emulated_capture import EmulatedCapture, RecordingError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from heddle.extensions.torch.executor import TorchExecutor
    from models.tiny.base import TinyModel

SLOTS = 4
STEP_SIZES = graphs.step_sizes  # the fixture replaces it
CONFIG = EngineConfig(
    slots=SLOTS,
    threads=1,
    kv_cache=1 << 20,
    batch_tokens=64,
    speculation="off",
    device="cuda" if DEVICE.type == "cuda" else "torch",
)
MODELS = [
    pytest.param(gemma2.MODELS[0], marks=pytest.mark.torch_slow),
    pytest.param(gemma3.MODELS[1], marks=pytest.mark.torch_slow),
    gpt_oss.MODELS[0],
    pytest.param(qwen3_moe.MODELS[0], marks=pytest.mark.torch_slow),
    deepseek_v2.MODELS[0],
    qwen3_5.MODELS[0],
]


def new_capture() -> Any:
    return EmulatedCapture() if DEVICE.type == "cpu" else graphs.CudaCapture(DEVICE)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton kernels on every device, and one bucket of 16 tokens. No others are compiled."""
    monkeypatch.setattr(program, "operations", lambda device: TritonOps)
    monkeypatch.setattr(graphs, "step_sizes", lambda batch_tokens: [])
    monkeypatch.setattr(load, "most_rows", lambda slots: 16)


@dataclass
class Pair:
    """Two executors with the same pages and states. One records steps, the other does not."""

    eager: TorchExecutor
    graphed: TorchExecutor

    @classmethod
    def of(cls, model: TinyModel, path: Path, capture: Any, **settings: Any) -> Pair:
        checkpoint = model.checkpoint(path)
        config = configured(CONFIG, **settings)
        pair = cls(
            load.load(checkpoint, configured(config, cuda_graphs=False)),
            load.load(checkpoint, config, capture=capture),
        )
        pair.graphed.warm_up(lambda done: None)
        pair.fill()
        return pair

    def fill(self) -> None:
        """Give pages, and the states of slots, random contents."""
        rng = np.random.default_rng(1)
        for page in range(self.eager.memory.pages):
            windows = [page % window.pages for window in self.eager.memory.windows]
            size = len(self.eager.read_page(page, windows)) // 2
            content = rng.normal(0, 1, size).astype(np.float16).tobytes()
            for executor in (self.eager, self.graphed) if content else ():
                executor.write_page(page, memoryview(content), windows)
        shape = self.eager._program.states.table.shape
        states = torch.from_numpy(rng.normal(0, 0.1, shape).astype(np.float32))
        for executor in (self.eager, self.graphed):
            executor._program.states.table.copy_(states)

    def check(self, *chunks: Chunk) -> None:
        """A step has the same results on both, and leaves the same pages and states."""
        params = SamplingParams(temperature=0, seed=0, logprobs=self.eager.shape.vocabulary)
        bindings = tuple(Binding(chunk.slot, params, [1], []) for chunk in chunks)
        own, other = (
            execute(one, StepPlan(bindings, chunks)) for one in (self.eager, self.graphed)
        )
        assert (own.sampled, own.scored) == (other.sampled, other.scored)
        held = [held_by(one) for one in (self.eager, self.graphed)]
        for own, other in zip(*held, strict=True):
            assert torch.equal(own, other)

    def chunk(self, slot: int, start: int, *tokens: int, sample: bool = True, **more: Any) -> Chunk:
        """A chunk of a sequence whose pages no other has."""
        end = start + len(tokens)

        def own(first: int, pages: int) -> list[int]:
            return [
                number % (pages // SLOTS) * SLOTS + slot for number in range(first, pages_for(end))
            ]

        memory = self.eager.memory
        windows = [
            WindowPages(window.first_page(start), own(window.first_page(start), window.pages))
            for window in memory.windows
        ]
        pages = own(0, memory.pages)
        return Chunk(slot, start, tokens, pages, sample, windows=windows, **more)


def held_by(executor: TorchExecutor) -> list[Any]:
    """All pages and states but those that padding writes to."""
    pages = executor._program.pages
    fields = [
        field[:, :, : spare // 32].contiguous().view(torch.uint8)
        for group, spare in zip(pages._groups, pages.spare, strict=True)
        for field in group
    ]
    states = executor._program.states
    return [*fields, states.table[: states.spare].contiguous().view(torch.uint8)]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_recorded_step_has_the_bits_of_one_that_is_not(model: TinyModel, tmp_path: Path) -> None:
    """Other tokens, lengths, pages, slots and companies in each step; with guesses."""
    capture = new_capture()
    pair = Pair.of(replace(model, context=128), tmp_path, capture)
    pair.check(pair.chunk(1, 37, 5))
    guessing = pair.chunk(2, 30, 4, 3, 8, guesses=2, uncertain=2)
    pair.check(pair.chunk(3, 8, 7), guessing, pair.chunk(1, 38, 2), pair.chunk(0, 0, 9))
    if DEVICE.type == "cpu":
        assert capture.replays == 2


def test_a_step_takes_the_smallest_bucket_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By tokens, and by splits of attention."""
    monkeypatch.setattr(load, "most_rows", lambda slots: 32)
    monkeypatch.setattr(graphs, "_FIRST_SPLITS", 1)
    taken, replayed = [], graphs.Graph.replayed

    def noting(graph: graphs.Graph, compare: Any) -> graphs.GraphStep:
        taken.append((len(graph.logits), graph.layout.splits))
        return replayed(graph, compare)

    monkeypatch.setattr(graphs.Graph, "replayed", noting)
    pair = Pair.of(replace(llama.MODELS[0], context=2 * SPLIT), tmp_path, new_capture())
    pair.check(pair.chunk(0, 14, 2), pair.chunk(1, SPLIT - 1, 3))
    pair.check(pair.chunk(0, 15, *[1] * 16), pair.chunk(1, SPLIT, 4))
    pair.check(pair.chunk(0, 31, *[1] * 32, sample=False), pair.chunk(2, 1, 4))
    assert taken == [(16, 1), (32, 2)], "the last step has 33 tokens"


def test_padding_asks_for_no_slot_where_tokens_are_unknown() -> None:
    chunks = Chunk(1, 4, [UNKNOWN], [0], True), Chunk(0, 0, [7], [1], True)
    integers = PlanIntegers(chunks, 1)
    sizes = replace(integers.sizes, stored=16, tiles=16, runs=16)
    packed = torch.from_numpy(integers.packed(sizes, Spare([0], 99)))
    layout = Layout.over(packed.to(DEVICE), sizes)
    layout.fill_unknown(torch.tensor([3, 5], device=DEVICE))
    assert layout.tokens.tolist() == [5, 7, *[0] * 14]


def test_buckets_hold_every_step_and_are_few() -> None:
    found = graphs.buckets(200, 40_000)
    assert {size.tokens for size in found} == {16, 32, 48, 64, 96, 128, 192, 208}
    assert {size.splits for size in found} == {4, 16, 64, 157}
    assert found[0] == (208, 157), "the largest comes first"
    assert graphs.buckets(1, 10) == [(16, 1)]


@pytest.mark.parametrize("kind", [TensorType.BF16, TensorType.F32, TensorType.Q4_K])
@pytest.mark.parametrize("batch_tokens", [1, 16, 17, 100, 512, 1000, 8192])
def test_the_warm_up_compiles_all_matmuls_of_steps(batch_tokens: int, kind: TensorType) -> None:
    """Matrices of any number of rows."""
    sizes = STEP_SIZES(batch_tokens)
    assert sizes[-1] == padded(batch_tokens)
    for row_blocks in (*range(1, 600), 2374):

        def programs(numbers: Iterable[int], rows: int = 64 * row_blocks) -> set[matmul.Program]:
            return {matmul.program_of(kind, (rows,), tiles, tiles) for tiles in numbers}

        assert programs(size // TILE for size in sizes) == programs(range(1, sizes[-1] // TILE + 1))


def test_the_warm_up_computes_steps_with_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "step_sizes", lambda batch_tokens: [16, batch_tokens])
    computed, operand = set(), triton_ops.operand
    monkeypatch.setattr(
        triton_ops, "operand", lambda x, kind: (computed.add(len(x)), operand(x, kind))[1]
    )
    config = replace(CONFIG, batch_tokens=48)
    executor: Any = load.load(llama.MODELS[0].checkpoint(tmp_path), config, capture=new_capture())
    parts: list[int] = []
    executor.warm_up(parts.append)
    assert computed == {16, 48}
    assert parts == [1, 2, 3]
    assert executor.warm_ups == 3


def test_the_load_checks_no_matmul_of_torch_that_nothing_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that favours a column would be no reason to refuse a GPU."""

    def refuse(left: Any, columns: int) -> None:
        raise AssertionError("a matmul of torch is checked")

    for module in (attention, weights):
        monkeypatch.setattr(module, "check_columns", refuse)
    monkeypatch.setattr(load, "operations", lambda device: TritonOps)
    load.load(llama.MODELS[0].checkpoint(tmp_path), CONFIG)


def test_steps_that_read_more_than_samples_have_no_graph(tmp_path: Path) -> None:
    capture = new_capture()
    pair = Pair.of(llama.MODELS[0], tmp_path, capture)
    scoring = pair.chunk(0, 3, 4, 5, sample=False, score=Scoring(0, [5], 3))
    pair.check(scoring)
    pair.check(pair.chunk(0, 5, 6, keep_states=1))
    if DEVICE.type == "cpu":
        assert capture.replays == 0


@pytest.mark.skipif(DEVICE.type != "cpu", reason="this tests the emulation")
@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.cpu(),
        lambda x: x + x.new_tensor([1.0, 2.0]),
        lambda x: int(x.max()),
        lambda x: x.copy_(torch.from_numpy(np.zeros(2, np.float32))),
        lambda x: x.repeat_interleave(x.long().abs()),
    ],
)
def test_what_waits_for_the_host_cannot_be_recorded(work: Any) -> None:
    x = torch.tensor([3.0, -1.0])
    with torch.inference_mode(), pytest.raises(RecordingError):
        EmulatedCapture().record(lambda: work(x))


def test_a_model_that_cannot_be_recorded_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "operations", lambda device: TorchOps)
    load.load(llama.MODELS[0].checkpoint(tmp_path), CONFIG, capture=new_capture())
    assert "without CUDA graphs: operations on torch tensors wait for" in caplog.text


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), OutOfResources(300_000, 232_448, "shared")],
)
def test_without_memory_for_graphs_steps_run_without_them(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full:
        def prepare(self, region: Any) -> None:
            region()

        def record(self, region: Any) -> Any:
            raise error

    pair = Pair.of(llama.MODELS[0], tmp_path, Full())
    pair.check(pair.chunk(0, 3, 4))
    assert f"without CUDA graphs: recording failed: {error}" in caplog.text


def test_requests_have_the_same_bits_with_graphs_and_steps_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With prefixes from the cache, and a cache so small that a request is preempted."""
    checkpoint = replace(llama.PLAIN, context=rig.CONTEXT).checkpoint(tmp_path)
    prompts = [rig.TEXT[:30], rig.TEXT[:20], rig.TEXT[9:37]]
    params = replace(rig.GREEDY, temperature=1.0, top_k=20, max_tokens=8)
    found = []
    for captures in (False, True):

        def load_on(
            device: str, checkpoint: Any, config: EngineConfig, captures: bool = captures
        ) -> TorchExecutor:
            executor: Any = load.load(
                checkpoint,
                replace(config, device=device),
                samples_on_device=True,
                runs_ahead=captures,
                capture=new_capture() if captures else None,
            )
            executor.warm_up(lambda done: None)
            return executor

        monkeypatch.setattr(rig, "load_on", load_on)
        settings = {"slots": 3, "threads": 1, "batch_tokens": 64, "device": CONFIG.device}
        one = rig.Rig(checkpoint, kv_cache=24 << 10 if captures else 1 << 20, **settings)
        found.append([*one.run(prompts, params), *one.run(prompts[:1], params)])
        if captures:
            assert one.steps_ahead > 5
            assert one.scheduler.admission.preemptions
    assert found[0] == found[1]
