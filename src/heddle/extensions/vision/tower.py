"""The vision transformers of all kinds of eyes, over `Ops`.

A tower reads patches, of which each is a row: its pixels in the order of the columns of the matrix
`patches`, then the vector of its position if the eyes have learned ones. The patches of a square
that becomes one row of the text model are consecutive, from left to right and then down. A token
before all patches comes last here: attention does not know an order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from heddle.models.blocks import apply_norm, load_norm
from heddle.models.ops import AttentionSpec, RopeSpec
from heddle.state import KvShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.models.blocks import LayerNormWeights
    from heddle.models.ops import Batch, Loader, Ops

A = TypeVar("A")
W = TypeVar("W")

WHOLE, WINDOW = 1, 2
"""Kinds of runs (:class:`heddle.step.Sight`): all patches of a scene, and those of a window."""

_LANES = 16
"""Heads in the KV cache have a multiple of so many elements."""


def spatial_rope(
    dim: int, base: float, *, alternating: bool = False, interleaved: bool = False
) -> RopeSpec:
    """A rotation by rows and columns: half of the pairs of a head turn by each.

    The pairs of an axis have the frequencies base**(-4i / dim) for i from 0 on (Qwen2-VL). If
    `alternating`, those of rows are base**(-4i / dim), and those of columns base**(-(4i + 2) / dim)
    (Pixtral). If `interleaved`, pairs are neighbours, and columns come first (Llama 4).
    """
    each = dim // 4
    exponents = [4 * i / dim for i in range(each)]
    later = 2 / dim if alternating else 0.0
    wanted = [*exponents, *(one + later for one in exponents)]
    factors = tuple(base ** (one - 2 * i / dim) for i, one in enumerate(wanted))
    first = 1 if interleaved else 0
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
class TowerLayerWeights(Generic[W]):
    """Weights of a layer. Norms of queries and keys, and gates, are None without such parts."""

    attention_norm: W | LayerNormWeights[W]
    q: W
    k: W
    v: W
    output: W
    q_norm: W | LayerNormWeights[W] | None
    k_norm: W | LayerNormWeights[W] | None
    mlp_norm: W | LayerNormWeights[W]
    gate: W | None
    up: W
    down: W


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

    def _norm(self, loader: Loader[W], name: str) -> W | LayerNormWeights[W] | None:
        return norm_of(loader, name, self.width) if loader.has(name) else None

    def _layer(self, loader: Loader[W], name: str) -> TowerLayerWeights[W]:
        width, inner = self.width, self.inner
        q, k, v, output = (
            loader.linear(f"{name}.attention.{part}", width, width)
            for part in ("q", "k", "v", "output")
        )
        has_gate = loader.has(f"{name}.mlp.gate")
        return TowerLayerWeights(
            norm_of(loader, f"{name}.attention_norm", width),
            *(q, k, v, output),
            self._norm(loader, f"{name}.attention.q_norm"),
            self._norm(loader, f"{name}.attention.k_norm"),
            norm_of(loader, f"{name}.mlp_norm", width),
            gate=loader.linear(f"{name}.mlp.gate", inner, width) if has_gate else None,
            up=loader.linear(f"{name}.mlp.up", inner, width),
            down=loader.linear(f"{name}.mlp.down", width, inner),
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
        x = ops.add(x, self._attended(ops, weights, y, positions, runs))
        y = apply_norm(ops, weights.mlp_norm, x, self.norm_eps)
        up = ops.linear(y, weights.up)
        if weights.gate is None:
            up = turned(ops, up, self.inner, self.activation)
        else:
            up = ops.gated(ops.linear(y, weights.gate), up, self.activation)
        return ops.add(x, ops.linear(up, weights.down))

    def _attended(
        self, ops: Ops[A, W], weights: TowerLayerWeights[W], x: A, positions: A, runs: int
    ) -> A:
        heads, head, kept = self.heads, self._head, self.kept.dim
        q, k, v = (ops.linear(x, one) for one in (weights.q, weights.k, weights.v))
        if weights.q_norm is not None:
            q = apply_norm(ops, weights.q_norm, q, self.norm_eps)
        if weights.k_norm is not None:
            k = apply_norm(ops, weights.k_norm, k, self.norm_eps)
        if self.rope is not None:
            q, k = (ops.rope(one, positions, self.rope, heads) for one in (q, k))
        if kept > head:  # with zeros
            q, k, v = (ops.take_columns(one, 0, kept, heads) for one in (q, k, v))
        spec = AttentionSpec(heads, heads, kept, head**-0.5, causal=False, runs=runs)
        found = ops.attend(q, k, v, 0, spec)
        if kept > head:
            found = ops.take_columns(found, 0, head, heads)
        return ops.linear(found, weights.output)


def norm_of(loader: Loader[W], name: str, width: int) -> W | LayerNormWeights[W]:
    """The weights of a norm: of a layer norm if it has biases, else of an RMS norm."""
    return load_norm(loader, name, width, centred=loader.has(f"{name}.bias"))
