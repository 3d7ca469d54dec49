"""Floors by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle.roofline import ExpertWork, Floor, Limits, ModelWork, Work

LIMITS = Limits(
    threads=2,
    isa="paper",
    multiplication="by hand",
    multiply_rate=1000.0,
    memory_rate=50.0,
    memory_buffer=1,
    weights_rate=100.0,
    barriers=4,
    barrier_seconds=2.0,
)
MODEL = ModelWork(
    weight_bytes=600,
    token_multiply_adds=400,
    row_multiply_adds=100,
    kv_layers=((0, 2.0), (10, 3.0)),
)


def test_the_slower_of_reading_and_multiplying_is_the_floor() -> None:
    assert Work(600, 500).floor(LIMITS) == Floor(6.0, "memory")
    assert Work(600, 7000).floor(LIMITS) == Floor(7.0, "compute")


def test_a_decode_step_reads_weights_once_and_each_context() -> None:
    assert MODEL.decode_step(streams=1, depth=0) == Work(600, 500)
    assert MODEL.decode_step(streams=4, depth=5) == Work(600 + 4 * 5 * (2 + 3), 4 * 500)


def test_a_decode_step_reads_and_writes_the_state_of_each_stream() -> None:
    with_states = replace(MODEL, state_bytes=1_000)
    more = with_states.decode_step(3, 10).bytes - MODEL.decode_step(3, 10).bytes
    assert more == 3 * 2 * 1_000


def test_a_window_bounds_what_is_read() -> None:
    assert MODEL.kv_bytes(10) == 10 * (2 + 3)
    assert MODEL.kv_bytes(1000) == 1000 * 2 + 10 * 3


def test_a_step_reads_the_experts_that_uniform_routing_uses() -> None:
    layer = ExpertWork(count=4, used=1, bytes=400)
    assert [layer.read(tokens) for tokens in (0, 1, 2)] == [0, 100, 175]
    assert layer.read(1000) == pytest.approx(400)
    model = replace(MODEL, weight_bytes=1000, expert_layers=(layer, layer))
    assert [model.read_bytes(tokens) for tokens in (1, 2)] == [400, 550]
    assert model.decode_step(streams=2, depth=0) == Work(550, 2 * 500)
    assert model.prompts(streams=1, tokens=3, batch_tokens=2) == Work(950, 3 * 400 + 100)


def test_prompts_read_the_weights_once_a_step_and_want_logits_once() -> None:
    assert MODEL.prompts(streams=2, tokens=50, batch_tokens=64) == Work(2 * 600, 2 * 20_100)
    assert MODEL.prompts(streams=1, tokens=64, batch_tokens=64) == Work(600, 64 * 400 + 100)


def test_of_two_measurements_the_better_figures_count() -> None:
    disturbed = Limits(2, "paper", "by hand", 10.0, 80.0, 1, 90.0, 4, 3.0)
    best = LIMITS.best(disturbed)
    assert best.barrier_seconds == 2.0
    assert (best.multiply_rate, best.memory_rate, best.weights_rate) == (1000.0, 80.0, 100.0)
    assert disturbed.best(LIMITS) == best
