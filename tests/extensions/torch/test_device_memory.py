"""Memory of torch devices: what a load takes of it, and failed allocations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tiny_files import SMALL, one_token_plan, tiny_file

from configs import configured
from devices import SAMPLING
from heddle.config import EngineConfig
from heddle.errors import ConfigError, OutOfMemoryError
from heddle.executor import DeviceMemory
from heddle.executors import memory_plan
from heddle.executors.devices import loader
from heddle.executors.graph.forward import record
from heddle.extensions.torch.division.claims import Claims
from heddle.models.build import build
from heddle.weights.mix import Mix
from models.rig import CONTEXT, GREEDY, TEXT, Rig
from models.tiny import qwen3_5
from models.tiny.llama import PLAIN
from models.tiny.qwen3_5 import TinyQwen35
from steps import execute

torch = pytest.importorskip("torch")
import shortage  # noqa: E402

from heddle.extensions.torch import device_memory, upload  # noqa: E402
from heddle.extensions.torch import load as torch_load  # noqa: E402
from heddle.extensions.torch import ops as torch_ops  # noqa: E402

CONFIG = replace(SMALL, device="torch", speculation="off")
GPU = torch.device("cuda", 1)
MB = 10**6
load = loader("torch")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Free bytes and all bytes of a GPU that loads see in place of the processor."""
    amounts = [0, 1000 * MB]
    monkeypatch.setattr(device_memory, "free_and_total", lambda device: tuple(amounts))
    room_of = device_memory.room_of
    monkeypatch.setattr(torch_load, "room_of", lambda device, config: room_of(GPU, config))
    return amounts


def test_a_part_of_the_gpu_stays_free(gpu):
    gpu[0] = 950 * MB
    assert device_memory.room_of(GPU, EngineConfig()).free == 850 * MB
    assert device_memory.room_of(GPU, configured(gpu_memory=1.0)).free == 950 * MB
    assert device_memory.room_of(GPU, configured(gpu_memory=0.05)).free == 0


def test_the_memory_of_a_gpu_is_reported_while_it_works(gpu, monkeypatch) -> None:
    gpu[0] = 950 * MB
    assert device_memory.device_memory(GPU) == DeviceMemory(950 * MB, 1000 * MB)

    def fail(device: Any) -> tuple[int, int]:
        raise RuntimeError("the device has failed")

    monkeypatch.setattr(device_memory, "free_and_total", fail)
    assert device_memory.device_memory(GPU) is None


@pytest.mark.parametrize("share", [0.0, 1.01, float("nan")])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="gpu_memory must be at"):
        configured(gpu_memory=share)


def test_the_kv_cache_takes_what_weights_and_buffers_leave(gpu, tmp_path):
    file = tiny_file(tmp_path, {"llama.context_length": 10**6})
    full = replace(CONFIG, slots=64, kv_cache=0)
    gpu[0] = 150 * MB
    small = load(file, full)
    gpu[0] = 151 * MB
    large = load(file, full)
    added = (large.memory.pages - small.memory.pages) * large.memory.page_bytes
    assert abs(added - MB) <= large.memory.page_bytes
    assert 10 * MB < small.held_bytes < 50 * MB, "50 MB are the part that gpu_memory allows"
    assert load(file, configured(full, gpu_memory=1.0)).held_bytes > small.held_bytes + 90 * MB
    assert execute(small, one_token_plan()).sampled[0].token >= 0


def refuse(*args: object) -> int:
    raise AssertionError("nothing may be read")


@pytest.mark.parametrize(
    ("free", "settings", "problem"),
    [
        (101, {}, r"buffers of 0\.0\d GB .* gpu_memory 0\.9 leaves .* of cuda:1, 0\.00 GB: take"),
        (180, {"kv_cache": 10**9}, r"KV cache of 1\.00 GB .* of cuda:1, 0\.08 GB: set a smaller"),
        (180, {"kv_cache": 0, "model_memory": 10**6}, r"0\.00 GB, the memory that the settings"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_it_is_read(
    free, settings, problem, gpu, tmp_path, monkeypatch
):
    monkeypatch.setattr(upload.Uploader, "fields", refuse)
    gpu[0] = free * MB
    file = tiny_file(tmp_path, {"llama.context_length": 10**6})
    with pytest.raises(OutOfMemoryError, match=problem) as error:
        load(file, replace(CONFIG, slots=64, **settings))
    assert error.value.status == 503


def test_a_model_that_leaves_no_room_for_a_page_is_refused(gpu, tmp_path, monkeypatch):
    """Weights and buffers fit, a page does not."""
    plan, needed = torch_load.plan_memory, []

    def plan_and_note(config, shape, kinds, model_bytes, *others):
        needed.append(model_bytes)
        return plan(config, shape, kinds, model_bytes, *others)

    monkeypatch.setattr(torch_load, "plan_memory", plan_and_note)
    gpu[0] = 150 * MB
    config = replace(CONFIG, kv_cache=0)
    page = load(tiny_file(tmp_path), config).memory.page_bytes
    gpu[0] = 100 * MB + needed[0] + page - 1
    with pytest.raises(OutOfMemoryError, match=r"buffers of .* and a KV cache of .* do not fit"):
        load(tiny_file(tmp_path), config)
    gpu[0] += 1
    assert load(tiny_file(tmp_path), config).memory.pages == 1


def test_the_processor_keeps_half_of_its_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_plan, "memory_limits", lambda: {"the available memory": 100 * MB})
    config = replace(CONFIG, slots=64, kv_cache=0, min_free_memory=0)
    executor = load(tiny_file(tmp_path, {"llama.context_length": 10**6}), config)
    assert 25 * MB < executor.memory.bytes < 50 * MB
    with pytest.raises(OutOfMemoryError, match="to keep free"):
        load(tiny_file(tmp_path), replace(config, min_free_memory=99 * MB))


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError, MemoryError])
def test_an_allocation_that_fails_at_load_is_answered_with_figures(kind, tmp_path, monkeypatch):
    def fail(*args: object) -> None:
        raise kind("not enough memory")

    with monkeypatch.context() as patch:
        patch.setattr(upload, "empty_fields", fail)
        with pytest.raises(OutOfMemoryError, match=r"on device cpu: the model needs .* GB were fr"):
            load(tiny_file(tmp_path), CONFIG)
    assert execute(load(tiny_file(tmp_path), CONFIG), one_token_plan()).sampled[0].token >= 0


@pytest.mark.parametrize("rows", [range(17, 65), range(1, 17)], ids=["prompt", "decode"])
def test_a_step_ahead_without_memory_changes_no_answer(rows, tmp_path, monkeypatch):
    """The step fails when it is submitted. Another one is in flight then, if it decodes."""
    checkpoint = replace(PLAIN, context=CONTEXT).checkpoint(tmp_path)
    prompts, settings = [TEXT[:70], TEXT[3:12]], {"slots": 2, "batch_tokens": 64, "threads": 1}
    expected = Rig(checkpoint, device=SAMPLING, **settings).run(prompts)
    lacking = shortage.Shortage(tmp_path / "order")
    lacking.install(monkeypatch.setattr)
    for calls in (0, 20, 45):
        again = Rig(checkpoint, device=SAMPLING, **settings)
        lacking.order("multiply", rows, calls if rows.start == 1 else 0)
        assert again.run(prompts) == expected
        assert lacking.is_over
        assert again.scheduler.admission.preemptions
        assert again.steps_ahead


def test_samplers_on_the_device_are_counted(gpu, tmp_path, monkeypatch):
    """A hundred bytes for each logit of a batch."""
    plan, needed = torch_load.plan_memory, []

    def plan_and_note(config, shape, kinds, model_bytes, *others):
        needed.append(model_bytes)
        return plan(config, shape, kinds, model_bytes, *others)

    monkeypatch.setattr(torch_load, "plan_memory", plan_and_note)
    gpu[0] = 500 * MB
    for samples_on_device in (False, True):
        executor = torch_load.load(tiny_file(tmp_path), CONFIG, samples_on_device=samples_on_device)
    rows = 32 * executor.shape.vocabulary
    assert needed[1] - needed[0] == 100 * rows + 8 * rows


@pytest.mark.parametrize(
    "model",
    [replace(PLAIN, context=CONTEXT), TinyQwen35("states", 4, 2, 32, True, context=CONTEXT)],
    ids=str,
)
def test_a_step_that_finds_no_memory_is_computed_in_parts(model, tmp_path, monkeypatch):
    """Sequences start again in smaller steps, from their snapshots if they are recurrent."""
    checkpoint = model.checkpoint(tmp_path)
    settings = {"device": "torch", "kv_cache": 8 << 20, "slots": 3, "speculation": "off"}
    prompts, params = [TEXT[:50], TEXT[3:20], TEXT[:70]], replace(GREEDY, max_tokens=5)
    expected = Rig(checkpoint, **settings).run(prompts, params)
    multiply, fails = torch_ops.multiply, [0]

    def multiply_small(x: Any, *others: Any) -> Any:
        if len(x) > 32:
            fails[0] += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return multiply(x, *others)

    monkeypatch.setattr(torch_ops, "multiply", multiply_small)
    rig = Rig(checkpoint, **settings)
    assert rig.run(prompts, params) == expected
    assert fails[0] >= 2
    assert rig.scheduler.admission.preemptions >= 2


def test_the_comparisons_of_linear_attention_are_counted(tmp_path):
    """Six heads with keys of 12: a decay, a key, and two rows of 16 for each token."""
    config = EngineConfig(batch_tokens=64, slots=3)
    for model, of_token in ((qwen3_5.MODELS[1], 6 * (1 + 12 + 32)), (PLAIN, 0)):
        checkpoint = model.checkpoint(tmp_path)
        decoder = build(checkpoint)
        claims = Claims(checkpoint, Mix(), lambda name, width: (1.0,) * width)
        forward = record(decoder, decoder.load(claims))
        expected = 4 * (64 + 3 * 32) * of_token
        assert device_memory.recurrence_bytes(config, forward) == expected
