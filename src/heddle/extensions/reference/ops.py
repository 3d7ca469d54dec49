"""The reference of all ops: eager NumPy float32, on completely dequantised weights.

Tests compare the native kernels with it. The code follows the papers and is not optimised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from heddle.extensions.reference.kv_types import (
    LARGEST_CODE,
    as_codes,
    as_kept,
    rotated,
    sums_of_codes,
)
from heddle.models.ops import AttentionSpec, Batch
from heddle.weights.checkpoint import claim, non_finite_weights
from heddle.weights.low_rank import Whole, expert_name, product_name
from heddle.weights.tensor_types import dequantize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from heddle.models.ops import (
        ExpertSpec,
        ExpertWeights,
        LatentSpec,
        LinearAttentionSpec,
        Operation,
        RopeSpec,
        StatePlace,
    )
    from heddle.step import AdapterUse, Sight
    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.low_rank import Change

    Array = NDArray[Any]
    Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor in float32. A matrix (n, k) may have a bias (n,), and a name for adapters."""

    values: Float32
    bias: Float32 | None = None
    name: str = ""

    @property
    def out_features(self) -> int:
        """Rows of a matrix."""
        return len(self.values)

    @property
    def in_features(self) -> int:
        """Columns of a matrix."""
        return int(self.values.shape[1])

    @property
    def width(self) -> int:
        """Columns of a table."""
        return int(self.values.shape[1])


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """Matrices (count, n, k) in float32, one for each expert, perhaps with biases (count, n)."""

    values: Float32
    bias: Float32 | None = None
    name: str = ""

    @property
    def count(self) -> int:
        """Number of experts."""
        return len(self.values)

    @property
    def out_features(self) -> int:
        """Rows of each matrix."""
        return int(self.values.shape[1])

    @property
    def in_features(self) -> int:
        """Columns of each matrix."""
        return int(self.values.shape[2])

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return self.values.nbytes

    def __getitem__(self, expert: int) -> Weight:
        bias = None if self.bias is None else self.bias[expert]
        return Weight(self.values[expert], bias, expert_name(self.name, expert))


class SequenceState(Protocol):
    """Keys and values of one sequence, by layer, and its fixed-size states.

    Where values are a part of the keys, there are only keys.
    """

    @property
    def coded(self) -> str:
        """The KV type whose codes attention multiplies with int8 codes; "" if it multiplies floats.

        Queries and the weights of positions become these codes. Attention over latents multiplies
        floats in any case.
        """
        ...

    def store(self, layer: int, start: int, *parts: Float32) -> tuple[Float32, ...]:
        """Store keys and values (tokens, kv_heads * head_dim) from position `start` on.

        Returns those of all positions from 0 to the last one stored.
        """
        ...

    def stored(self, layer: int, end: int) -> tuple[Float32, ...]:
        """The keys and values of positions 0 to `end`, without it."""
        ...

    def fixed(self, place: StatePlace) -> Float32:
        """A part (count,) of a fixed-size state, to be read and changed."""
        ...


@dataclass(slots=True)
class SequenceCache:
    """Keys and values of one sequence, by layer, each (positions, kv_heads * head_dim).

    `kv_type` sets how they are stored; see :func:`as_kept`. With `decodes`, attention reads codes
    of q8_0 as floats, as torch devices do. Without it, attention multiplies codes, as device cpu
    does.
    """

    kv_type: str = "f32"
    decodes: bool = False
    layers: dict[int, tuple[Float32, ...]] = field(default_factory=dict)
    states: dict[StatePlace, Float32] = field(default_factory=dict)

    @property
    def coded(self) -> str:
        """See :class:`SequenceState`."""
        return self.kv_type if self.kv_type in LARGEST_CODE and not self.decodes else ""

    def fixed(self, place: StatePlace) -> Float32:
        """See :class:`SequenceState`. Each part is an array of its own."""
        return self.states.setdefault(place, np.zeros(place.count, np.float32))

    def store(self, layer: int, start: int, *parts: Float32) -> tuple[Float32, ...]:
        """Store parts from position `start` on. Drops later positions. Returns all positions."""
        kept = tuple(as_kept(part, self.kv_type) for part in parts)
        if layer in self.layers:
            before = self.layers[layer]
            kept = tuple(
                np.concatenate([old[:start], new]) for old, new in zip(before, kept, strict=True)
            )
        self.layers[layer] = kept
        return kept

    def stored(self, layer: int, end: int) -> tuple[Float32, ...]:
        """The keys and values of positions 0 to `end`, without it."""
        return tuple(part[:end] for part in self.layers[layer])


@dataclass(frozen=True, slots=True)
class SequenceChunk:
    """Consecutive tokens of one sequence. `start` is the position of the first token.

    The cache must hold all positions before `start`. `sight` is that of a chunk.
    """

    cache: SequenceState
    start: int
    tokens: Sequence[int]
    sight: Sight | None = None


@dataclass(frozen=True, slots=True)
class ReferenceAdapter:
    """Changes of matrices, by their names; see :class:`heddle.executor.Adapter`."""

    changes: Mapping[str, Change]

    @property
    def bytes(self) -> int:
        """See :class:`heddle.executor.Adapter`."""
        return sum(
            one.values.nbytes if isinstance(one, Whole) else one.a.nbytes + one.b.nbytes
            for one in self.changes.values()
        )


class ReferenceOps:
    """:class:`heddle.models.ops.Ops` over NumPy arrays, for the concatenation of several runs."""

    def __init__(self, runs: Sequence[SequenceChunk], adapters: Sequence[AdapterUse] = ()) -> None:
        """`adapters`, each a :class:`ReferenceAdapter`, change all rows."""
        self._runs = runs
        self._adapters = adapters

    def batch(self) -> Batch[Array]:
        """The inputs of the forward pass. All rows get logits."""
        tokens = np.fromiter(chain.from_iterable(run.tokens for run in self._runs), np.int64)
        positions = [np.arange(run.start, run.start + len(run.tokens)) for run in self._runs]
        return Batch(tokens, np.concatenate(positions), np.arange(len(tokens)))

    def embed(self, table: Weight, indices: Array, first: int = 0) -> Array:
        rows = indices + first
        rows = np.where(rows < table.out_features, rows, 0)
        found: Array = table.values[rows]
        for use in self._adapters:
            change = use.adapter.changes.get(table.name)
            if isinstance(change, Whole):
                found = change.values[rows]
            elif change is not None:
                low = change.a.T[rows] * np.float32(use.factor * change.scale)
                found = found + low @ change.b.T
        return found

    def embed_segments(self, table: Weight, tokens: Array, separator: int) -> Array:
        segments, last = [], len(table.values) - 1
        for run in self._runs:
            before = np.cumsum([0, *(token == separator for token in run.tokens[:-1])])
            segments.append(np.minimum(before, last))
        rows: Array = table.values[np.concatenate(segments)]
        return rows

    def embed_previous(self, table: Weight, tokens: Array, start: int) -> Array:
        before = [(start, *run.tokens[:-1]) for run in self._runs]
        return self.embed(table, np.fromiter(chain.from_iterable(before), np.int64))

    def mean_rows(self, x: Array) -> Array:
        means, row = np.empty_like(x), 0
        for run in self._runs:
            rows = slice(row, row + len(run.tokens))
            means[rows] = x[rows].mean(axis=0, dtype=np.float64)
            row = rows.stop
        return means

    def linear(self, x: Array, w: Weight) -> Array:
        y: Array = x @ w.values.T
        if w.bias is not None:
            y = y + w.bias
        for use in self._adapters:
            change = use.adapter.changes.get(w.name)
            if isinstance(change, Whole):
                y = x @ change.values.T
            elif change is not None:
                low = (x @ change.a.T) * np.float32(use.factor * change.scale)
                y = y + low @ change.b.T
                if change.gains is not None:
                    y = y + (x @ w.values.T) * (np.float32(use.factor) * change.gains)
        return y

    def norm(self, x: Array, w: Weight, eps: float) -> Array:
        mean_square: Array = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + np.float32(eps)) * w.values

    def layer_norm(self, x: Array, w: Weight, b: Weight, eps: float) -> Array:
        centred: Array = x - np.mean(x, axis=-1, keepdims=True)
        return self.norm(centred, w, eps) + b.values

    def norm_heads(self, x: Array, w: Weight, eps: float, heads: int) -> Array:
        by_head = x.reshape(len(x), heads, -1)
        own = w.values.size != by_head.shape[-1]
        weight = Weight(w.values.reshape(heads, -1)) if own else w
        return self.norm(by_head, weight, eps).reshape(x.shape)

    def scale(self, x: Array, factor: float) -> Array:
        return x * np.float32(factor)

    def soft_cap(self, x: Array, cap: float) -> Array:
        return np.tanh(x / np.float32(cap)) * np.float32(cap)

    def rope(self, x: Array, positions: Array, spec: RopeSpec, heads: int) -> Array:
        """Angles are float64. Their cosines and sines are rounded to float32."""
        pair = np.arange(spec.dim // 2)
        frequency = spec.base ** (-2.0 * pair / spec.dim) / np.array(spec.factors or 1.0)
        turned = (positions + spec.offset)[:, None]
        if spec.axes:
            turned = self._places()[:, spec.axes]
        angle = (turned * frequency)[:, None, :]
        scale = spec.scales(positions)[:, None, None]
        cos, sin = ((turn(angle) * scale).astype(np.float32) for turn in (np.cos, np.sin))
        first, second = (2 * pair, 2 * pair + 1) if spec.interleaved else (pair, pair + len(pair))
        first, second = spec.first + first, spec.first + second
        y = x.reshape(len(x), heads, -1).copy()
        a, b = y[..., first], y[..., second]
        y[..., first], y[..., second] = a * cos - b * sin, a * sin + b * cos
        return y.reshape(x.shape)

    def _places(self) -> Array:
        """The place of each token on each axis: (T, axes)."""
        return np.concatenate([_places_of(run) for run in self._runs])

    def attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        layer: int,
        spec: AttentionSpec,
        sinks: Weight | None = None,
    ) -> Array:
        mixed, row = np.empty_like(q), 0
        for run in self._runs:
            rows = slice(row, row + len(run.tokens))
            coded, kept = run.cache.coded, (k[rows], v[rows])
            if coded == "q4":
                kept = rotated(k[rows], spec.head_dim), rotated(v[rows], spec.head_dim)
            keys, values = run.cache.store(layer, run.start, *kept)
            assert spec.causal or run.start == 0, "one step computes the whole sequence"
            mixed[rows] = _attention(
                q[rows], keys, values, run.start, spec, sinks, coded=coded, sight=run.sight
            )
            row = rows.stop
        return mixed

    def attend_stored(self, q: Array, layer: int, spec: AttentionSpec) -> Array:
        mixed, row = np.empty_like(q), 0
        for run in self._runs:
            rows = slice(row, row + len(run.tokens))
            keys, values = run.cache.stored(layer, run.start + len(run.tokens))
            coded = run.cache.coded
            mixed[rows] = _attention(
                q[rows], keys, values, run.start, spec, coded=coded, sight=run.sight
            )
            row = rows.stop
        return mixed

    def head_linear(self, x: Array, w: ExpertStack) -> Array:
        heads = x.reshape(len(x), w.count, -1)[..., : w.in_features]
        y: Array = np.einsum("thk,hnk->thn", heads, w.values)
        return y.reshape(len(x), -1)

    def latent_attend(
        self, q_latent: Array, q: Array, latent: Array, key: Array, layer: int, spec: LatentSpec
    ) -> Array:
        """Attend with one key/value head, whose keys are the values, too."""
        turned = q.reshape(len(q), spec.heads, -1)[..., -spec.rope_dim :]
        queries = np.concatenate([q_latent.reshape(len(q), spec.heads, -1), turned], axis=-1)
        kept = np.concatenate([latent, key], axis=-1)
        dim = spec.rank + spec.rope_dim
        shape = AttentionSpec(spec.heads, 1, dim, spec.scale)
        mixed, row = np.empty_like(queries), 0
        for run in self._runs:
            rows = slice(row, row + len(run.tokens))
            (keys,) = run.cache.store(layer, run.start, kept[rows])
            found = _attention(queries[rows], keys, keys, run.start, shape)
            mixed[rows] = found.reshape(-1, spec.heads, dim)
            row = rows.stop
        return mixed[..., : spec.rank].reshape(len(q), -1)

    def gated(self, gate: Array, up: Array, activation: str) -> Array:
        return _ACTIVATIONS[activation](gate, up)

    def activate(self, x: Array, activation: str) -> Array:
        if activation == "squared_relu":
            return np.square(np.maximum(x, np.float32(0)))
        if activation == "tanh":
            return np.tanh(x)
        if activation == "xielu_tail":
            below: Array = np.expm1(np.minimum(x, np.float32(-1e-6))) - x
            return np.where(x > 0, np.float32(0), below)
        return _ACTIVATIONS[activation](x, np.ones_like(x))

    def causal_conv(self, x: Array, filters: Weight, place: StatePlace, activation: str) -> Array:
        taps, row, y = filters.in_features, 0, np.empty_like(x)
        bias = np.float32(0) if filters.bias is None else filters.bias
        for run in self._runs:
            rows = slice(row, row + len(run.tokens))
            state = run.cache.fixed(place).reshape(taps - 1, -1)
            past = np.concatenate([state, x[rows]])
            y[rows] = bias + sum(
                past[tap : tap + len(run.tokens)] * filters.values[:, tap] for tap in range(taps)
            )
            state[:] = past[len(past) - taps + 1 :]
            row = rows.stop
        return _silu(y) if activation == "silu" else y

    def step_size(self, x: Array, bias: Weight, least: float, most: float) -> Array:
        """Compute in float64: with float32, a small step would lose its last digits."""
        softplus: Array = np.logaddexp(0, (x + bias.values).astype(np.float64))
        limited: Array = softplus.clip(least, most).astype(np.float32)
        return limited

    def decay(self, x: Array, rates: Weight) -> Array:
        factors: Array = np.exp(x * np.repeat(rates.values, x.shape[1] // len(rates.values)))
        return factors

    def linear_attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        decay: Array,
        strength: Array,
        place: StatePlace,
        spec: LinearAttentionSpec,
        skip: Weight | None = None,
    ) -> Array:
        heads, tokens = spec.heads, len(v)
        key_heads = [spec.key_head(head) for head in range(heads)]
        q = q.reshape(tokens, -1, spec.key_dim)[:, key_heads]
        k = k.reshape(tokens, -1, spec.key_dim)[:, key_heads]
        values = v.reshape(tokens, heads, spec.value_dim)
        decay = decay.reshape(tokens, heads, -1)
        y, row = np.empty_like(values), 0
        for run in self._runs:
            state = run.cache.fixed(place).reshape(heads, spec.key_dim, spec.value_dim)
            for t in range(row, row + len(run.tokens)):
                state *= decay[t, :, :, None]
                change = values[t]
                if spec.corrects:
                    change = change - np.einsum("hkv,hk->hv", state, k[t])
                state += k[t][:, :, None] * (strength[t][:, None] * change)[:, None]
                y[t] = np.einsum("hkv,hk->hv", state, q[t])
            row += len(run.tokens)
        if skip is not None:
            y += skip.values[:, None] * values
        return y.reshape(v.shape)

    def selective_scan(
        self,
        q: Array,
        k: Array,
        v: Array,
        step: Array,
        rates: Weight,
        skip: Weight,
        place: StatePlace,
    ) -> Array:
        by_state = rates.values.reshape(v.shape[1], -1).T
        y, row = np.empty_like(v), 0
        for run in self._runs:
            state = run.cache.fixed(place).reshape(by_state.shape)
            for t in range(row, row + len(run.tokens)):
                state *= np.exp(step[t] * by_state)
                state += np.outer(k[t], step[t] * v[t])
                y[t] = q[t] @ state
            row += len(run.tokens)
        return y + skip.values * v

    def token_shift(self, x: Array, shares: Weight, parts: int, place: StatePlace) -> Array:
        mixes, row = shares.values.reshape(parts, -1), 0
        y = np.empty((len(x), parts, x.shape[1]), np.float32)
        for run in self._runs:
            rows = slice(row, row + len(run.tokens))
            state = run.cache.fixed(place)
            past = np.concatenate([state[None], x[rows][:-1]])
            y[rows] = x[rows, None] + mixes * (past - x[rows])[:, None]
            state[:] = x[rows][-1]
            row = rows.stop
        return y.reshape(len(x), -1)

    def rwkv_attend(
        self, inputs: tuple[Array, ...], weights: tuple[Weight, ...], place: StatePlace, eps: float
    ) -> Array:
        heads = inputs[0].shape[1] ** 2 // place.count
        shape = len(inputs[0]), heads, -1
        r, k, v, decay, rate = (one.reshape(shape) for one in inputs)
        removal, replacement, bonus, norm, bias = (one.values.reshape(heads, -1) for one in weights)
        removed = k * removal
        lengths = np.sqrt((removed * removed).sum(-1, keepdims=True))
        removed = removed / np.maximum(lengths, np.float32(1e-12))
        k = k * (1 + (rate - 1) * replacement)
        y, row, size = np.empty_like(v), 0, v.shape[2]
        for run in self._runs:
            state = run.cache.fixed(place).reshape(heads, size, size)
            for t in range(row, row + len(run.tokens)):
                read = np.einsum("hkv,hk->hv", state, removed[t])
                state *= decay[t][:, :, None]
                state -= (rate[t] * removed[t])[:, :, None] * read[:, None]
                state += k[t][:, :, None] * v[t][:, None]
                y[t] = np.einsum("hkv,hk->hv", state, r[t])
            row += len(run.tokens)
        y = y - y.mean(-1, keepdims=True)
        y = y / np.sqrt((y * y).mean(-1, keepdims=True) + np.float32(eps)) * norm + bias
        result: Array = y + (r * k * bonus).sum(-1, keepdims=True) * v
        return result.reshape(inputs[0].shape)

    def experts(
        self, x: Array, logits: Array, weights: ExpertWeights[Any], spec: ExpertSpec
    ) -> Array:
        chosen, factors = route(logits, spec)
        y = np.zeros_like(x)
        for expert in range(spec.count):
            tokens, place = np.nonzero(chosen == expert)
            if not len(tokens):
                continue
            weight, read = factors[tokens, place][:, None], x[tokens]
            if spec.weighs_input:
                weight, read = np.ones_like(weight), read * weight
            up = self.linear(read, weights.up[expert])
            if weights.gate is None:
                hidden = self.activate(up, spec.activation)
            else:
                gate = self.linear(read, weights.gate[expert])
                hidden = self.gated(gate, up, spec.activation)
            down = self.linear(hidden, weights.down[expert])
            y[tokens] += weight * down
        return y

    def gate_rows(self, x: Array, gate: Array, activation: str = "sigmoid") -> Array:
        factors = _sigmoid(gate) if activation == "sigmoid" else gate
        by_gate = x.reshape(*gate.shape, -1) * factors[..., None]
        return by_gate.reshape(x.shape)

    def mix_heads(self, x: Array, factors: Array, heads: int) -> Array:
        mixed: Array = np.einsum(
            "tij,tjn->tin", factors.reshape(len(x), -1, heads), x.reshape(len(x), heads, -1)
        )
        return mixed.reshape(len(x), -1)

    def add(self, x: Array, y: Array) -> Array:
        return x + y

    def take_rows(self, x: Array, rows: Array, count: int = 1) -> Array:
        return x[rows[:, None] + np.arange(count)].reshape(len(rows), count * x.shape[1])

    def see(self, x: Array, first: int = 0, *, adds: bool = False) -> Array:
        x, row = x.copy(), 0
        for run in self._runs:
            for begin, values in run.sight.rows if run.sight is not None else ():
                at = slice(row + begin, row + begin + len(values))
                part = values[:, first : first + x.shape[1]]
                x[at] = x[at] + part if adds else part
            row += len(run.tokens)
        return x

    def take_columns(self, x: Array, first: int, width: int, heads: int = 1) -> Array:
        by_head = x.reshape(len(x), heads, -1)[..., first : first + width]
        lacking = ((0, 0), (0, 0), (0, width - by_head.shape[-1]))
        return np.pad(by_head, lacking).reshape(len(x), -1)

    def apply(self, operation: Operation, *inputs: Array) -> Array:
        result: Array = operation.compute(self._runs, *inputs)
        return result

    def join(self, x: Array, y: Array) -> Array:
        return np.concatenate([x, y], axis=1)


def _places_of(run: SequenceChunk) -> Array:
    """The places of a run's tokens; without pictures, their positions: (tokens, axes)."""
    if run.sight is not None and run.sight.places is not None:
        return run.sight.places
    positions = np.arange(run.start, run.start + len(run.tokens))
    return np.repeat(positions[:, None], _MOST_AXES, axis=1)


def _attention(
    q: Array,
    keys: Array,
    values: Array,
    start: int,
    spec: AttentionSpec,
    sinks: Weight | None = None,
    *,
    coded: str = "",
    sight: Sight | None = None,
) -> Array:
    """Attention of queries from position `start` on, over all positions up to the last query.

    :attr:`SequenceState.coded` describes `coded`. Keys and values of q4 are rotated. Queries see
    the runs of `sight`.
    """
    queries, positions = len(q), len(keys)
    group = spec.heads // spec.kv_heads
    distance = np.arange(start, start + queries)[:, None] - np.arange(positions)
    biases = None if spec.bias is None else spec.bias.of(-distance.ravel()).astype(np.float32)
    if not spec.causal:
        distance = np.abs(distance)
    hidden = (distance < 0) | (distance >= (spec.window or positions))
    if spec.aligned:
        runs = np.arange(positions) // spec.window
        hidden |= runs[start : start + queries, None] != runs
    if spec.runs and sight is not None and sight.runs is not None:
        begin, end = sight.runs[:, spec.runs - 1, :].T[..., None]
        within = (np.arange(positions) >= begin) & (np.arange(positions) < end)
        hidden = hidden & ~within if spec.causal else ~within
    q = rotated(q, spec.head_dim) if coded == "q4" else q
    q = (as_codes(q) if coded else q).reshape(queries, spec.heads, spec.head_dim)
    multiply = partial(sums_of_codes, kv_type=coded) if coded else np.matmul
    keys = keys.reshape(positions, spec.kv_heads, spec.head_dim)
    values = values.reshape(positions, spec.kv_heads, spec.head_dim)
    mixed = np.empty_like(q)
    for head in range(spec.heads):
        scores = q[:, head] @ keys[:, head // group].T * np.float32(spec.scale)
        if spec.soft_cap:
            scores = np.tanh(scores / np.float32(spec.soft_cap)) * np.float32(spec.soft_cap)
        if biases is not None:
            scores += biases[head].reshape(scores.shape)
        scores[hidden] = -np.inf
        if sinks is not None:
            sink = np.full((queries, 1), sinks.values[head])
            scores = np.concatenate([scores, sink], axis=-1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed[:, head] = multiply(weights[:, :positions], values[:, head // group])
    found = mixed.reshape(queries, -1)
    return rotated(found, spec.head_dim) if coded == "q4" else found


def route(logits: Array, spec: ExpertSpec) -> tuple[Array, Array]:
    """The experts of each token and their weights, both (T, used), from logits (T, count)."""
    scores = logits
    if spec.scoring == "softmax":
        scores = _softmax(logits)
    elif spec.scoring == "sigmoid":
        scores = _sigmoid(logits)
    elif spec.scoring == "sqrt_softplus":
        scores = np.sqrt(np.logaddexp(0, logits))
    values = scores + np.array(spec.selection_bias, np.float32) if spec.selection_bias else scores
    if spec.groups_used < spec.groups:
        grouped = values.reshape(len(values), spec.groups, -1)
        best = np.sort(grouped, axis=-1)[..., -spec.group_best :].sum(axis=-1)
        kept = np.argsort(-best, axis=-1, kind="stable")[:, : spec.groups_used]
        hidden = np.ones_like(best, dtype=bool)
        np.put_along_axis(hidden, kept, False, axis=-1)
        values = np.where(hidden[..., None], -np.inf, grouped).reshape(values.shape)
    chosen = np.sort(np.argsort(-values, axis=-1, kind="stable")[:, : spec.used], axis=-1)
    weights = np.take_along_axis(scores, chosen, axis=-1)
    if spec.scoring == "softmax_of_chosen":
        weights = _softmax(weights)
    elif spec.scoring == "sparsemixer":
        weights = _shares_with_near(logits, chosen)
    elif spec.normalised:
        floor = np.float32(0 if spec.scoring == "softmax" else 1e-20)  # DeepSeek-V3
        weights = weights / (weights.sum(axis=-1, keepdims=True) + floor)
    weights = weights * np.float32(spec.scale)
    if spec.expert_scales:
        weights = weights * np.array(spec.expert_scales, np.float32)[chosen]
    return chosen, weights


def _shares_with_near(logits: Array, chosen: Array) -> Array:
    """The weight of each chosen expert: its share among itself and lower ones that are near it."""
    weights = np.empty(chosen.shape, np.float32)
    for token, (own, experts) in enumerate(zip(logits, chosen, strict=True)):
        left = own.copy()
        for expert in sorted(experts, key=lambda one: (-own[one], one)):
            best = own[expert]
            with np.errstate(invalid="ignore"):
                is_far = (best - own) / np.maximum(np.abs(own), best) > np.float32(0.02)
            powers = np.exp(np.where(is_far, -np.inf, left) - best)
            weights[token, experts == expert] = 1 / powers.sum()
            left[expert] = -np.inf
    return weights


def _softmax(x: Array) -> Array:
    y: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    y /= y.sum(axis=-1, keepdims=True)
    return y


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):  # exp(-x) may be inf; then 1 / inf is correctly 0
        y: Array = 1 / (1 + np.exp(-x))
    return y


def _silu(x: Array) -> Array:
    with np.errstate(over="ignore"):  # as in _sigmoid
        y: Array = x / (1 + np.exp(-x))
    return y


def _gelu(x: Array) -> Array:
    y: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return y


def _gelu_erf(x: Array) -> Array:
    y: Array = (0.5 * x * (1 + _erf(x / math.sqrt(2)))).astype(np.float32)
    return y


_erf = np.frompyfunc(math.erf, 1, 1)


def _clamped(gate: Array, up: Array) -> Array:
    gate, up = np.minimum(gate, np.float32(7)), np.clip(up, np.float32(-7), np.float32(7))
    y: Array = gate * _sigmoid(np.float32(1.702) * gate) * (up + 1)
    return y


def _limited_silu(gate: Array, up: Array, most: float) -> Array:
    limit = np.float32(most)
    y: Array = np.minimum(_silu(gate), limit) * np.clip(up, -limit, limit)
    return y


_MOST_AXES = 3
"""Axes of places: time, height, width."""

_ACTIVATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "silu": lambda gate, up: _silu(gate) * up,
    "gelu": lambda gate, up: _gelu(gate) * up,
    "gelu_erf": lambda gate, up: _gelu_erf(gate) * up,
    "relu": lambda gate, up: np.maximum(gate, np.float32(0)) * up,
    "clamped": _clamped,
    "limited": lambda gate, up: (
        _silu(np.minimum(gate, np.float32(10))) * np.clip(up, np.float32(-10), np.float32(10))
    ),
    "sigmoid": lambda gate, up: _sigmoid(gate) * up,
    "identity": lambda gate, up: gate * up,
    "silu_to_7": partial(_limited_silu, most=7.0),
    "silu_to_16": partial(_limited_silu, most=16.0),
}


class ReferenceLoader:
    """:class:`heddle.models.ops.Loader` over a checkpoint. Dequantises each tensor once.

    Attributes:
        loaded_bytes: bytes of the files' tensors dequantised so far.
        matmul_bytes: bytes of the matrices that matmuls read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        allow_nonfinite: bool = True,
        progress: Callable[[int], None] = lambda loaded: None,
    ) -> None:
        """`progress` is called with `loaded_bytes`."""
        self.loaded_bytes = 0
        self.matmul_bytes = 0
        self._checkpoint = checkpoint
        self._allow_nonfinite = allow_nonfinite
        self._progress = progress
        self._loaded: dict[str, Float32] = {}

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self._checkpoint.tensors

    def linear(self, name: str, out_features: int, in_features: int) -> Weight:
        weight = self._tensor(f"{name}.weight", (out_features, in_features))
        bias = f"{name}.bias"
        biased = bias in self._checkpoint.tensors
        self.matmul_bytes += weight.nbytes
        return Weight(
            weight, self._tensor(bias, (out_features,)) if biased else None, product_name(name)
        )

    def experts(self, name: str, count: int, out_features: int, in_features: int) -> ExpertStack:
        stack = self._tensor(f"{name}.weight", (count, out_features, in_features))
        bias = f"{name}.bias"
        biased = bias in self._checkpoint.tensors
        self.matmul_bytes += stack.nbytes
        biases = self._tensor(bias, (count, out_features)) if biased else None
        return ExpertStack(stack, biases, name)

    def embedding(self, name: str, rows: int, width: int) -> Weight:
        return Weight(self._tensor(f"{name}.weight", (rows, width)), name=name)

    def vector(self, name: str, width: int) -> Weight:
        return Weight(self._tensor(f"{name}.weight", (width,)))

    def filters(self, name: str, parts: Sequence[int], taps: int) -> tuple[Weight, ...]:
        bias, channels = f"{name}.bias", sum(parts)
        biased = bias in self._checkpoint.tensors
        ends = np.cumsum(parts)[:-1]
        values = np.split(self._tensor(f"{name}.weight", (channels, taps)), ends)
        if not biased:
            return tuple(map(Weight, values))
        return tuple(map(Weight, values, np.split(self._tensor(bias, (channels,)), ends)))

    def filled(self, width: int, value: float = 1.0) -> Weight:
        return Weight(np.full(width, value, np.float32))

    def constants(self, name: str, width: int) -> tuple[float, ...]:
        return tuple(self._tensor(f"{name}.weight", (width,)).tolist())

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        tensor = claim(self._checkpoint, name, shape)
        if name not in self._loaded:
            self._loaded[name] = dequantize(self._checkpoint.read(name), tensor.type, shape)
            finite = np.isfinite(self._loaded[name])
            if not (self._allow_nonfinite or finite.all()):
                raise non_finite_weights(self._checkpoint, tensor, f"element {finite.argmin()}")
            self.loaded_bytes += tensor.nbytes
            self._progress(self.loaded_bytes)
        return self._loaded[name]
