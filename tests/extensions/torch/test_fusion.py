"""The operations of a recorded graph that are joined."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from heddle.executors.graph import recording
from heddle.executors.graph.forward import Forward
from heddle.executors.graph.recording import Input, Node, RecordingOps
from heddle.extensions.torch import made_nodes
from heddle.extensions.torch.fusion import fused
from heddle.models.ops import AttentionSpec, Batch, RopeSpec

SPEC = AttentionSpec(2, 1, 4, 1.0)
ROPE = RopeSpec(4, 1e4, interleaved=False)


@dataclass(frozen=True)
class Weight:
    out_features: int
    in_features: int = 8
    type: str = ""


class Recorded:
    """A graph of attention, whose parts the tests change."""

    def __init__(self) -> None:
        self.ops = RecordingOps()
        self.positions = Input((), 1, False, "positions")
        self.rows = Input((), 1, True, "rows")
        self.x: Node = Input((), 8, False, "states")
        self.q, self.k, self.v = (self.ops.linear(self.x, Weight(n)) for n in (8, 4, 4))

    def roped(self, x: Node, heads: int, spec: RopeSpec = ROPE) -> Node:
        return self.ops.rope(x, self.positions, spec, heads)

    def forward(self, last: Node) -> Forward:
        states = self.ops.take_rows(last, self.rows)
        logits = self.ops.linear(states, Weight(20))
        inputs = Batch(self.x, self.positions, self.rows)
        return Forward(inputs, self.ops.nodes, states, logits)


def kinds(forward: Forward) -> list[str]:
    """The names of the operations. Checks that each comes after its inputs."""
    inputs = forward.inputs
    known = {inputs.tokens, inputs.positions, inputs.rows}
    for node in forward.nodes:
        assert known.issuperset(node.inputs)
        known.add(node)
    assert {forward.states, forward.logits} <= known
    return [type(node).__name__ for node in forward.nodes]


def test_rotations_are_joined_with_the_attention_that_reads_them() -> None:
    made = Recorded()
    q, k = made.roped(made.q, 2), made.roped(made.k, 1)
    forward = made.forward(made.ops.attend(q, k, made.v, 3, SPEC))
    found = fused(forward, id)
    assert kinds(found) == [*["Linear"] * 3, "RopedAttend", "TakeRows", "Linear"]
    node = found.nodes[3]
    assert isinstance(node, made_nodes.RopedAttend)
    assert (node.layer, node.spec, node.rope, node.width) == (3, SPEC, ROPE, 8)
    assert node.inputs == (*found.nodes[:3], made.positions)


@pytest.mark.parametrize(
    "case", ["read twice", "other rotation", "other positions", "keys only", "stored keys"]
)
def test_other_rotations_stay_as_they_are(case: str) -> None:
    made = Recorded()
    other = RopeSpec(4, 1e6, interleaved=False) if case == "other rotation" else ROPE
    q = made.q if case == "keys only" else made.roped(made.q, 2, other)
    if case == "stored keys":
        y = made.ops.attend_stored(q, 3, SPEC)
    else:
        positions = made.rows if case == "other positions" else made.positions
        y = made.ops.attend(q, made.ops.rope(made.k, positions, ROPE, 1), made.v, 3, SPEC)
    if case == "read twice":
        y = made.ops.add(y, q)
    forward = made.forward(y)
    assert kinds(fused(forward, id)) == kinds(forward)


def test_sums_are_joined_with_their_norms() -> None:
    made = Recorded()
    total = made.ops.add(made.x, made.q)
    weights = Weight(8), Weight(6)
    normed = made.ops.norm(total, "w", 1e-6)
    first, _ = (made.ops.linear(normed, weight) for weight in weights)
    forward = made.forward(made.ops.add(total, first))
    found = fused(forward, id)
    names = ["AddNorm", "Item", "Item", "Linear", "Linear", "Add", "TakeRows", "Linear"]
    assert kinds(found)[3:] == names
    both, kept, norm, linear, _, last = found.nodes[3:9]
    assert isinstance(both, made_nodes.AddNorm)
    assert (both.weight, both.eps, both.readers) == ("w", 1e-6, weights)
    assert both.inputs == (made.x, found.nodes[0])
    assert last.inputs == (kept, linear)
    assert linear.inputs == (norm,)
    assert isinstance(kept, made_nodes.Item)
    assert isinstance(norm, made_nodes.Item)
    assert (kept.index, norm.index) == (0, 1)


def test_a_sum_that_only_its_norm_reads_is_not_kept() -> None:
    made = Recorded()
    normed = made.ops.norm(made.ops.add(made.x, made.q), "w", 1e-6)
    found = fused(made.forward(made.ops.scale(normed, 2.0)), id)
    assert kinds(found)[3:] == ["AddNorm", "Item", "Scale", "TakeRows", "Linear"]


@pytest.mark.parametrize("is_multiplied", [True, False])
def test_gates_know_the_matrices_that_multiply_them(is_multiplied: bool) -> None:
    made, down = Recorded(), Weight(8)
    last = made.ops.gated(made.k, made.v, "silu")
    forward = made.forward(made.ops.linear(last, down) if is_multiplied else last)
    found = fused(forward, id)
    names = ["GatedFor", "Linear"] if is_multiplied else ["Gated"]
    assert kinds(found) == [*["Linear"] * 3, *names, "TakeRows", "Linear"]
    gated = found.nodes[3]
    assert gated.inputs == tuple(found.nodes[1:3])
    if isinstance(gated, made_nodes.GatedFor):
        assert (gated.activation, gated.readers, gated.width) == ("silu", (down,), 4)


def test_matmuls_of_one_input_are_joined_if_a_device_can() -> None:
    made = Recorded()
    other = made.ops.linear(made.x, Weight(8, type="other"))
    total = made.ops.add(made.q, made.ops.linear(other, Weight(8)))
    forward = made.forward(made.ops.gated(total, made.ops.linear(made.x, Weight(8)), "silu"))
    found = fused(forward, lambda weight: weight.type)
    names = ["LinearEach", *["Item"] * 4, "Linear", "Linear", "Add", "Gated", "TakeRows", "Linear"]
    assert kinds(found) == names
    every, q, _, _, last, own, _, add, gated, *_ = found.nodes
    assert isinstance(every, made_nodes.LinearEach)
    assert every.weights == (Weight(8), Weight(4), Weight(4), Weight(8))
    assert (every.inputs, every.width) == ((made.x,), 24)
    assert [item.index for item in found.nodes[1:5] if isinstance(item, made_nodes.Item)] == [
        *range(4)
    ]
    assert [item.width for item in found.nodes[1:5]] == [8, 4, 4, 8]
    assert isinstance(own, recording.Linear)
    assert own.weight is not every.weights[0]
    assert add.inputs[0] is q
    assert gated.inputs == (add, last)
