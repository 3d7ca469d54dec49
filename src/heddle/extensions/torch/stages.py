"""A recorded forward pass in three stages, each of which forgets values that nothing reads later.

A step computes the first stage for all tokens, and the others for the rows that the plan reads, a
few at a time: logits are large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from heddle.extensions.torch.made_nodes import compute_node

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    from heddle.executors.graph.forward import Forward
    from heddle.executors.graph.recording import Node
    from heddle.models.ops import Ops

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive nodes, each with the values that nobody reads after it."""

    steps: tuple[tuple[Node, tuple[Node, ...]], ...]

    def run(self, ops: Ops[A, Any], values: dict[Node, A]) -> None:
        """Compute the nodes from `values` and add theirs. Removes values that are not needed."""
        for _ in self.pieces(ops, values):
            pass

    def pieces(self, ops: Ops[A, Any], values: dict[Node, A]) -> Iterator[None]:
        """The same, one node at a time."""
        for node, dead in self.steps:
            values[node] = compute_node(node, ops, [values[source] for source in node.inputs])
            for value in dead:
                del values[value]
            yield


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a forward pass: of all tokens, of rows up to states, of states to logits.

    Attributes:
        kept: values of the first stage, and inputs, that the second one reads.
    """

    tokens: Stage
    states: Stage
    logits: Stage
    kept: tuple[Node, ...]


def stages(forward: Forward) -> Stages:
    """Divide a forward pass."""
    end = forward.nodes.index(forward.states) + 1
    tokens = [node for node in forward.nodes if not node.per_row]
    states = [node for node in forward.nodes[:end] if node.per_row]
    logits = forward.nodes[end:]
    made = set(states)
    read = dict.fromkeys(source for node in states for source in node.inputs)
    kept = tuple(node for node in read if node not in made and not node.per_row)
    return Stages(
        _stage(tokens, {*kept}),
        _stage(states, {forward.states}),
        _stage(logits, {forward.states, forward.logits}),
        kept,
    )


def _stage(nodes: list[Node], kept: Set[Node]) -> Stage:
    """The nodes as a stage after which the values of `kept` remain."""
    last = {source: node for node in nodes for source in node.inputs}
    return Stage(
        tuple(
            (
                node,
                tuple(
                    source
                    for source in dict.fromkeys(node.inputs)
                    if last[source] is node and source not in kept
                ),
            )
            for node in nodes
        )
    )
