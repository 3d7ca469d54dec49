"""The counted cost of a recorded model, and the measured limits of the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle import _native
from heddle.config import EngineConfig
from heddle.executors.cpu import limits
from heddle.executors.cpu.limits import measure
from heddle.executors.cpu.load import load
from models.tiny import qwen3
from models.tiny.llama import PLAIN

MIB = 1 << 20


def test_matmuls_and_attentions_of_a_model_are_counted(tmp_path):
    checkpoint = PLAIN.checkpoint(tmp_path)
    executor = load(checkpoint, EngineConfig(slots=1, threads=1, kv_cache=MIB))
    work, shape = executor.work, executor.shape
    sizes = {name: rows * columns for name, (rows, columns) in _matrices(checkpoint).items()}
    output = sizes.pop("output.weight", None) or sizes["embedding.weight"]
    sizes.pop("embedding.weight")
    assert work.row_multiply_adds == output
    assert work.token_multiply_adds == sum(sizes.values())
    assert work.weight_bytes == executor.weight_bytes > 0
    assert len(work.kv_layers) == shape.layers
    per_position = executor.page_bytes / 32
    assert work.kv_bytes(1000) == pytest.approx(1000 * per_position)


@pytest.mark.parametrize("model", [PLAIN, qwen3.MODELS[0]], ids=str)
def test_threads_wait_nine_times_in_a_layer(tmp_path, model):
    """A layer: norm; q, k and v; their norms and rotation; the store; attention; its product; norm;
    gate and up; down. The first norm follows the embedding. The end: norm, logits, sampler.
    """
    checkpoint = replace(model, ffn_width=64).checkpoint(tmp_path)
    executor = load(checkpoint, EngineConfig(slots=1, threads=1, kv_cache=MIB))
    assert executor.measure_limits().barriers == 9 * executor.shape.layers + 3


def _matrices(checkpoint):
    shapes = {name: tuple(tensor.shape) for name, tensor in checkpoint.tensors.items()}
    return {name: shape for name, shape in shapes.items() if len(shape) == 2}


@pytest.mark.parametrize("isa", _native.isa_levels())
def test_every_instruction_level_has_a_peak_rate(isa):
    runtime = _native.Runtime(2, isa)
    assert runtime.multiplication
    # Many very short passes: a busy machine interrupts only some of them.
    assert 1e8 < max(runtime.multiply_rate(0.0) for _ in range(20)) < 1e15


def test_the_read_rate_of_buffers_is_measured():
    runtime = _native.Runtime(2, "auto")
    assert 1e7 < max(runtime.read_rate(4 * MIB, 0.0) for _ in range(20)) < 1e14
    assert runtime.read_rate(1, 0.0) > 0
    with pytest.raises(ValueError, match="at least one byte"):
        runtime.read_rate(0, 0.0)


def test_limits_are_measured_for_each_thread_count_and_level(monkeypatch):
    monkeypatch.setattr(limits, "_SECONDS", 0.0)
    monkeypatch.setattr(limits, "_LEAST_BUFFER", 8 * MIB)
    monkeypatch.setattr(limits, "cache_bytes", lambda: MIB)
    measured = measure(2, "portable", MIB, barriers=7)
    assert (measured.threads, measured.isa) == (2, "portable")
    assert measured.memory_buffer == 8 * MIB
    assert measured.weights_rate >= measured.memory_rate > 0
    assert measure(1, "portable", 16 * MIB, barriers=7).weights_rate > 0
    assert measured.barriers == 7
    assert 0 <= measured.barrier_seconds < 1


def test_the_measured_buffer_exceeds_the_caches_but_not_free_memory(monkeypatch):
    monkeypatch.setattr(limits, "_SECONDS", 0.0)
    monkeypatch.setattr(limits, "_LEAST_BUFFER", MIB)
    monkeypatch.setattr(limits, "cache_bytes", lambda: 3 * MIB)
    assert measure(1, "portable", MIB, 1).memory_buffer == 12 * MIB
    monkeypatch.setattr(limits, "available_bytes", lambda: 8 * MIB)
    assert measure(1, "portable", MIB, 1).memory_buffer == 2 * MIB
