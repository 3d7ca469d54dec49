"""The bytes and multiply-adds of a step of a recorded graph, counted by hand."""

from __future__ import annotations

from dataclasses import dataclass

from heddle.executors.graph.forward import Forward, model_work
from heddle.executors.graph.recording import Input, RecordingOps
from heddle.models.ops import (
    AttentionSpec,
    Batch,
    ExpertSpec,
    ExpertWeights,
    LatentSpec,
    LinearAttentionSpec,
    StatePlace,
)
from heddle.roofline import ExpertWork


@dataclass(frozen=True)
class Stack:
    """Matrices of heads or of experts."""

    count: int
    out_features: int
    in_features: int
    nbytes: int = 0


def test_the_work_of_each_kind_of_layer_counts() -> None:
    ops = RecordingOps()
    x, positions = Input((), 8, False, "states"), Input((), 1, False, "positions")
    rows = Input((), 1, True, "rows")
    ops.attend(x, x, x, 1, AttentionSpec(2, 1, 4, 1.0, window=10))
    ops.latent_attend(ops.head_linear(x, Stack(2, 4, 5)), x, x, x, 2, LatentSpec(2, 4, 2, 1.0))
    convolved = ops.causal_conv(x, None, StatePlace(0, 0, 48), "silu")
    linear = LinearAttentionSpec(2, 1, 4, 4, corrects=True)
    ops.linear_attend(convolved, x, x, x, x, StatePlace(0, 48, 32), linear)
    ops.selective_scan(x, x, x, x, None, None, StatePlace(0, 80, 64))
    up, down, gate = (Stack(4, *shape, 100) for shape in ((6, 8), (8, 6), (6, 8)))
    spec = ExpertSpec(4, 3, "softmax", normalised=True)
    y = ops.experts(x, x, ExpertWeights(gate=gate, up=up, down=down), spec)
    logits = ops.linear(ops.take_rows(y, rows), Stack(1, 20, 8))
    forward = Forward(Batch(x, positions, rows), ops.nodes, y, logits)
    work = model_work(forward, 1000, {1: 2.0, 2: 3.0})
    assert work.weight_bytes == 1000
    assert work.token_multiply_adds == 2 * 4 * 5 + 3 * 3 * (6 * 8)
    assert work.row_multiply_adds == 20 * 8
    assert work.kv_layers == ((10, 2.0), (0, 3.0))
    assert work.state_bytes == 4 * (48 + 32 + 64)
    assert work.expert_layers == (ExpertWork(4, 3, 300),)
