"""The vision transformers of all kinds of eyes, over `Ops`.

A tower reads patches, of which each is a row: its pixels in the order of the columns of the matrix
`patches`, then the vector of its position if the eyes have learned ones. The patches of a square
that becomes one row of the text model are consecutive, from left to right and then down. A token
before all patches comes last here: attention does not know an order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from heddle.models.blocks import LayerNormWeights, apply_norm, load_norm
from heddle.models.ops import AttentionSpec, RopeSpec
from heddle.state import KvShape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.models.ops import Batch, Loader, Ops

A = TypeVar("A")
W = TypeVar("W")
Limits: TypeAlias = tuple[float, float]

WHOLE, WINDOW = 1, 2
"""Kinds of runs (:class:`heddle.step.Sight`): all patches of a scene, and those of a window."""

_LANES = 16
"""Heads in the KV cache have a multiple of so many elements."""


def spatial_rope(
    dim: int,
    base: float,
    *,
    alternating: bool = False,
    interleaved: bool = False,
    columns_first: bool = False,
) -> RopeSpec:
    """A rotation by rows and columns: half of the pairs of a head turn by each.

    The pairs of an axis have the frequencies base**(-4i / dim) for i from 0 on (Qwen2-VL). If
    `alternating`, those of rows are base**(-4i / dim), and those of columns base**(-(4i + 2) / dim)
    (Pixtral). If `interleaved`, pairs are neighbours (Llama 4). Those of columns may come first.
    """
    each = dim // 4
    exponents = [4 * i / dim for i in range(each)]
    later = 2 / dim if alternating else 0.0
    wanted = [*exponents, *(one + later for one in exponents)]
    factors = tuple(base ** (one - 2 * i / dim) for i, one in enumerate(wanted))
    first = 1 if columns_first else 0
    axes = (first,) * each + (1 - first,) * each
    return RopeSpec(dim, base, interleaved, factors, axes=axes)


def turned(ops: Ops[A, W], x: A, columns: int, activation: str) -> A:
    """activation(x), where x has so many columns and "gelu_quick" is x * sigmoid(1.702 x)."""
    if activation != "gelu_quick":
        return ops.activate(x, activation)
    return ops.gated(ops.scale(ops.take_columns(x, 0, columns), 1.702), x, "sigmoid")


class Projection(Protocol):
    """Makes the rows of the text model from those of a tower.

    Attributes:
        fold: consecutive patches that become one row.
    """

    @property
    def fold(self) -> int: ...

    def load(self, loader: Loader[Any]) -> Any:
        """Claim the tensors."""
        ...

    def forward(self, ops: Ops[A, Any], weights: Any, states: Sequence[A], rows: A) -> A:
        """The rows (R, columns) that begin at `rows`, from the tower's states, each (T, width).

        The last state is that after all layers, and those before it are of the tower's `features`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Held(Generic[W]):
    """Holds each element of x (T, columns) within limits.

    There is no operation for that alone. `silu_to_7` holds silu(gate) below 7, which it is for all
    elements here, and the other factor within 7 on either side.

    Attributes:
        columns: columns of x.
        middle, reach: the limits are the middle less the reach, and the middle plus the reach.
        nothing, gate: vectors of zeros and of a large value.
        before, after: vectors of what is added before and after the factor is held.
    """

    columns: int
    middle: float
    reach: float
    nothing: W
    gate: W
    before: W
    after: W

    @classmethod
    def load(cls, loader: Loader[W], columns: int, limits: Limits) -> Held[W]:
        """Make the vectors for these limits."""
        middle, reach = (limits[1] + limits[0]) / 2, (limits[1] - limits[0]) / 2
        values = (0.0, 50.0, -7 * middle / reach, middle)
        return cls(columns, middle, reach, *(loader.filled(columns, one) for one in values))

    def of(self, ops: Ops[A, W], x: A) -> A:
        """x within the limits."""
        filled = partial(ops.layer_norm, x, self.nothing, eps=1.0)  # x times zeros, plus a vector
        gate, before, after = (filled(one) for one in (self.gate, self.before, self.after))
        x = ops.scale(ops.take_columns(x, 0, self.columns), 7 / self.reach)
        x = ops.gated(gate, ops.add(x, before), "silu_to_7")
        return ops.add(ops.scale(x, self.reach / 49), after)


@dataclass(frozen=True, slots=True)
class Linear(Generic[W]):
    """A matrix of a layer. Of some kinds, what it reads and what it makes is held."""

    weight: W
    inputs: Held[W] | None
    outputs: Held[W] | None

    def times(self, ops: Ops[A, W], x: A) -> A:
        """x (T, columns) times the matrix: (T, rows)."""
        x = ops.linear(x if self.inputs is None else self.inputs.of(ops, x), self.weight)
        return x if self.outputs is None else self.outputs.of(ops, x)


@dataclass(frozen=True, slots=True)
class TowerLayerWeights(Generic[W]):
    """Weights of a layer. Norms of queries and keys, and gates, are None without such parts.

    So are the norms of what attention and the feed-forward network make.
    """

    attention_norm: W | LayerNormWeights[W]
    q: Linear[W]
    k: Linear[W]
    v: Linear[W]
    output: Linear[W]
    q_norm: W | LayerNormWeights[W] | None
    k_norm: W | LayerNormWeights[W] | None
    v_norm: W | None
    after_attention: W | LayerNormWeights[W] | None
    mlp_norm: W | LayerNormWeights[W]
    gate: Linear[W] | None
    up: Linear[W]
    down: Linear[W]
    after_mlp: W | LayerNormWeights[W] | None


@dataclass(frozen=True, slots=True)
class TowerWeights(Generic[W]):
    """Weights of a tower; norms are None where it has none."""

    patches: W
    pre_norm: W | LayerNormWeights[W] | None
    layers: tuple[TowerLayerWeights[W], ...]
    output_norm: W | LayerNormWeights[W] | None
    projection: Any


@dataclass(frozen=True, slots=True)
class Tower:
    """See :class:`heddle.models.eyes.Eyes`.

    Attributes:
        patch_columns: columns of a patch's pixels.
        width: elements of a state.
        inner: elements of the inner state of a feed-forward layer.
        heads: heads of attention.
        norm_eps: epsilon of the norms.
        runs: for each layer, the kind of runs that its attention sees.
        row_width: columns of the rows that the projection makes.
        projection: makes them.
        has_positions: whether patches bring the vectors of their positions.
        norm_first: whether the norm before the layers is before positions are added, too.
        rope: rotation of queries and keys; None: there is none.
        activation: of the feed-forward layers.
        features: numbers of layers after which the projection reads states, beside the last one.
        norms_heads: whether each head of queries, keys and values has a norm by itself, that of
            values without weights. Scores then have no factor.
        limits: what matrices of layers read, and what they make, is held within limits, by name.
    """

    patch_columns: int
    width: int
    inner: int
    heads: int
    norm_eps: float
    runs: tuple[int, ...]
    row_width: int
    projection: Projection
    has_positions: bool = False
    norm_first: bool = False
    rope: RopeSpec | None = None
    activation: str = "gelu"
    features: tuple[int, ...] = field(default=())
    norms_heads: bool = False
    limits: Mapping[str, tuple[Limits | None, Limits | None]] = field(default_factory=dict)

    @property
    def input_width(self) -> int:
        """See :class:`heddle.models.eyes.Eyes`."""
        return self.patch_columns + (self.width if self.has_positions else 0)

    @property
    def fold(self) -> int:
        """See :class:`heddle.models.eyes.Eyes`."""
        return self.projection.fold

    @property
    def _head(self) -> int:
        return self.width // self.heads

    @property
    def kept(self) -> KvShape:
        """See :class:`heddle.models.eyes.Eyes`."""
        return KvShape(self.heads, -(-self._head // _LANES) * _LANES)

    def load(self, loader: Loader[W]) -> TowerWeights[W]:
        """See :class:`heddle.models.eyes.Eyes`."""
        return TowerWeights(
            patches=loader.linear("patches", self.width, self.patch_columns),
            pre_norm=self._norm(loader, "pre_norm"),
            layers=tuple(self._layer(loader, f"layers.{i}") for i in range(len(self.runs))),
            output_norm=self._norm(loader, "output_norm"),
            projection=self.projection.load(loader),
        )

    def _norm(self, loader: Loader[W], name: str, width: int = 0) -> W | LayerNormWeights[W] | None:
        return norm_of(loader, name, width or self.width) if loader.has(name) else None

    def _linear(self, loader: Loader[W], name: str, rows: int, columns: int) -> Linear[W]:
        limits = zip((columns, rows), self.limits.get(name, (None, None)), strict=True)
        held = (one and Held.load(loader, size, one) for size, one in limits)
        return Linear(loader.linear(name, rows, columns), *held)

    def _layer(self, loader: Loader[W], name: str) -> TowerLayerWeights[W]:
        width, inner = self.width, self.inner
        q, k, v, output = (
            self._linear(loader, f"{name}.attention.{part}", width, width)
            for part in ("q", "k", "v", "output")
        )
        normed = self._head if self.norms_heads else width
        has_gate = loader.has(f"{name}.mlp.gate")
        return TowerLayerWeights(
            norm_of(loader, f"{name}.attention_norm", width),
            *(q, k, v, output),
            self._norm(loader, f"{name}.attention.q_norm", normed),
            self._norm(loader, f"{name}.attention.k_norm", normed),
            loader.filled(self._head) if self.norms_heads else None,
            self._norm(loader, f"{name}.after_attention_norm"),
            norm_of(loader, f"{name}.mlp_norm", width),
            gate=self._linear(loader, f"{name}.mlp.gate", inner, width) if has_gate else None,
            up=self._linear(loader, f"{name}.mlp.up", inner, width),
            down=self._linear(loader, f"{name}.mlp.down", width, inner),
            after_mlp=self._norm(loader, f"{name}.after_mlp_norm"),
        )

    def forward(self, ops: Ops[A, W], weights: TowerWeights[W], batch: Batch[A]) -> A:
        """See :class:`heddle.models.eyes.Eyes`."""
        assert batch.states is not None, "eyes read patches"
        x = self._begun(ops, weights, batch.states)
        states: list[A] = []
        for index, layer in enumerate(weights.layers):
            x = self._through(ops, layer, x, batch.positions, self.runs[index])
            if index + 1 in self.features:
                states.append(ops.take_columns(x, 0, self.width))
        if weights.output_norm is not None:
            x = apply_norm(ops, weights.output_norm, x, self.norm_eps)
        return self.projection.forward(ops, weights.projection, [*states, x], batch.rows)

    def _begun(self, ops: Ops[A, W], weights: TowerWeights[W], patches: A) -> A:
        """The state before the layers."""
        norm, x = weights.pre_norm, patches
        if self.has_positions:
            x = ops.take_columns(x, 0, self.patch_columns)
        x = ops.linear(x, weights.patches)
        if norm is not None and self.norm_first:
            x = apply_norm(ops, norm, x, self.norm_eps)
        if self.has_positions:
            x = ops.add(x, ops.take_columns(patches, self.patch_columns, self.width))
        if norm is not None and not self.norm_first:
            x = apply_norm(ops, norm, x, self.norm_eps)
        return x

    def _through(
        self, ops: Ops[A, W], weights: TowerLayerWeights[W], x: A, positions: A, runs: int
    ) -> A:
        """The state after a layer."""
        y = apply_norm(ops, weights.attention_norm, x, self.norm_eps)
        y = self._attended(ops, weights, y, positions, runs)
        x = ops.add(x, self._after(ops, weights.after_attention, y))
        y = apply_norm(ops, weights.mlp_norm, x, self.norm_eps)
        up = weights.up.times(ops, y)
        if weights.gate is None:
            up = turned(ops, up, self.inner, self.activation)
        else:
            up = ops.gated(weights.gate.times(ops, y), up, self.activation)
        return ops.add(x, self._after(ops, weights.after_mlp, weights.down.times(ops, up)))

    def _after(self, ops: Ops[A, W], norm: W | LayerNormWeights[W] | None, x: A) -> A:
        return x if norm is None else apply_norm(ops, norm, x, self.norm_eps)

    def _attended(
        self, ops: Ops[A, W], weights: TowerLayerWeights[W], x: A, positions: A, runs: int
    ) -> A:
        heads, head, kept = self.heads, self._head, self.kept.dim
        q, k, v = (
            self._normed(ops, norm, matrix.times(ops, x))
            for matrix, norm in (
                (weights.q, weights.q_norm),
                (weights.k, weights.k_norm),
                (weights.v, weights.v_norm),
            )
        )
        if self.rope is not None:
            q, k = (ops.rope(one, positions, self.rope, heads) for one in (q, k))
        if kept > head:  # with zeros
            q, k, v = (ops.take_columns(one, 0, kept, heads) for one in (q, k, v))
        scale = 1.0 if self.norms_heads else head**-0.5
        spec = AttentionSpec(heads, heads, kept, scale, causal=False, runs=runs)
        found = ops.attend(q, k, v, 0, spec)
        if kept > head:
            found = ops.take_columns(found, 0, head, heads)
        return weights.output.times(ops, found)

    def _normed(self, ops: Ops[A, W], norm: W | LayerNormWeights[W] | None, x: A) -> A:
        """Queries, keys or values with their norm, if they have one."""
        if norm is None or isinstance(norm, LayerNormWeights) or not self.norms_heads:
            return self._after(ops, norm, x)
        return ops.norm_heads(x, norm, self.norm_eps, self.heads)


def norm_of(loader: Loader[W], name: str, width: int) -> W | LayerNormWeights[W]:
    """The weights of a norm: of a layer norm if it has biases, else of an RMS norm."""
    return load_norm(loader, name, width, centred=loader.has(f"{name}.bias"))
