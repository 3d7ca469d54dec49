"""Turns a recorded graph into a native program.

Fuses nodes that one native instruction can compute. No fusion changes a bit of the result:

- matmuls that read the same input become one instruction (q, k and v; gate and up);
- the matmul that computes an addend also adds it to the residual stream;
- norm, attention and activations quantise their output if quantised matmuls read it next,
  each row while it is in the L1 cache;
- rotation, scaling, soft caps and the norm of heads work in place.

A buffer is free for other nodes as soon as its last reader is done, so a step's working set is
small.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import UnsupportedModelError
from heddle.executors.cpu.weights import (
    ExpertsWeight,
    FiltersWeight,
    LinearWeight,
    TableWeight,
    VectorWeight,
)
from heddle.executors.graph import recording
from heddle.executors.graph.recording import Linear, Node

if TYPE_CHECKING:
    import numpy.typing as npt

    from heddle._native import Matrix, Program
    from heddle.executors.cpu.ropes import RopeTables
    from heddle.executors.graph.forward import Forward
    from heddle.models.ops import AttentionSpec, PositionBias, StatePlace


Places = Mapping[int, tuple[int, int]]
"""For each layer: the index of its KV cache, and its number among that cache's layers."""


def lower(
    forward: Forward,
    program: Program,
    ropes: RopeTables,
    places: Places,
    fixed: Mapping[int, int] = MappingProxyType({}),
) -> tuple[int, int | None]:
    """Append the graph's instructions to `program`.

    Returns the buffers of the logits, and of the hidden states that the graph reads, if it does.

    The program pools the graph's states. Token positions are those that `ropes` knows. `fixed` says
    at which byte of a fixed-size state each recurrent layer begins.

    Raises:
        ValueError: no instruction computes a part of the graph.
    """
    lowering = _Lowering(forward.nodes, forward.logits, program, ropes, places, fixed)
    if forward.inputs.states is not None:
        lowering.keep_input(forward.inputs.states)
    for index, node in enumerate(forward.nodes):
        lowering.emit(node)
        if node is forward.states:
            program.pool(lowering.buffer_of[node])
        lowering.release(index)
    read = forward.inputs.states
    return lowering.buffer_of[forward.logits], None if read is None else lowering.buffer_of[read]


class _Lowering:
    def __init__(
        self,
        nodes: list[Node],
        logits: Node,
        program: Program,
        ropes: RopeTables,
        places: Places,
        fixed: Mapping[int, int],
    ) -> None:
        self.program = program
        self.cache_of = places
        self._fixed = fixed
        self.buffer_of: dict[Node, int] = {}
        self._order = {node: index for index, node in enumerate(nodes)}
        self._readers: defaultdict[Node, list[Node]] = defaultdict(list)
        for node in nodes:
            for source in node.inputs:
                self._readers[source].append(node)
        self._logits = logits
        self._last_use: dict[int, int] = {}  # buffer -> index of the node that reads it last
        self._free: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
        self._shape: dict[int, tuple[int, bool]] = {}
        self._ropes = ropes
        self._biases: dict[tuple[PositionBias, float], int] = {}

    def emit(self, node: Node) -> None:
        if node in self.buffer_of:
            return  # the instruction of an earlier node computes it
        match node:
            case Linear():
                self._emit_linear(node)
            case recording.Norm() | recording.LayerNorm():
                self._emit_norm(node)
            case recording.Gated():
                gate, up, wanted = self._of(node, 0), self._of(node, 1), self._wants_quantised(node)
                self.program.gated(gate, up, node.activation, self._new(node), wanted)
            case recording.Activate():
                wanted = self._wants_quantised(node)
                self.program.activate(self._in_place(node), node.activation, wanted)
            case recording.Attend():
                self._emit_attend(node)
            case recording.LatentAttend():
                self._emit_latent_attend(node)
            case _:
                self._emit_apart(node)
                self._quantise_apart(node)

    def _emit_apart(self, node: Node) -> None:
        """Append an instruction that does not quantise its output."""
        match node:
            case recording.Embed() | recording.EmbedSegments() | recording.EmbedPrevious():
                self._emit_embed(node)
            case recording.MeanRows():
                self.program.mean_rows(self._of(node, 0), self._new(node))
            case recording.Rope():
                table, first = self._ropes.of(node.spec.at(0)), node.spec.first
                axes = node.spec.axes
                self.program.rope(self._in_place(node), table, node.heads, first, axes)
            case recording.See():
                self.program.see(self._in_place(node), node.first, node.adds)
            case recording.NormHeads():
                weight = _vector(node.weight)
                self.program.norm_heads(self._in_place(node), weight, node.eps, node.heads)
            case recording.Scale():
                self.program.scale(self._in_place(node), node.factor)
            case recording.SoftCap():
                self.program.soft_cap(self._in_place(node), node.cap)
            case recording.StepSize():
                bias = _vector(node.bias)
                self.program.step_size(self._in_place(node), bias, node.least, node.most)
            case recording.Decay():
                self.program.decay(self._of(node, 0), _vector(node.rates), self._new(node))
            case recording.Recurrent():
                self._emit_recurrent(node)
            case recording.HeadLinear():
                self._emit_head_linear(node)
            case recording.Experts():
                self._emit_experts(node)
            case recording.GateRows() | recording.MixHeads():
                self._emit_factors(node)
            case recording.Add():
                self.program.add(self._of(node, 0), self._of(node, 1), self._new(node))
            case recording.TakeRows():
                self.program.take_rows(self._of(node, 0), self._new(node))
            case recording.Apply():
                inputs = [self.buffer_of[source] for source in node.inputs]
                node.operation.emit(self, inputs, self._new(node))
            case recording.Join():
                self.program.join(self._of(node, 0), self._of(node, 1), self._new(node))
            case recording.TakeColumns():
                source, out = self._of(node, 0), self._new(node)
                self.program.take_columns(source, node.first, out, node.heads)
            case _:
                raise ValueError(f"no instruction computes {type(node).__name__}")

    def keep_input(self, node: Node) -> None:
        """Give an input a buffer that no other node ever gets."""
        self.buffer_of[node] = self.program.buffer(node.width, node.per_row)

    def release(self, index: int) -> None:
        """Give back the buffers whose last reader is node `index`."""
        done = [buffer for buffer, last in self._last_use.items() if last <= index]
        for buffer in done:
            del self._last_use[buffer]
            self._free[self._shape[buffer]].append(buffer)

    def _of(self, node: Node, position: int) -> int:
        return self.buffer_of[node.inputs[position]]

    def _new(self, node: Node) -> int:
        shape = (node.width, node.per_row)
        buffer = self._free[shape].pop() if self._free[shape] else self.program.buffer(*shape)
        self._shape[buffer] = shape
        self._assign(node, buffer)
        return buffer

    def _assign(self, node: Node, buffer: int) -> None:
        """Record that `buffer` holds `node` until the node's last reader is done."""
        self.buffer_of[node] = buffer
        readers = self._readers[node]
        last = max((self._order[r] for r in readers), default=self._order[node])
        if node is self._logits:
            last = len(self._order)
        self._last_use[buffer] = max(last, self._last_use.get(buffer, 0))

    def _wants_quantised(self, node: Node) -> bool:
        return any(_reads_quantised(reader, node) for reader in self._readers[node])

    def _quantise_apart(self, node: Node) -> None:
        if self._wants_quantised(node):
            self.program.quantise(self.buffer_of[node])

    def _emit_embed(
        self, node: recording.Embed | recording.EmbedSegments | recording.EmbedPrevious
    ) -> None:
        assert isinstance(node.table, TableWeight)
        table, out, indices = node.table.matrix, self._new(node), node.inputs[0]
        if isinstance(node, recording.EmbedSegments):
            self.program.embed_segments(table, node.separator, out)
        elif isinstance(node, recording.EmbedPrevious):
            self.program.embed_previous(table, node.start, out)
        else:
            assert isinstance(indices, recording.Input)
            self.program.embed(table, out, indices.name == "positions", node.first)

    def _emit_norm(self, node: recording.Norm | recording.LayerNorm) -> None:
        source, out = self._of(node, 0), self._new(node)
        weight, wanted = _vector(node.weight), self._wants_quantised(node)
        if isinstance(node, recording.Norm):
            self.program.norm(source, weight, node.eps, out, wanted)
        else:
            bias = _vector(node.bias)
            self.program.layer_norm(source, weight, bias, node.eps, out, wanted)

    def _emit_factors(self, node: recording.GateRows | recording.MixHeads) -> None:
        x, factors, out = self._of(node, 0), self._of(node, 1), self._new(node)
        if isinstance(node, recording.MixHeads):
            self.program.mix_heads(x, factors, node.heads, out)
        else:
            self.program.gate_rows(x, factors, out, node.activation)

    def _in_place(self, node: Node) -> int:
        """Give `node` the buffer of its input, in which its instruction works."""
        source = node.inputs[0]
        if max(self._order[reader] for reader in self._readers[source]) > self._order[node]:
            raise ValueError(
                f"{type(node).__name__} works in place, but a later node reads its input too"
            )
        self._assign(node, self.buffer_of[source])
        return self.buffer_of[node]

    def _emit_attend(self, node: recording.Attend) -> None:
        q, *kept = (self.buffer_of[source] for source in node.inputs)
        spec = node.spec
        cache, layer = self.cache_of[node.layer]
        if kept:
            k, v = kept
            self.program.store_kv(k, v, layer, cache)
        group_width = spec.heads // spec.kv_heads * spec.head_dim
        fused = self._wants_quantised(node) and group_width % 32 == 0
        out = self._new(node)
        assert node.sinks is None or isinstance(node.sinks, VectorWeight)
        self.program.attend(
            q,
            layer,
            spec.heads,
            spec.scale,
            spec.window,
            out,
            fused,
            cache,
            causal=spec.causal,
            soft_cap=spec.soft_cap,
            sinks=None if node.sinks is None else node.sinks.values,
            bias=self._bias_table(spec),
            aligned=spec.aligned,
            runs=spec.runs,
        )
        if not fused:
            self._quantise_apart(node)

    def _bias_table(self, spec: AttentionSpec) -> int:
        """The number of the table of terms by distance, which joins scores before their scale."""
        if spec.bias is None:
            return -1
        key = spec.bias, spec.scale
        if key not in self._biases:
            distances = np.arange(1 - self._ropes.most, self._ropes.most)
            terms = (spec.bias.of(distances) / spec.scale).astype(np.float32)
            self._biases[key] = self.program.position_bias(
                spec.heads, self._ropes.most, terms.ravel()
            )
        return self._biases[key]

    def place_of(self, place: StatePlace) -> int:
        """The place at which a part begins in the state of a sequence, in floats."""
        return self._fixed[place.layer] // 4 + place.first

    def _emit_recurrent(self, node: recording.Recurrent) -> None:
        match node:
            case recording.CausalConv():
                self._emit_conv(node)
            case recording.LinearAttend():
                self._emit_linear_attend(node)
            case recording.SelectiveScan():
                self._emit_selective_scan(node)
            case recording.TokenShift():
                shares, place = _vector(node.shares), self.place_of(node.place)
                self.program.token_shift(self._of(node, 0), shares, place, self._new(node))
            case recording.RwkvAttend():
                self._emit_rwkv_attend(node)

    def _emit_conv(self, node: recording.CausalConv) -> None:
        filters = node.filters
        assert isinstance(filters, FiltersWeight)
        self.program.conv(
            self._of(node, 0),
            taps=filters.taps,
            filters=filters.values.ravel(),
            bias=filters.bias,
            place=self.place_of(node.place),
            silu=node.activation == "silu",
            out=self._new(node),
        )

    def _emit_linear_attend(self, node: recording.LinearAttend) -> None:
        spec = node.spec
        self.program.linear_attend(
            *(self.buffer_of[source] for source in node.inputs),
            heads=spec.heads,
            key_heads=spec.key_heads,
            key_dim=spec.key_dim,
            value_dim=spec.value_dim,
            corrects=spec.corrects,
            tiled=spec.tiled,
            place=self.place_of(node.place),
            skip=None if node.skip is None else _vector(node.skip),
            out=self._new(node),
        )

    def _emit_selective_scan(self, node: recording.SelectiveScan) -> None:
        self.program.selective_scan(
            *(self.buffer_of[source] for source in node.inputs),
            rates=_vector(node.rates),
            skip=_vector(node.skip),
            place=self.place_of(node.place),
            out=self._new(node),
        )

    def _emit_rwkv_attend(self, node: recording.RwkvAttend) -> None:
        removal, replacement, bonus, norm, norm_bias = map(_vector, node.weights)
        r, k, v, decay, rate = (self.buffer_of[source] for source in node.inputs)
        heads, out = node.width * node.width // node.place.count, self._new(node)
        vectors = removal, replacement, bonus, norm, norm_bias
        where = self.place_of(node.place), node.eps, out
        self.program.rwkv_attend(r, k, v, decay, rate, *vectors, heads, *where)

    def _emit_head_linear(self, node: recording.HeadLinear) -> None:
        matrices, width = _matrices(node.weight), node.inputs[0].width // node.weight.count
        if matrices[0].quantised and width % 32:
            raise UnsupportedModelError(
                f"heads of {width} elements with quantised matrices are not supported: the number"
                " must be a multiple of 32"
            )
        self.program.head_matmul(self._of(node, 0), matrices, self._new(node))

    def _emit_latent_attend(self, node: recording.LatentAttend) -> None:
        q_latent, q, latent, key = (self.buffer_of[source] for source in node.inputs)
        cache, layer = self.cache_of[node.layer]
        self.program.store_latents(latent, key, layer, cache)
        fused, out = self._wants_quantised(node) and node.spec.rank % 32 == 0, self._new(node)
        spec = node.spec
        self.program.latent_attend(q_latent, q, layer, spec.heads, spec.scale, out, fused, cache)
        if not fused:
            self._quantise_apart(node)

    def _emit_experts(self, node: recording.Experts) -> None:
        spec, weights, scales = node.spec, node.weights, node.spec.expert_scales
        x, logits = self._of(node, 0), self._of(node, 1)
        self.program.experts(
            x,
            logits,
            self._new(node),
            () if weights.gate is None else _matrices(weights.gate),
            _matrices(weights.up),
            _matrices(weights.down),
            used=spec.used,
            scoring=spec.scoring,
            normalised=spec.normalised,
            scale=spec.scale,
            groups=spec.groups,
            groups_used=spec.groups_used,
            group_best=spec.group_best,
            selection_bias=np.array(spec.selection_bias, np.float32),
            activation=spec.activation,
            expert_scales=np.array(scales, np.float32) if scales else None,
            weighs_input=spec.weighs_input,
        )

    def _emit_linear(self, node: Linear) -> None:
        residual = self._residual_of(node)
        if residual is not None:
            target, stream = residual
            buffer = self.buffer_of[stream]
            self.program.matmul(self._of(node, 0), [(_matrix(node), buffer)], True)
            self._assign(node, buffer)
            self._assign(target, buffer)
            self._quantise_apart(target)
            return
        group = [
            reader
            for reader in self._readers[node.inputs[0]]
            if isinstance(reader, Linear) and self._residual_of(reader) is None
        ]
        parts = [(_matrix(member), self._new(member)) for member in group]
        self.program.matmul(self._of(node, 0), parts, False)
        for member in group:
            self._quantise_apart(member)

    def _residual_of(self, node: Linear) -> tuple[Node, Node] | None:
        """The addition that the matmul of `node` can do itself, and the stream that it adds to.

        None if another node reads the addend, or the stream is not computed yet, or a later node
        reads the stream.
        """
        readers = self._readers[node]
        if len(readers) != 1 or not isinstance(readers[0], recording.Add):
            return None
        target = readers[0]
        stream = target.inputs[1] if target.inputs[0] is node else target.inputs[0]
        if stream is node or stream not in self.buffer_of:
            return None
        if max(self._order[r] for r in self._readers[stream]) > self._order[target]:
            return None
        return target, stream


def _reads_quantised(reader: Node, source: Node) -> bool:
    """Whether `reader` reads the int8 codes of `source`."""
    if isinstance(reader, Linear):
        return _matrix(reader).quantised
    if isinstance(reader, recording.HeadLinear):
        return _matrices(reader.weight)[0].quantised
    if isinstance(reader, recording.Experts) and reader.inputs[0] is source:
        return _matrices(reader.weights.up)[0].quantised
    return False


def _matrices(stack: object) -> tuple[Matrix, ...]:
    assert isinstance(stack, ExpertsWeight)
    return stack.matrices


def _matrix(node: Linear) -> Matrix:
    assert isinstance(node.weight, LinearWeight)
    return node.weight.matrix


def _vector(weight: object) -> npt.NDArray[np.float32]:
    assert isinstance(weight, VectorWeight)
    return weight.values
