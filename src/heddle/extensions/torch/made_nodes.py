"""Nodes that no model records: of a divided graph, and of operations that are joined.

`division/` and `fusion.py` make them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from heddle.executors.graph import forward
from heddle.executors.graph.recording import Experts, Node

if TYPE_CHECKING:
    from heddle.executors.graph.recording import LinearHandle, TableHandle
    from heddle.extensions.torch.fused_ops import FusedOps
    from heddle.extensions.torch.share_ops import ShareOps
    from heddle.models.ops import AttentionSpec, Ops, RopeSpec

A = TypeVar("A")


@dataclass(frozen=True, slots=True, eq=False)
class SumRanks(Node):
    """The sum of the values of all ranks, added in the order of the ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class GatherRanks(Node):
    """The columns of all ranks.

    The values of the ranks have `widths` columns. `order` has, for each column of the result, its
    index among the columns of all ranks beside each other. Empty: they lie in this order.
    """

    widths: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PickColumns(Node):
    """The columns with these indices."""

    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EmbedShare(Node):
    """An `Embed` with the rows of a table from `first` on; zeros for all other tokens.

    The whole table has `rows` rows.
    """

    table: TableHandle
    first: int
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class ExpertsShare(Experts):
    """An `Experts` that gives only the results of the experts from `first` on."""

    first: int


@dataclass(frozen=True, slots=True, eq=False)
class RopedAttend(Node):
    """`Attend` with rotated queries and keys. Inputs: queries, keys, values, positions."""

    layer: int
    spec: AttentionSpec
    sinks: object | None
    rope: RopeSpec


@dataclass(frozen=True, slots=True, eq=False)
class AddNorm(Node):
    """The sum of two inputs, and the norm of the sum: a tuple. `Item` takes one of the two.

    `readers` are the matrices that multiply the norm.
    """

    weight: object
    eps: float
    readers: tuple[LinearHandle, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GatedFor(Node):
    """`Gated`. `readers` are the matrices that multiply the result."""

    activation: str
    readers: tuple[LinearHandle, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LinearEach(Node):
    """The products of several matrices with one input: a tuple. `Item` takes one of them."""

    weights: tuple[LinearHandle, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Item(Node):
    """A value of a tuple."""

    index: int


def compute_node(node: Node, ops: Ops[A, Any], sources: list[A]) -> A:
    """Compute one node from the values of its inputs."""
    match node, sources:
        case SumRanks(), [x]:
            return _of_ranks(ops).sum_ranks(x)
        case GatherRanks(widths=widths, order=order), [x]:
            return _of_ranks(ops).gather_ranks(x, widths, order)
        case PickColumns(columns=columns), [x]:
            return _of_ranks(ops).pick_columns(x, columns)
        case EmbedShare(table=table, first=first, rows=rows), [tokens]:
            return _of_ranks(ops).embed_share(table, tokens, first, rows)
        case ExpertsShare(weights=weights, spec=experts, first=first), [x, logits]:
            return _of_ranks(ops).experts_share(x, logits, weights, experts, first)
        case RopedAttend(layer=layer, spec=attention, sinks=sinks, rope=rope), sources:
            q, k, v, positions = sources
            return _fused(ops).roped_attend(q, k, v, positions, layer, attention, sinks, rope)
        case AddNorm(weight=weight, eps=eps, readers=readers), [x, y]:
            return cast("A", _fused(ops).add_norm(x, y, weight, eps, readers))
        case GatedFor(activation=activation, readers=readers), [gate, up]:
            return _fused(ops).gated_for(gate, up, activation, readers)
        case LinearEach(weights=weights), [x]:
            return cast("A", _fused(ops).linear_each(x, weights))
        case Item(index=index), [several]:
            return cast("tuple[A, ...]", several)[index]
    return forward.compute_node(node, ops, sources)


def _of_ranks(ops: Ops[A, Any]) -> ShareOps[A]:
    """The operations of a rank's graph. An executor that divides models has them."""
    return cast("ShareOps[A]", ops)


def _fused(ops: Ops[A, Any]) -> FusedOps[A]:
    """The joined operations. A device that asks for them has them."""
    return cast("FusedOps[A]", ops)
