"""Joins operations of a recorded graph for devices that compute them at once.

No model and no division of a graph knows the joined operations: see `fused_ops.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heddle.executors.graph import recording
from heddle.executors.graph.forward import Forward
from heddle.extensions.torch import made_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from heddle.executors.graph.recording import LinearHandle, Node


def fused(forward: Forward, joint: Callable[[Any], Hashable]) -> Forward:
    """The same forward pass with joined operations.

    Matrices for which `joint` returns equal values can be multiplied at once.
    """
    return _Fusion(forward, joint).result()


class _Fusion:
    """Makes a graph of joined operations from another one."""

    def __init__(self, forward: Forward, joint: Callable[[LinearHandle], Hashable]) -> None:
        self._forward = forward
        self._joint = joint
        self._readers: dict[Node, list[Node]] = {}
        for node in forward.nodes:
            for source in dict.fromkeys(node.inputs):
                self._readers.setdefault(source, []).append(node)
        attends = [node for node in forward.nodes if self._has_ropes(node)]
        self._ropes = {rope for node in attends for rope in node.inputs[:2]}
        self._norms = dict(self._sums_with_norms())
        self._products = dict(self._products_of_one_input())
        others = {node for nodes in self._products.values() for node in nodes[1:]}
        self._left_out = {*self._ropes, *self._norms.values(), *others}
        self._made: dict[Node, Node] = {}

    def result(self) -> Forward:
        """The new graph."""
        nodes = [new for node in self._forward.nodes for new in self._replacement(node)]
        states, logits = (self._made[node] for node in (self._forward.states, self._forward.logits))
        return Forward(self._forward.inputs, nodes, states, logits)

    def _replacement(self, node: Node) -> Iterator[Node]:
        """The nodes that take the place of a node."""
        if node in self._left_out:
            return
        if node in self._norms:
            yield from self._sum_and_norm(node, self._norms[node])
            return
        if node in self._products:
            yield from self._each_product(self._products[node])
            return
        if isinstance(node, recording.Attend) and self._has_ropes(node):
            self._made[node] = self._roped(node)
        elif isinstance(node, recording.Gated) and (readers := tuple(self._matrices(node))):
            self._made[node] = made_nodes.GatedFor(
                self._new(node.inputs), node.width, node.per_row, node.activation, readers
            )
        else:
            self._made[node] = replace(node, inputs=self._new(node.inputs))
        yield self._made[node]

    def _new(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """The new nodes that have the values of old ones."""
        return tuple(self._made.get(node, node) for node in nodes)

    def _has_ropes(self, node: Node) -> bool:
        """Whether a node is attention whose queries and keys get the same rotation before it."""
        if not isinstance(node, recording.Attend) or len(node.inputs) != 3:
            return False
        q, k, _ = node.inputs
        return (
            isinstance(q, recording.Rope)
            and isinstance(k, recording.Rope)
            and q is not k
            and (q.spec, q.inputs[1]) == (k.spec, k.inputs[1])
            and self._readers[q] == self._readers[k] == [node]
        )

    def _roped(self, node: recording.Attend) -> Node:
        q, k, v = node.inputs
        assert isinstance(q, recording.Rope)
        inputs = self._new((q.inputs[0], k.inputs[0], v, q.inputs[1]))
        return made_nodes.RopedAttend(
            inputs, node.width, node.per_row, node.layer, node.spec, node.sinks, q.spec
        )

    def _products_of_one_input(self) -> Iterator[tuple[Node, list[recording.Linear]]]:
        """Matmuls that can be computed at once, by the first of them."""
        for readers in self._readers.values():
            alike: dict[Hashable, list[recording.Linear]] = {}
            for node in readers:
                if isinstance(node, recording.Linear):
                    alike.setdefault(self._joint(node.weight), []).append(node)
            for nodes in alike.values():
                if len(nodes) > 1:
                    yield nodes[0], nodes

    def _each_product(self, nodes: list[recording.Linear]) -> Iterator[Node]:
        """The tuple of products, and each of them."""
        width, per_row = sum(node.width for node in nodes), nodes[0].per_row
        weights = tuple(node.weight for node in nodes)
        every = made_nodes.LinearEach(self._new(nodes[0].inputs), width, per_row, weights)
        yield every
        for index, node in enumerate(nodes):
            self._made[node] = made_nodes.Item((every,), node.width, per_row, index)
            yield self._made[node]

    def _sums_with_norms(self) -> Iterator[tuple[Node, recording.Norm]]:
        """Each sum that has a norm, and the first norm of it."""
        for node in self._forward.nodes:
            if isinstance(node, recording.Add):
                readers = self._readers.get(node, ())
                norms = [reader for reader in readers if isinstance(reader, recording.Norm)]
                if norms:
                    yield node, norms[0]

    def _sum_and_norm(self, node: Node, norm: recording.Norm) -> Iterator[Node]:
        """The pair of a sum and its norm, and those of the two that are read."""
        both = made_nodes.AddNorm(
            self._new(node.inputs),
            node.width,
            node.per_row,
            norm.weight,
            norm.eps,
            tuple(self._matrices(norm)),
        )
        yield both
        for index, part in enumerate((node, norm)):
            if self._readers.get(part) != [norm] or part is self._forward.states:
                item = made_nodes.Item((both,), node.width, node.per_row, index)
                self._made[part] = item
                yield item

    def _matrices(self, node: Node) -> Iterator[recording.LinearHandle]:
        """The matrices that multiply a value."""
        for reader in self._readers.get(node, ()):
            if isinstance(reader, recording.Linear):
                yield reader.weight
            elif isinstance(reader, recording.Experts):
                yield reader.weights.up
