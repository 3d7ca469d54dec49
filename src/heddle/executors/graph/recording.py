"""Records an architecture's forward pass as a graph of nodes instead of computing it.

`RecordingOps` implements `heddle.models.ops.Ops`. Its arrays are nodes. The weights in the nodes
are handles of the executor that will run the graph. Each executor decides how to run the graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from heddle.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Set

    from heddle.models.ops import (
        AttentionSpec,
        ExpertSpec,
        ExpertWeights,
        LatentSpec,
        LinearAttentionSpec,
        Operation,
        RopeSpec,
        StatePlace,
    )


_MAPS = {"silu", "gelu", "gelu_erf", "relu", "sigmoid"}
_GATES = _MAPS | {"clamped", "identity", "limited", "silu_to_7", "silu_to_16"}
_UNGATED = _MAPS | {"squared_relu", "tanh", "xielu_tail"}


class LinearHandle(Protocol):
    """An executor's handle of a matrix (out_features, in_features), named by its product."""

    @property
    def name(self) -> str: ...
    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...


class ExpertsHandle(LinearHandle, Protocol):
    """An executor's handle of `count` matrices of `nbytes` bytes in all, one for each expert."""

    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __getitem__(self, expert: int) -> LinearHandle: ...


class TableHandle(Protocol):
    """An executor's handle of a lookup table of `width` columns."""

    @property
    def name(self) -> str: ...
    @property
    def width(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value of the forward pass: (T, width), or (R, width) if `per_row`."""

    # Not in the repr, which would double with each node that has two inputs.
    inputs: tuple[Node, ...] = field(repr=False)
    width: int
    per_row: bool


@dataclass(frozen=True, slots=True, eq=False)
class Input(Node):
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Embed(Node):
    table: TableHandle
    first: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class EmbedSegments(Node):
    table: TableHandle
    separator: int


@dataclass(frozen=True, slots=True, eq=False)
class EmbedPrevious(Node):
    table: TableHandle
    start: int


@dataclass(frozen=True, slots=True, eq=False)
class MeanRows(Node):
    pass


@dataclass(frozen=True, slots=True, eq=False)
class Linear(Node):
    weight: LinearHandle


@dataclass(frozen=True, slots=True, eq=False)
class Norm(Node):
    weight: object
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class LayerNorm(Node):
    weight: object
    bias: object
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class NormHeads(Node):
    weight: object
    eps: float
    heads: int


@dataclass(frozen=True, slots=True, eq=False)
class Scale(Node):
    factor: float


@dataclass(frozen=True, slots=True, eq=False)
class SoftCap(Node):
    cap: float


@dataclass(frozen=True, slots=True, eq=False)
class Rope(Node):
    spec: RopeSpec
    heads: int


@dataclass(frozen=True, slots=True, eq=False)
class Attend(Node):
    """Inputs: queries; then keys and values, unless `layer` has stored them already."""

    layer: int
    spec: AttentionSpec
    sinks: object | None


@dataclass(frozen=True, slots=True, eq=False)
class HeadLinear(Node):
    weight: ExpertsHandle


@dataclass(frozen=True, slots=True, eq=False)
class LatentAttend(Node):
    """Inputs: queries in the space of latents, queries, latents, rotated keys."""

    layer: int
    spec: LatentSpec


@dataclass(frozen=True, slots=True, eq=False)
class Gated(Node):
    activation: str


@dataclass(frozen=True, slots=True, eq=False)
class Experts(Node):
    """Inputs: x, then the router logits."""

    weights: ExpertWeights[ExpertsHandle]
    spec: ExpertSpec


@dataclass(frozen=True, slots=True, eq=False)
class GateRows(Node):
    activation: str


@dataclass(frozen=True, slots=True, eq=False)
class MixHeads(Node):
    heads: int


@dataclass(frozen=True, slots=True, eq=False)
class Add(Node):
    pass


@dataclass(frozen=True, slots=True, eq=False)
class TakeRows(Node):
    pass


@dataclass(frozen=True, slots=True, eq=False)
class See(Node):
    first: int
    adds: bool


@dataclass(frozen=True, slots=True, eq=False)
class TakeColumns(Node):
    first: int
    heads: int


@dataclass(frozen=True, slots=True, eq=False)
class Activate(Node):
    activation: str


@dataclass(frozen=True, slots=True, eq=False)
class Recurrent(Node):
    """A value with a place in the fixed-size state of its layer."""

    place: StatePlace


@dataclass(frozen=True, slots=True, eq=False)
class CausalConv(Recurrent):
    filters: object
    activation: str


@dataclass(frozen=True, slots=True, eq=False)
class StepSize(Node):
    bias: object
    least: float
    most: float


@dataclass(frozen=True, slots=True, eq=False)
class Decay(Node):
    rates: object


@dataclass(frozen=True, slots=True, eq=False)
class LinearAttend(Recurrent):
    """Inputs: queries, keys, values, decay, strength."""

    spec: LinearAttentionSpec
    skip: object | None


@dataclass(frozen=True, slots=True, eq=False)
class SelectiveScan(Recurrent):
    """Inputs: queries, keys, values, step sizes."""

    rates: object
    skip: object


@dataclass(frozen=True, slots=True, eq=False)
class TokenShift(Recurrent):
    shares: object


@dataclass(frozen=True, slots=True, eq=False)
class RwkvAttend(Recurrent):
    """Inputs: receptance, keys, values, decay, rate."""

    weights: tuple[object, ...]
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class Apply(Node):
    operation: Operation


@dataclass(frozen=True, slots=True, eq=False)
class Join(Node):
    pass


class RecordingOps:
    """Collects nodes in execution order in `nodes`."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def _record(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def embed(self, table: TableHandle, indices: Node, first: int = 0) -> Node:
        return self._record(Embed((indices,), table.width, indices.per_row, table, first))

    def embed_segments(self, table: TableHandle, tokens: Node, separator: int) -> Node:
        return self._record(EmbedSegments((tokens,), table.width, False, table, separator))

    def embed_previous(self, table: TableHandle, tokens: Node, start: int) -> Node:
        return self._record(EmbedPrevious((tokens,), table.width, False, table, start))

    def mean_rows(self, x: Node) -> Node:
        return self._record(MeanRows((x,), x.width, x.per_row))

    def linear(self, x: Node, w: LinearHandle) -> Node:
        return self._record(Linear((x,), w.out_features, x.per_row, w))

    def norm(self, x: Node, w: object, eps: float) -> Node:
        return self._record(Norm((x,), x.width, x.per_row, w, eps))

    def layer_norm(self, x: Node, w: object, b: object, eps: float) -> Node:
        return self._record(LayerNorm((x,), x.width, x.per_row, w, b, eps))

    def norm_heads(self, x: Node, w: object, eps: float, heads: int) -> Node:
        return self._record(NormHeads((x,), x.width, x.per_row, w, eps, heads))

    def scale(self, x: Node, factor: float) -> Node:
        return self._record(Scale((x,), x.width, x.per_row, factor))

    def soft_cap(self, x: Node, cap: float) -> Node:
        return self._record(SoftCap((x,), x.width, x.per_row, cap))

    def rope(self, x: Node, positions: Node, spec: RopeSpec, heads: int) -> Node:
        return self._record(Rope((x, positions), x.width, x.per_row, spec, heads))

    def attend(
        self,
        q: Node,
        k: Node,
        v: Node,
        layer: int,
        spec: AttentionSpec,
        sinks: object | None = None,
    ) -> Node:
        return self._record(Attend((q, k, v), q.width, q.per_row, layer, spec, sinks))

    def attend_stored(self, q: Node, layer: int, spec: AttentionSpec) -> Node:
        return self._record(Attend((q,), q.width, q.per_row, layer, spec, None))

    def head_linear(self, x: Node, w: ExpertsHandle) -> Node:
        return self._record(HeadLinear((x,), w.count * w.out_features, x.per_row, w))

    def latent_attend(
        self, q_latent: Node, q: Node, latent: Node, key: Node, layer: int, spec: LatentSpec
    ) -> Node:
        inputs = (q_latent, q, latent, key)
        return self._record(LatentAttend(inputs, q_latent.width, q.per_row, layer, spec))

    def gated(self, gate: Node, up: Node, activation: str) -> Node:
        _check_activation(activation, _GATES)
        return self._record(Gated((gate, up), gate.width, gate.per_row, activation))

    def activate(self, x: Node, activation: str) -> Node:
        _check_activation(activation, _UNGATED)
        return self._record(Activate((x,), x.width, x.per_row, activation))

    def causal_conv(self, x: Node, filters: object, place: StatePlace, activation: str) -> Node:
        _check_activation(activation, {"silu", "identity"})
        return self._record(CausalConv((x,), x.width, x.per_row, place, filters, activation))

    def step_size(self, x: Node, bias: object, least: float, most: float) -> Node:
        return self._record(StepSize((x,), x.width, x.per_row, bias, least, most))

    def decay(self, x: Node, rates: object) -> Node:
        return self._record(Decay((x,), x.width, x.per_row, rates))

    def linear_attend(
        self,
        q: Node,
        k: Node,
        v: Node,
        decay: Node,
        strength: Node,
        place: StatePlace,
        spec: LinearAttentionSpec,
        skip: object | None = None,
    ) -> Node:
        inputs = (q, k, v, decay, strength)
        return self._record(LinearAttend(inputs, v.width, v.per_row, place, spec, skip))

    def selective_scan(
        self, q: Node, k: Node, v: Node, step: Node, rates: object, skip: object, place: StatePlace
    ) -> Node:
        inputs = (q, k, v, step)
        return self._record(SelectiveScan(inputs, v.width, v.per_row, place, rates, skip))

    def token_shift(self, x: Node, shares: object, parts: int, place: StatePlace) -> Node:
        return self._record(TokenShift((x,), parts * x.width, x.per_row, place, shares))

    def rwkv_attend(
        self, inputs: tuple[Node, ...], weights: tuple[object, ...], place: StatePlace, eps: float
    ) -> Node:
        of_one = inputs[0].width, inputs[0].per_row
        return self._record(RwkvAttend(inputs, *of_one, place, weights, eps))

    def experts(
        self, x: Node, logits: Node, weights: ExpertWeights[ExpertsHandle], spec: ExpertSpec
    ) -> Node:
        known = _GATES if weights.gate is not None else _UNGATED
        _check_activation(spec.activation, known)
        return self._record(Experts((x, logits), x.width, x.per_row, weights, spec))

    def gate_rows(self, x: Node, gate: Node, activation: str = "sigmoid") -> Node:
        _check_activation(activation, {"sigmoid", "identity"})
        return self._record(GateRows((x, gate), x.width, x.per_row, activation))

    def mix_heads(self, x: Node, factors: Node, heads: int) -> Node:
        width = x.width // heads * (factors.width // heads)
        return self._record(MixHeads((x, factors), width, x.per_row, heads))

    def add(self, x: Node, y: Node) -> Node:
        return self._record(Add((x, y), x.width, x.per_row))

    def take_rows(self, x: Node, rows: Node, count: int = 1) -> Node:
        return self._record(TakeRows((x, rows), count * x.width, True))

    def see(self, x: Node, first: int = 0, *, adds: bool = False) -> Node:
        return self._record(See((x,), x.width, x.per_row, first, adds))

    def take_columns(self, x: Node, first: int, width: int, heads: int = 1) -> Node:
        return self._record(TakeColumns((x,), heads * width, x.per_row, first, heads))

    def apply(self, operation: Operation, *inputs: Node) -> Node:
        width = operation.width(*(x.width for x in inputs))
        return self._record(Apply(inputs, width, inputs[0].per_row, operation))

    def join(self, x: Node, y: Node) -> Node:
        return self._record(Join((x, y), x.width + y.width, x.per_row))


def _check_activation(activation: str, known: Set[str]) -> None:
    if activation not in known:
        raise UnsupportedModelError(f"activation {activation!r} has no kernel")
