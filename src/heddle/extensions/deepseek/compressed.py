"""Attention to a window of positions and to compressed positions, as in DeepSeek-V4.

All heads share one key for a position, which is its value, too. Beside the keys of a window, a
layer may have compressed keys: weighted means of what each run of positions makes. Each column
has weights of its own, by a softmax over the run. Where runs overlap, a mean takes half of its rows
from the run before, in columns of their own.

The cache holds two vectors for a position: its key, and the compressed key of the run that ends
there. An indexer chooses `index_topk` compressed keys; as long as there are no more of them, all
are seen. Heddle serves no longer context, and reads no tensor of the indexer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from heddle.models.ops import AttentionSpec, StatePlace
from heddle.state import Fixed, KvShape, Pages, Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.models.ops import Loader, Ops, RopeSpec
    from heddle.state import StateKind

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class Compress:
    """The operation that compresses. Inputs: what is compressed, and its gates.

    Its result is zeros at positions where no run ends. The state is the rows of the last runs,
    and their gates with the bias.

    Attributes:
        ratio: positions of a run.
        overlaps: whether a mean reads the run before, too.
        bias: handle of the terms (ratio * columns,) that the gates of a run's positions add.
        place: the state.
    """

    ratio: int
    overlaps: bool
    bias: Any
    place: StatePlace

    def width(self, *inputs: int) -> int:
        """See :class:`heddle.models.ops.Operation`, also for the next two."""
        return inputs[0] // (2 if self.overlaps else 1)

    def emit(self, lowering: Any, inputs: list[int], out: int) -> None:
        lowering.program.compress(
            *inputs,
            ratio=self.ratio,
            overlaps=self.overlaps,
            bias=self.bias.values,
            place=lowering.place_of(self.place),
            out=out,
        )

    def compute(self, chunks: Sequence[Any], *inputs: Any) -> Any:
        x, gates = inputs
        width, dim = x.shape[1], self.width(x.shape[1])
        bias, ratio = self.bias.values.reshape(self.ratio, width), self.ratio
        means, row = np.zeros((len(x), dim), np.float32), 0
        for chunk in chunks:
            state = chunk.cache.fixed(self.place).reshape(-1, 2 * width)
            for position in range(chunk.start, chunk.start + len(chunk.tokens)):
                state[position % len(state), :width] = x[row]
                state[position % len(state), width:] = gates[row] + bias[position % ratio]
                if (position + 1) % ratio == 0:
                    read = range(max(0, position + 1 - len(state)), position + 1)
                    parts = [self._columns(state, one, position + 1 - ratio) for one in read]
                    values, scores = np.stack(parts, axis=1)
                    weights = np.exp(scores - scores.max(axis=0))
                    means[row] = (weights * values).sum(axis=0) / weights.sum(axis=0)
                row += 1
        return means

    def _columns(self, state: Any, position: int, run: int) -> Any:
        """What is compressed of a position and its gates: (2, columns). `run` begins the last."""
        both = state[position % len(state)].reshape(2, -1)
        if not self.overlaps:
            return both
        half = both.shape[1] // 2
        return both[:, half:] if position >= run else both[:, :half]


@dataclass(frozen=True, slots=True)
class AttendCompressed:
    """The operation that stores both keys and attends. Inputs: queries, keys, compressed keys."""

    layer: int
    spec: AttentionSpec
    ratio: int
    sinks: Any

    def width(self, *inputs: int) -> int:
        """See :class:`heddle.models.ops.Operation`, also for the next two."""
        return inputs[0]

    def emit(self, lowering: Any, inputs: list[int], out: int) -> None:
        (q, key, compressed), spec = inputs, self.spec
        cache, layer = lowering.cache_of[self.layer]
        lowering.program.store_latents(key, compressed, layer, cache)
        lowering.program.attend_compressed(
            q,
            layer=layer,
            cache=cache,
            heads=spec.heads,
            scale=spec.scale,
            window=spec.window,
            ratio=self.ratio,
            sinks=self.sinks.values,
            out=out,
        )

    def compute(self, chunks: Sequence[Any], *inputs: Any) -> Any:
        q, key, compressed = inputs
        spec, row, mixed = self.spec, 0, np.empty_like(q)
        for chunk in chunks:
            rows = slice(row, row + len(chunk.tokens))
            both = np.concatenate([key[rows], compressed[rows]], axis=1)
            (kept,) = chunk.cache.store(self.layer, chunk.start, both)
            for position, t in enumerate(range(rows.start, rows.stop), chunk.start):
                near = kept[max(0, position + 1 - spec.window) : position + 1, : spec.head_dim]
                far = kept[self.ratio - 1 : position + 1 : self.ratio, spec.head_dim :]
                keys = np.concatenate([near, far])
                scores = q[t].reshape(spec.heads, -1) @ keys.T * np.float32(spec.scale)
                scores = np.concatenate([scores, self.sinks.values[:, None]], axis=1)
                weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                weights /= weights.sum(axis=1, keepdims=True)
                mixed[t] = (weights[:, :-1] @ keys).ravel()
            row = rows.stop
        return mixed


@dataclass(frozen=True, slots=True)
class CompressorWeights(Generic[W]):
    x: W
    gate: W
    bias: W
    norm: W


@dataclass(frozen=True, slots=True)
class Compressor:
    """What makes compressed keys of `dim` elements.

    Attributes:
        width: width of the hidden state.
        dim: elements of a key.
        ratio: positions of a run.
        overlaps: whether a mean reads the run before, too.
    """

    width: int
    dim: int
    ratio: int
    overlaps: bool

    @property
    def columns(self) -> int:
        """Columns of what is compressed."""
        return self.dim * (2 if self.overlaps else 1)

    def place(self, layer: int) -> StatePlace:
        """The state: the rows that one mean reads, and their gates."""
        rows = self.ratio * (2 if self.overlaps else 1)
        return StatePlace(layer, 0, rows * 2 * self.columns)

    def load(self, loader: Loader[W], name: str) -> CompressorWeights[W]:
        """Claim the tensors under `name`."""
        return CompressorWeights(
            loader.linear(f"{name}.x", self.columns, self.width),
            loader.linear(f"{name}.gate", self.columns, self.width),
            loader.vector(f"{name}.bias_of_run", self.ratio * self.columns),
            loader.vector(f"{name}.norm", self.dim),
        )

    def forward(
        self, ops: Ops[A, W], weights: CompressorWeights[W], x: A, norm_eps: float, layer: int
    ) -> A:
        """The compressed keys (T, dim), normed but not rotated."""
        operation = Compress(self.ratio, self.overlaps, weights.bias, self.place(layer))
        means = ops.apply(operation, ops.linear(x, weights.x), ops.linear(x, weights.gate))
        return ops.norm(means, weights.norm, norm_eps)


@dataclass(frozen=True, slots=True)
class SharedKeyWeights(Generic[W]):
    """`ones` is of the norm of queries, which has no weights. `groups` has a matrix for each."""

    query: W
    query_norm: W
    query_heads: W
    ones: W
    key: W
    key_norm: W
    sinks: W
    compressor: CompressorWeights[W] | None
    groups: W
    output: W


@dataclass(frozen=True, slots=True)
class SharedKeyAttention:
    """Attention with one key for all heads, which is the value, too.

    Values are rotated as the keys that they are. So the result is rotated back by the position of
    the query, and each value counts by its distance.

    Attributes:
        width: width of the hidden state.
        spec: heads, scale, window.
        rope: rotation of the last elements of queries and keys.
        query_rank: elements of the vector that queries are made from.
        groups: groups of heads, each with a matrix before the output matrix.
        group_rank: rows of such a matrix.
        norm_eps: epsilon of the norms.
        compressor: what makes compressed keys; None: the layer sees its window only.
    """

    width: int
    spec: AttentionSpec
    rope: RopeSpec
    query_rank: int
    groups: int
    group_rank: int
    norm_eps: float
    compressor: Compressor | None

    def state(self, *, causal: bool) -> tuple[StateKind, ...]:
        """See :class:`heddle.models.blocks.Mixer`."""
        if self.compressor is None:
            return (Window(self.spec.window, KvShape(1, self.spec.head_dim)),)
        bytes_of_state = 4 * self.compressor.place(0).count
        both = KvShape(1, 2 * self.spec.head_dim, has_values=False)
        return Pages(both), Fixed(bytes_of_state)

    def load(self, loader: Loader[W], name: str) -> SharedKeyWeights[W]:
        """Claim the tensors of the layer `name`."""
        name, spec, rank = f"{name}.attention", self.spec, self.query_rank
        heads = spec.heads * spec.head_dim
        of_group = heads // self.groups
        own = self.compressor
        return SharedKeyWeights(
            query=loader.linear(f"{name}.query", rank, self.width),
            query_norm=loader.vector(f"{name}.query_norm", rank),
            query_heads=loader.linear(f"{name}.query_heads", heads, rank),
            ones=loader.filled(spec.head_dim),
            key=loader.linear(f"{name}.key", spec.head_dim, self.width),
            key_norm=loader.vector(f"{name}.key_norm", spec.head_dim),
            sinks=loader.vector(f"{name}.sinks", spec.heads),
            compressor=None if own is None else own.load(loader, f"{name}.compressed"),
            groups=loader.experts(f"{name}.groups", self.groups, self.group_rank, of_group),
            output=loader.linear(f"{name}.output", self.width, self.groups * self.group_rank),
        )

    def forward(
        self, ops: Ops[A, W], weights: SharedKeyWeights[W], x: A, positions: A, layer: int
    ) -> A:
        """Map normed x (T, width) to (T, width). Stores its keys in layer `layer`."""
        spec, eps, turn = self.spec, self.norm_eps, self.rope
        source = ops.norm(ops.linear(x, weights.query), weights.query_norm, eps)
        q = ops.linear(source, weights.query_heads)
        q = ops.norm_heads(q, weights.ones, eps, spec.heads)
        q = ops.rope(q, positions, turn, spec.heads)
        key = ops.norm(ops.linear(x, weights.key), weights.key_norm, eps)
        key = ops.rope(key, positions, turn, 1)
        if self.compressor is None or weights.compressor is None:
            y = ops.attend(q, key, key, layer, spec, weights.sinks)
        else:
            ratio = self.compressor.ratio
            far = self.compressor.forward(ops, weights.compressor, x, eps, layer)
            far = ops.rope(far, positions, replace(turn, offset=1 - ratio), 1)
            attend = AttendCompressed(layer, spec, ratio, weights.sinks)
            y = ops.apply(attend, q, key, far)
        back = tuple(-one for one in turn.factors) or (-1.0,) * (turn.dim // 2)
        y = ops.rope(y, positions, replace(turn, factors=back), spec.heads)
        return ops.linear(ops.head_linear(y, weights.groups), weights.output)
