"""A model's forward pass as a graph: record it, count its work, or compute it with any ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from heddle.executors.graph import recording
from heddle.executors.graph.recording import Input, Node, RecordingOps
from heddle.models.ops import Batch
from heddle.roofline import ExpertWork, ModelWork

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.decoder import Decoder
    from heddle.models.eyes import Eyes
    from heddle.models.ops import Ops

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Forward:
    """One recorded forward pass.

    Attributes:
        inputs: token ids, positions, wanted rows, and the hidden states that a head reads.
        nodes: the operations, each after its inputs.
        states: last hidden states of the wanted rows.
        logits: logits of the same rows.
    """

    inputs: Batch[Node]
    nodes: list[Node]
    states: Node
    logits: Node


def record(model: Decoder, weights: Any) -> Forward:
    """Record the forward pass of a model whose weights are handles of an executor."""
    ops, inputs = RecordingOps(), _inputs(model.shape.width if model.reads_states else 0)
    states = model.forward(ops, weights, inputs)
    logits = model.logits(ops, weights, states)
    return Forward(inputs, ops.nodes, states, logits)


def record_eyes(model: Eyes, weights: Any) -> Forward:
    """Record the forward pass of eyes. They make no logits; their rows stand in that place."""
    ops, inputs = RecordingOps(), _inputs(model.input_width)
    rows = model.forward(ops, weights, inputs)
    return Forward(inputs, ops.nodes, rows, rows)


def _inputs(states: int) -> Batch[Node]:
    """The inputs of a forward pass, with `states` columns of values beside the tokens."""
    return Batch(
        tokens=Input((), 1, False, "tokens"),
        positions=Input((), 1, False, "positions"),
        rows=Input((), 1, True, "rows"),
        states=Input((), states, False, "states") if states else None,
    )


def plain_products(forward: Forward) -> dict[str, Any]:
    """The matrices of products that are operations of their own, by name."""
    linears = (node for node in forward.nodes if isinstance(node, recording.Linear))
    return {node.weight.name: node.weight for node in linears}


def adaptable(forward: Forward) -> dict[str, Any]:
    """The matrices that adapters may change: those of plain products and of experts, by name.

    The table in which tokens are looked up is `embedding`.
    """
    found = [*plain_products(forward).values()]
    for node in forward.nodes:
        if isinstance(node, recording.Experts):
            stacks = (node.weights.gate, node.weights.up, node.weights.down)
            found += [stack[i] for stack in stacks if stack is not None for i in range(stack.count)]
        elif isinstance(node, recording.Embed) and node.table.name == "embedding":
            found.append(node.table)
    return {weight.name: weight for weight in found}


def compute(forward: Forward, ops: Ops[A, Any], batch: Batch[A]) -> tuple[A, A]:
    """Compute states and logits of a batch, one node after the other."""
    inputs = forward.inputs
    values: dict[Node, A] = {
        inputs.tokens: batch.tokens,
        inputs.positions: batch.positions,
        inputs.rows: batch.rows,
    }
    if inputs.states is not None:
        assert batch.states is not None, "a head reads hidden states"
        values[inputs.states] = batch.states
    for node in forward.nodes:
        values[node] = compute_node(node, ops, [values[source] for source in node.inputs])
    return values[forward.states], values[forward.logits]


def compute_node(node: Node, ops: Ops[A, Any], sources: list[A]) -> A:
    """Compute one node from the values of its inputs."""
    match node, sources:
        case recording.Embed(table=table, first=first), [indices]:
            return ops.embed(table, indices, first)
        case recording.EmbedSegments(table=table, separator=separator), [tokens]:
            return ops.embed_segments(table, tokens, separator)
        case recording.EmbedPrevious(table=table, start=start), [tokens]:
            return ops.embed_previous(table, tokens, start)
        case recording.MeanRows(), [x]:
            return ops.mean_rows(x)
        case recording.Linear(weight=weight), [x]:
            return ops.linear(x, weight)
        case recording.Norm(weight=weight, eps=eps), [x]:
            return ops.norm(x, weight, eps)
        case recording.LayerNorm(weight=weight, bias=bias, eps=eps), [x]:
            return ops.layer_norm(x, weight, bias, eps)
        case recording.NormHeads(weight=weight, eps=eps, heads=heads), [x]:
            return ops.norm_heads(x, weight, eps, heads)
        case recording.Scale(factor=factor), [x]:
            return ops.scale(x, factor)
        case recording.SoftCap(cap=cap), [x]:
            return ops.soft_cap(x, cap)
        case recording.Rope(spec=rope, heads=heads), [x, positions]:
            return ops.rope(x, positions, rope, heads)
        case recording.Attend(layer=layer, spec=attention, sinks=sinks), [q, k, v]:
            return ops.attend(q, k, v, layer, attention, sinks)
        case recording.Attend(layer=layer, spec=attention), [q]:
            return ops.attend_stored(q, layer, attention)
        case recording.HeadLinear(weight=weight), [x]:
            return ops.head_linear(x, weight)
        case recording.LatentAttend(layer=layer, spec=latent), [q_latent, q, k, v]:
            return ops.latent_attend(q_latent, q, k, v, layer, latent)
        case recording.TakeColumns(first=first, width=width, heads=heads), [x]:
            return ops.take_columns(x, first, width // heads, heads)
        case recording.Apply(operation=operation), sources:
            return ops.apply(operation, *sources)
        case recording.Join(), [x, y]:
            return ops.join(x, y)
        case recording.Gated(activation=activation), [gate, up]:
            return ops.gated(gate, up, activation)
        case recording.Activate(activation=activation), [x]:
            return ops.activate(x, activation)
        case recording.CausalConv(filters=filters, place=place, activation=activation), [x]:
            return ops.causal_conv(x, filters, place, activation)
        case recording.StepSize(bias=bias, least=least, most=most), [x]:
            return ops.step_size(x, bias, least, most)
        case recording.Decay(rates=rates), [x]:
            return ops.decay(x, rates)
        case recording.LinearAttend(place=place, spec=linear, skip=skip), [q, k, v, d, s]:
            return ops.linear_attend(q, k, v, d, s, place, linear, skip)
        case recording.SelectiveScan(rates=rates, skip=skip, place=place), [q, k, v, step]:
            return ops.selective_scan(q, k, v, step, rates, skip, place)
        case recording.TokenShift(shares=shares, place=place, width=width), [x]:
            return ops.token_shift(x, shares, width // node.inputs[0].width, place)
        case recording.RwkvAttend(weights=vectors, place=place, eps=eps), _:
            return ops.rwkv_attend(tuple(sources), vectors, place, eps)
        case recording.Experts(weights=weights, spec=experts), [x, logits]:
            return ops.experts(x, logits, weights, experts)
        case recording.GateRows(activation=activation), [x, gate]:
            return ops.gate_rows(x, gate, activation)
        case recording.MixHeads(heads=heads), [x, factors]:
            return ops.mix_heads(x, factors, heads)
        case recording.Add(), [x, y]:
            return ops.add(x, y)
        case recording.TakeRows(), [x, rows]:
            return ops.take_rows(x, rows, node.width // node.inputs[0].width)
        case recording.See(first=first, adds=adds), [x]:
            return ops.see(x, first, adds=adds)
    raise ValueError(f"no operation computes {type(node).__name__}")


def model_work(
    forward: Forward, weight_bytes: int, position_bytes: Mapping[int, float]
) -> ModelWork:
    """Count the matmuls, attentions and states of a recorded forward pass.

    `weight_bytes` is the size of all matrices. `position_bytes` is the size of the keys and values
    of one position, for each layer that keeps them.
    """
    per_token = per_row = 0
    layers, experts = [], []
    state_bytes = 0
    for node in forward.nodes:
        if isinstance(node, recording.Linear):
            count = node.weight.out_features * node.weight.in_features
            per_token += 0 if node.per_row else count
            per_row += count if node.per_row else 0
        elif isinstance(node, recording.HeadLinear):
            per_token += node.weight.count * node.weight.out_features * node.weight.in_features
        elif isinstance(node, recording.LatentAttend):
            layers.append((0, position_bytes[node.layer]))
        elif isinstance(node, recording.Attend):
            layers.append((node.spec.window, position_bytes[node.layer]))
        elif isinstance(node, recording.Recurrent):
            state_bytes += 4 * node.place.count
        elif isinstance(node, recording.Experts):
            stacks = [node.weights.up, node.weights.down]
            if node.weights.gate is not None:
                stacks.append(node.weights.gate)
            of_one = sum(stack.out_features * stack.in_features for stack in stacks)
            per_token += node.spec.used * of_one
            size = sum(stack.nbytes for stack in stacks)
            experts.append(ExpertWork(node.spec.count, node.spec.used, size))
    return ModelWork(weight_bytes, per_token, per_row, tuple(layers), tuple(experts), state_bytes)
