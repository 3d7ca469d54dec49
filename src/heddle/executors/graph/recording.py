"""Records an architecture's forward pass as a graph of nodes instead of computing it.

`RecordingOps` implements `heddle.models.ops.Ops`; its arrays are nodes. What becomes of the graph
is `lowering.py`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from heddle._native import Matrix
    from heddle.models.ops import AttentionSpec, RopeSpec


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A packed matrix (out_features, in_features)."""

    matrix: Matrix
    out_features: int
    in_features: int


@dataclass(frozen=True, slots=True)
class TableWeight:
    """A lookup table (rows, width), packed as a matrix that may be one of a matmul too."""

    matrix: Matrix
    width: int


@dataclass(frozen=True, slots=True)
class VectorWeight:
    """A float32 vector."""

    values: npt.NDArray[np.float32]


CpuWeight = LinearWeight | TableWeight | VectorWeight


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value of the forward pass: (T, width), or (R, width) if `per_row`."""

    inputs: tuple[Node, ...]
    width: int
    per_row: bool


@dataclass(frozen=True, slots=True, eq=False)
class Input(Node):
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Embed(Node):
    table: TableWeight


@dataclass(frozen=True, slots=True, eq=False)
class Linear(Node):
    weight: LinearWeight


@dataclass(frozen=True, slots=True, eq=False)
class Norm(Node):
    weight: VectorWeight
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class NormHeads(Node):
    weight: VectorWeight
    eps: float
    heads: int


@dataclass(frozen=True, slots=True, eq=False)
class Scale(Node):
    factor: float


@dataclass(frozen=True, slots=True, eq=False)
class Rope(Node):
    spec: RopeSpec
    heads: int


@dataclass(frozen=True, slots=True, eq=False)
class Attend(Node):
    layer: int
    spec: AttentionSpec


@dataclass(frozen=True, slots=True, eq=False)
class Gated(Node):
    activation: str


@dataclass(frozen=True, slots=True, eq=False)
class Add(Node):
    pass


@dataclass(frozen=True, slots=True, eq=False)
class TakeRows(Node):
    pass


class RecordingOps:
    """Collects nodes in execution order in `nodes`."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def _record(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def embed(self, table: CpuWeight, tokens: Node) -> Node:
        assert isinstance(table, TableWeight)
        return self._record(Embed((tokens,), table.width, tokens.per_row, table))

    def linear(self, x: Node, w: CpuWeight) -> Node:
        assert isinstance(w, LinearWeight)
        return self._record(Linear((x,), w.out_features, x.per_row, w))

    def norm(self, x: Node, w: CpuWeight, eps: float) -> Node:
        assert isinstance(w, VectorWeight)
        return self._record(Norm((x,), x.width, x.per_row, w, eps))

    def norm_heads(self, x: Node, w: CpuWeight, eps: float, heads: int) -> Node:
        assert isinstance(w, VectorWeight)
        return self._record(NormHeads((x,), x.width, x.per_row, w, eps, heads))

    def scale(self, x: Node, factor: float) -> Node:
        return self._record(Scale((x,), x.width, x.per_row, factor))

    def rope(self, x: Node, positions: Node, spec: RopeSpec, heads: int) -> Node:
        return self._record(Rope((x, positions), x.width, x.per_row, spec, heads))

    def attend(self, q: Node, k: Node, v: Node, layer: int, spec: AttentionSpec) -> Node:
        return self._record(Attend((q, k, v), q.width, q.per_row, layer, spec))

    def gated(self, gate: Node, up: Node, activation: str) -> Node:
        if activation not in {"silu", "gelu"}:
            raise UnsupportedModelError(f"activation {activation!r} has no kernel")
        return self._record(Gated((gate, up), gate.width, gate.per_row, activation))

    def add(self, x: Node, y: Node) -> Node:
        return self._record(Add((x, y), x.width, x.per_row))

    def take_rows(self, x: Node, rows: Node) -> Node:
        return self._record(TakeRows((x, rows), x.width, True))
