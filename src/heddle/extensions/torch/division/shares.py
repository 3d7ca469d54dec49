"""The share of a rank in a divided forward pass: its graph with its weights, and its state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from heddle.executors.graph import recording
from heddle.executors.graph.forward import Forward
from heddle.extensions.torch import made_nodes
from heddle.extensions.torch.division.claims import WHOLE, Cut
from heddle.extensions.torch.division.divide import columns_of
from heddle.models.fixed_state import fixed_state
from heddle.models.ops import ExpertWeights
from heddle.state import Fixed, Pages, Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.executors.graph.recording import Node
    from heddle.extensions.torch.division.claims import Claim, Indices, PartLoader
    from heddle.extensions.torch.division.divide import Division
    from heddle.models.ops import StatePlace
    from heddle.state import StateKind


def whole(forward: Forward, loader: PartLoader) -> Forward:
    """A forward pass whose weights are claims, with loaded weights. Raises as the loader."""
    return _Cutter(forward, None, 0, loader).cut()


def share(division: Division, rank: int, loader: PartLoader) -> Forward:
    """The graph of a rank, with its part of the weights. Raises as the loader."""
    return _Cutter(division.forward, division, rank, loader).cut()


def share_kinds(
    division: Division, kinds: Sequence[Sequence[StateKind]]
) -> list[tuple[StateKind, ...]]:
    """The kinds of state of each layer of any rank."""
    heads = {
        node.layer: len(division.kv_heads(node.spec.kv_heads)[0])
        for node in division.forward.nodes
        if isinstance(node, recording.Attend)
    }
    fixed = {layer: state for layer, (state, _) in _places(division.forward, division, 0).items()}

    def own(layer: int, kind: StateKind) -> StateKind:
        if isinstance(kind, Pages | Window) and layer in heads:
            return replace(kind, shape=replace(kind.shape, heads=heads[layer]))
        return fixed[layer] if isinstance(kind, Fixed) else kind

    return [tuple(own(layer, kind) for kind in of) for layer, of in enumerate(kinds)]


class _Cutter:
    """Makes the graph of one rank, node by node."""

    def __init__(
        self, forward: Forward, division: Division | None, rank: int, loader: PartLoader
    ) -> None:
        self._forward = forward
        self._division = division
        self._rank = rank
        self._loader = loader
        self._nodes: list[Node] = []
        self._known: set[Node] = set()
        self._made: dict[Node, Node] = {}  # the rank's own form of each value
        self._whole: dict[Node, Node] = {}
        places = _places(forward, division, rank)
        self._places = {
            key: place for _, of_layer in places.values() for key, place in of_layer.items()
        }

    def cut(self) -> Forward:
        """The rank's graph."""
        inputs = self._forward.inputs
        given = (inputs.tokens, inputs.positions, inputs.rows, inputs.states)
        self._made.update((one, one) for one in given if one is not None)
        self._known.update(self._made)
        for node in self._forward.nodes:
            self._made[node] = self._add(self._local(node))
        states = self._all(self._forward.states)
        return Forward(inputs, self._nodes, states, self._all(self._forward.logits))

    def _add(self, node: Node) -> Node:
        if node not in self._known:
            self._known.add(node)
            self._nodes.append(node)
        return node

    # --- values of other nodes

    def _parts(self, node: Node) -> Indices | None:
        """The columns of a value that this rank has; None: all."""
        if self._division is None or node not in self._division.parts:
            return None
        return self._division.parts[node][self._rank]

    def _all(self, node: Node) -> Node:
        """The whole value."""
        if node in self._whole:
            return self._whole[node]
        found = self._made[node]
        division = self._division
        if division is not None and node in division.terms:
            found = self._add(made_nodes.SumRanks((found,), node.width, node.per_row))
        elif division is not None and node in division.parts:
            parts = division.parts[node]
            widths = tuple(map(len, parts))
            places = np.unique(np.concatenate(parts), return_index=True)[1]
            order = () if _is_run(places, sum(widths)) else tuple(places.tolist())
            found = self._add(
                made_nodes.GatherRanks((found,), node.width, node.per_row, widths, order)
            )
        self._whole[node] = found
        return found

    def _columns(self, node: Node, wanted: Indices | None) -> Node:
        """Some columns of a value, or all."""
        if wanted is None:
            return self._all(node)
        held = self._parts(node)
        if held is not None and not np.isin(wanted, held).all():
            held = None
        found = self._all(node) if held is None else self._made[node]
        at = wanted if held is None else np.searchsorted(held, wanted)
        if _is_run(at, found.width):
            return found
        own, per_row = (found,), node.per_row
        if _is_run(at - at[0], len(at)):
            return self._add(recording.TakeColumns(own, len(at), per_row, int(at[0]), 1))
        return self._add(made_nodes.PickColumns(own, len(at), per_row, tuple(at.tolist())))

    def _load(self, claim: Any, cut: Cut = WHOLE) -> Any:
        """A weight, or a part of it."""
        return None if claim is None else claim.load(self._loader, cut)

    # --- operations

    def _local(self, node: Node) -> Node:
        """The operation that this rank does for a node."""
        parts, division = self._parts(node), self._division
        if division is not None and node in division.terms:
            return self._term(node, division)
        width = node.width if parts is None else len(parts)
        match node:
            case recording.Linear(weight=claim):
                x = self._all(node.inputs[0])
                weight = self._load(claim, Cut(rows=parts))
                return replace(node, inputs=(x,), width=width, weight=weight)
            case recording.Embed() | recording.EmbedSegments() | recording.EmbedPrevious():
                return replace(node, table=self._load(node.table))
            case recording.Norm(weight=claim):
                return replace(node, inputs=self._every(node), weight=self._load(claim))
            case recording.LayerNorm(weight=claim, bias=bias):
                weight, inputs = self._load(claim), self._every(node)
                return replace(node, inputs=inputs, weight=weight, bias=self._load(bias))
            case recording.Experts(weights=weights):
                return replace(node, inputs=self._every(node), weights=self._stacks(weights))
            case recording.Attend() | recording.LatentAttend() | recording.LinearAttend():
                return self._attention(node, width)
            case recording.SelectiveScan(rates=rates, skip=skip, place=place):
                return replace(
                    node,
                    inputs=self._every(node),
                    rates=self._load(rates),
                    skip=self._load(skip),
                    place=self._places[place],
                )
            case recording.TakeColumns() if parts is not None:
                size, stride = node.width // node.heads, node.inputs[0].width // node.heads
                wanted = parts // size * stride + node.first + parts % size
                return self._columns(node.inputs[0], wanted)
        inputs = self._by_column(node, parts)
        match node:
            case recording.NormHeads(weight=claim, heads=heads):
                size = node.width // heads
                own = parts if _claim(claim).shape != (size,) else None
                weight = self._load(claim, Cut(rows=own))
                return replace(node, inputs=inputs, width=width, weight=weight, heads=width // size)
            case recording.Rope(heads=heads):
                heads = width // (node.width // heads)
                return replace(node, inputs=inputs, width=width, heads=heads)
            case recording.HeadLinear(weight=claim):
                return self._head_linear(node, _claim(claim), parts)
            case recording.CausalConv(filters=claim, place=place):
                filters = self._load(claim, Cut(rows=parts))
                place = self._places[place]
                return replace(node, inputs=inputs, width=width, filters=filters, place=place)
            case recording.TokenShift(shares=claim, place=place):
                return replace(
                    node, inputs=inputs, shares=self._load(claim), place=self._places[place]
                )
            case recording.RwkvAttend(weights=claims, place=place):
                vectors = tuple(map(self._load, claims))
                return replace(node, inputs=inputs, weights=vectors, place=self._places[place])
            case recording.StepSize(bias=claim):
                bias = self._load(claim, Cut(rows=parts))
                return replace(node, inputs=inputs, width=width, bias=bias)
            case recording.Decay(rates=claim):
                each = node.width // _claim(claim).shape[0]
                own = None if parts is None else np.unique(parts // each)
                rates = self._load(claim, Cut(rows=own))
                return replace(node, inputs=inputs, width=width, rates=rates)
        return replace(node, inputs=inputs, width=width)

    def _every(self, node: Node) -> tuple[Node, ...]:
        return tuple(self._all(one) for one in node.inputs)

    def _by_column(self, node: Node, parts: Indices | None) -> tuple[Node, ...]:
        """The inputs of an operation on columns or heads, as far as it needs them."""
        match node:
            case recording.GateRows():
                x, gate = node.inputs
                own = None
                if parts is not None and gate.width > 1:
                    own = np.unique(parts // (x.width // gate.width))
                return self._columns(x, parts), self._columns(gate, own)
            case recording.Rope():
                return self._columns(node.inputs[0], parts), self._all(node.inputs[1])
            case recording.HeadLinear():
                return ()
        return tuple(self._columns(one, parts) for one in node.inputs)

    def _head_linear(self, node: recording.HeadLinear, claim: Claim, parts: Indices | None) -> Node:
        (x,) = node.inputs
        if parts is None:
            return replace(node, inputs=(self._all(x),), weight=self._load(claim))
        heads = np.unique(parts // claim.out_features)
        (columns,) = columns_of([heads], x.width // claim.count)
        stack = range(int(heads[0]), int(heads[-1]) + 1)
        weight = self._load(claim, Cut(stack=stack))
        return replace(node, inputs=(self._columns(x, columns),), width=len(parts), weight=weight)

    def _attention(
        self,
        node: recording.Attend | recording.LatentAttend | recording.LinearAttend,
        width: int,
    ) -> Node:
        division, rank = self._division, self._rank
        if division is None:
            inputs = self._every(node)
        else:
            wants = division.attention_inputs(node)
            inputs = tuple(
                self._columns(one, None if want is None else want[rank])
                for one, want in zip(node.inputs, wants, strict=True)
            )
        match node:
            case recording.Attend(spec=spec, sinks=sinks):
                heads, kv_heads, own = spec.heads, spec.kv_heads, None
                if division is not None:
                    heads //= division.ranks
                    kv_heads = len(division.kv_heads(kv_heads)[rank])
                    own = np.arange(rank * heads, (rank + 1) * heads)
                spec = replace(spec, heads=heads, kv_heads=kv_heads)
                loaded = self._load(sinks, Cut(rows=own))
                return replace(node, inputs=inputs, width=width, spec=spec, sinks=loaded)
            case recording.LatentAttend(spec=latent):
                heads = latent.heads // (division.ranks if division else 1)
                return replace(node, inputs=inputs, width=width, spec=replace(latent, heads=heads))
            case recording.LinearAttend(spec=linear, skip=skip, place=place):
                heads, key_heads, own = linear.heads, linear.key_heads, None
                if division is not None:
                    own = division.value_heads(linear)[rank]
                    heads, key_heads = len(own), len(division.key_heads(linear)[rank])
                return replace(
                    node,
                    inputs=inputs,
                    width=width,
                    spec=replace(linear, heads=heads, key_heads=key_heads),
                    skip=self._load(skip, Cut(rows=own)),
                    place=self._places[place],
                )

    def _term(self, node: Node, division: Division) -> Node:
        """An operation whose results the ranks add up."""
        rank = self._rank
        match node:
            case recording.Linear(weight=claim):
                columns = division.inner[node][rank]
                weight = self._load(claim, Cut(columns=columns, bias=rank == 0))
                return replace(
                    node, inputs=(self._columns(node.inputs[0], columns),), weight=weight
                )
            case recording.Embed(table=table):
                count = _claim(table).out_features
                rows = division.rows_of(rank, count)
                loaded = self._load(table, Cut(rows=np.asarray(rows)))
                return made_nodes.EmbedShare(
                    node.inputs, node.width, node.per_row, loaded, rows.start, count
                )
            case recording.Experts(weights=weights, spec=spec):
                inputs = self._every(node)
                if node in division.inner:
                    loaded = self._stacks(weights, division.inner[node][rank])
                    return replace(node, inputs=inputs, weights=loaded)
                own = division.experts_of(rank, spec.count)
                loaded = self._stacks(weights, stack=own)
                return made_nodes.ExpertsShare(
                    inputs, node.width, node.per_row, loaded, spec, own.start
                )
        first, *rest = (self._made[one] for one in node.inputs)
        if isinstance(node, recording.GateRows):
            rest = [self._all(node.inputs[1])]
        return replace(node, inputs=(first, *rest))

    def _stacks(
        self, weights: Any, inner: Indices | None = None, stack: range | None = None
    ) -> ExpertWeights[Any]:
        """The experts' matrices; `inner` are elements of their inner states."""
        is_first = self._rank == 0
        outer = Cut(rows=inner, stack=stack)
        down = Cut(columns=inner, stack=stack, bias=stack is not None or is_first)
        return ExpertWeights(
            gate=self._load(weights.gate, outer),
            up=self._load(weights.up, outer),
            down=self._load(weights.down, down),
        )


def _is_run(indices: Indices, count: int) -> bool:
    """Whether the indices are those from 0 to `count`."""
    return np.array_equal(indices, np.arange(count))


def _claim(weight: object) -> Claim:
    """The claim that a graph has in the place of a weight."""
    return cast("Claim", weight)


def _places(
    forward: Forward, division: Division | None, rank: int
) -> dict[int, tuple[Fixed, dict[StatePlace, StatePlace]]]:
    """The state of a rank, and the places of its parts, for each layer with a fixed-size state."""
    of_layer: dict[int, list[tuple[StatePlace, int]]] = {}
    for node in forward.nodes:
        if isinstance(node, recording.Recurrent):
            count = node.place.count
            if division is not None and node in division.parts:
                count = count * len(division.parts[node][rank]) // node.width
            of_layer.setdefault(node.place.layer, []).append((node.place, count))
    found = {}
    for layer, parts in of_layer.items():
        parts.sort(key=lambda part: part[0].first)
        kind, places = fixed_state(layer, [count for _, count in parts])
        whole_places = (place for place, _ in parts)
        found[layer] = kind, dict(zip(whole_places, places, strict=True))
    return found
