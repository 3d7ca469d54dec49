"""The blocks of decoders: attention, the parts of a layer, and the placement of norms.

The file of a family puts blocks together. A block is a frozen description. `load` claims its
weights from a checkpoint. `forward` expresses its computation with `Ops`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from heddle.errors import ModelFileError
from heddle.models.ops import RopeSpec
from heddle.state import KvShape, Pages, Shared, Window

if TYPE_CHECKING:
    from heddle.models.ops import AttentionSpec, Loader, Ops, Temperature
    from heddle.state import StateKind

A = TypeVar("A")
W = TypeVar("W")


class Mixer(Protocol):
    """The part of a layer in which a token reads the tokens before it: attention, or a recurrence.

    Attributes:
        width: width of the hidden state.
    """

    @property
    def width(self) -> int: ...

    def state(self, *, causal: bool) -> tuple[StateKind, ...]:
        """The kinds of state that the layer keeps of a sequence."""
        ...

    def load(self, loader: Loader[Any], name: str) -> Any:
        """Claim the tensors of the layer `name`."""
        ...

    def forward(self, ops: Ops[A, Any], weights: Any, x: A, positions: A, layer: int) -> A:
        """Map normed x (T, width) to (T, width). `weights` are what `load` returned.

        The state is that of layer `layer`.
        """
        ...


@dataclass(frozen=True, slots=True)
class AttentionWeights(Generic[W]):
    """Weights of attention. Norms are None if the family has no such norms.

    `k` is None if the layer reads keys and values of another layer. `v` is None if values are the
    keys, too.
    `rope` rotates the keys, `q_rope` the queries; None: the layer has no positions.
    `sinks` are a score for each head; None if the family has none.
    """

    q: W
    k: W | None
    v: W | None
    output: W
    q_norm: W | None
    k_norm: W | None
    rope: RopeSpec | None
    q_rope: RopeSpec | None
    sinks: W | None = None
    v_norm: W | None = None


class QueryKeyNorm(Enum):
    """The norm of queries and keys before rotation."""

    NONE = "none"
    HEADS = "heads"
    """Each head by itself: Qwen3, Gemma 3."""
    IF_STORED = "if stored"
    """Each head, if the checkpoint has weights of the norms: GLM-4.5."""
    PLAIN = "plain"
    """Each head by itself, without weights: Llama 4."""
    WHOLE = "whole"
    """All heads together: OLMo 2 and 3."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention with rotary positions.

    Attributes:
        width: width of the hidden state.
        spec: heads, scale, window.
        rope: rotation of queries and keys; None: the layer has no positions.
        norm: norms of queries and keys.
        norm_eps: epsilon of these norms.
        temperature: growth of the queries with their position; None: no growth.
        has_sinks: whether each head has a sink; see :meth:`heddle.models.ops.Ops.attend`.
        takes_divisors: whether the checkpoint's tensor of divisors of frequencies, if any, is for
            this layer.
        norms_values: whether values have a norm without weights, each head by itself.
        keys_as_values: whether values are the keys before norm and rotation, if the checkpoint has
            no matrix for values.
        source: the earlier layer whose keys and values this layer reads; None: it has its own.
        query_parts: vectors of a head that the matrix of queries makes.
    """

    width: int
    spec: AttentionSpec
    rope: RopeSpec | None
    norm: QueryKeyNorm = QueryKeyNorm.NONE
    norm_eps: float = 0.0
    temperature: Temperature | None = None
    has_sinks: bool = False
    takes_divisors: bool = True
    norms_values: bool = False
    keys_as_values: bool = False
    source: int | None = None
    query_parts: ClassVar[int] = 1

    def state(self, *, causal: bool) -> tuple[StateKind, ...]:
        """See :class:`Mixer`. An encoder keeps all positions, as one step computes all tokens."""
        if self.source is not None:
            return (Shared(self.source),)
        kept = KvShape(self.spec.kv_heads, self.spec.head_dim)
        is_windowed = self.spec.window and causal
        return (Window(self.spec.window, kept) if is_windowed else Pages(kept),)

    def load(self, loader: Loader[W], name: str) -> AttentionWeights[W]:
        """Claim the tensors of the layer `name`, with biases if the checkpoint has them."""
        name = f"{name}.attention"
        spec, normed = self.spec, self.norm is not QueryKeyNorm.NONE
        if self.norm is QueryKeyNorm.IF_STORED:
            normed = loader.has(f"{name}.q_norm")
        q_width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        q_norm, k_norm = spec.head_dim, spec.head_dim
        if self.norm is QueryKeyNorm.WHOLE:
            q_norm, k_norm = q_width, kv_width

        def norm(part: str, width: int) -> W:
            is_plain = self.norm is QueryKeyNorm.PLAIN
            return loader.filled(width) if is_plain else loader.vector(f"{name}.{part}", width)

        rope, own = self.rope, self.source is None
        if rope is not None and self.takes_divisors:
            rope = with_stored_divisors(rope, loader)
        turn = RopeSpec.still(spec.head_dim) if rope is None and self.temperature else rope
        has_values = own and not (self.keys_as_values and not loader.has(f"{name}.v"))
        return AttentionWeights(
            q=loader.linear(f"{name}.q", q_width * self.query_parts, self.width),
            k=loader.linear(f"{name}.k", kv_width, self.width) if own else None,
            v=loader.linear(f"{name}.v", kv_width, self.width) if has_values else None,
            output=loader.linear(f"{name}.output", self.width, q_width),
            q_norm=norm("q_norm", q_norm) if normed else None,
            k_norm=norm("k_norm", k_norm) if normed and own else None,
            v_norm=loader.filled(spec.head_dim) if self.norms_values and own else None,
            rope=rope,
            q_rope=replace(turn, temperature=self.temperature) if turn is not None else None,
            sinks=loader.vector(f"{name}.sinks", spec.heads) if self.has_sinks else None,
        )

    def forward(
        self, ops: Ops[A, W], weights: AttentionWeights[W], x: A, positions: A, layer: int
    ) -> A:
        """Map normed x (T, width) to (T, width). Stores its keys and values in layer `layer`."""
        spec, q = self.spec, ops.linear(x, weights.q)
        if weights.k is None:
            assert self.source is not None, "a layer without keys reads those of another"
            q = self._placed(ops, q, weights.q_norm, weights.q_rope, positions, spec.heads)
            return ops.linear(ops.attend_stored(q, self.source, spec), weights.output)
        k = ops.linear(x, weights.k)
        v = self._values(ops, weights, x, k)
        q = self._placed(ops, q, weights.q_norm, weights.q_rope, positions, spec.heads)
        k = self._placed(ops, k, weights.k_norm, weights.rope, positions, spec.kv_heads)
        return ops.linear(ops.attend(q, k, v, layer, spec, weights.sinks), weights.output)

    def _values(self, ops: Ops[A, W], weights: AttentionWeights[W], x: A, k: A) -> A:
        """The values (T, kv_heads * head_dim). `k` are the keys before norm and rotation."""
        spec = self.spec
        if weights.v is None:
            v = ops.take_columns(k, 0, spec.kv_heads * spec.head_dim)
        else:
            v = ops.linear(x, weights.v)
        if weights.v_norm is None:
            return v
        return ops.norm_heads(v, weights.v_norm, self.norm_eps, spec.kv_heads)

    def _placed(
        self,
        ops: Ops[A, W],
        x: A,
        norm: W | None,
        rope: RopeSpec | None,
        positions: A,
        heads: int,
    ) -> A:
        """Queries or keys, normed and rotated."""
        if norm is not None:
            x = self._normed(ops, x, norm, heads)
        return x if rope is None else ops.rope(x, positions, rope, heads)

    def _normed(self, ops: Ops[A, W], x: A, weight: W, heads: int) -> A:
        if self.norm is QueryKeyNorm.WHOLE:
            return ops.norm(x, weight, self.norm_eps)
        return ops.norm_heads(x, weight, self.norm_eps, heads)


def with_stored_divisors(rope: RopeSpec, loader: Loader[Any]) -> RopeSpec:
    """The rotation, with divisors of frequencies if the checkpoint has a tensor of them.

    Llama 3 and models with longrope have such a tensor.
    """
    name = rope.divisors or "rope_divisors"
    if not (rope.divisors or loader.has(name)):
        return rope
    divisors = loader.constants(name, rope.dim // 2)
    if min(divisors) <= 0:
        raise ModelFileError(
            f"tensor {name} must hold positive numbers, got {min(divisors):g}", field=name
        )
    return rope.with_divisors(divisors)


class FeedForward(Protocol):
    """The feed-forward part of a layer: dense (`feed_forward.py`), or of experts.

    Attributes:
        width: width of the hidden state.
    """

    @property
    def width(self) -> int: ...

    def load(self, loader: Loader[Any], name: str) -> Any:
        """Claim the tensors under `name`."""
        ...

    def forward(self, ops: Ops[A, Any], weights: Any, x: A) -> A:
        """Map normed x (T, width) to (T, width). `weights` are what `load` returned."""
        ...


@dataclass(frozen=True, slots=True)
class LayerNormWeights(Generic[W]):
    """Weights of a layer norm. Those of an RMS norm are one vector."""

    weight: W
    bias: W


def load_norm(
    loader: Loader[W], name: str, width: int, *, centred: bool
) -> W | LayerNormWeights[W]:
    """Claim the weights of a norm: a layer norm if `centred`, whose bias may be missing."""
    weight = loader.vector(name, width)
    if not centred:
        return weight
    bias = f"{name}.bias"
    has_bias = loader.has(bias)
    return LayerNormWeights(
        weight, loader.vector(bias, width) if has_bias else loader.filled(width, 0.0)
    )


def apply_norm(ops: Ops[A, W], weights: W | LayerNormWeights[W], x: A, eps: float) -> A:
    """The norm of x (T, width), by what `load_norm` returned."""
    if isinstance(weights, LayerNormWeights):
        return ops.layer_norm(x, weights.weight, weights.bias, eps)
    return ops.norm(x, weights, eps)


class NormPlacement(Enum):
    """The places of a layer's norms. The result of each part is added to the hidden state."""

    BEFORE = "before"
    """x + part(norm(x)): most families."""
    AROUND = "around"
    """x + norm(part(norm(x))): Gemma 2 and 3, GLM-4."""
    AFTER = "after"
    """x + norm(part(x)): OLMo 2 and 3."""
    SUM = "sum"
    """norm(x + part(x)): BERT, and the first transformers."""


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[W]):
    """Weights of a layer: norms before and after each part, None without such norms or parts."""

    attention_norm: W | LayerNormWeights[W] | None
    mixer: Any
    after_attention: W | LayerNormWeights[W] | None
    mlp_norm: W | LayerNormWeights[W] | None
    mlp: Any
    after_mlp: W | LayerNormWeights[W] | None


@dataclass(frozen=True, slots=True)
class Layer:
    """A mixer, then a feed-forward layer. Each has norms and is added to the hidden state.

    A layer may have only one of these parts, or none. The norm before a part alone may be called
    `norm`.

    Attributes:
        mixer: the first part; None: no such part.
        mlp: the second part; None: no such part.
        norm_eps: epsilon of the norms.
        norms: where the norms are.
        residual_scale: factor on the result of each part before it is added.
        centred: whether the norms are layer norms, not RMS norms.
        parallel: whether both parts read the same hidden state: x + mixer(norm(x)) + mlp(norm(x)).
            They share the first norm if the checkpoint has no second one.
    """

    mixer: Mixer | None
    mlp: FeedForward | None
    norm_eps: float
    norms: NormPlacement = NormPlacement.BEFORE
    residual_scale: float = 1.0
    centred: bool = False
    parallel: bool = False

    def state(self, *, causal: bool) -> tuple[StateKind, ...]:
        """The kinds of state that the layer keeps of a sequence."""
        return self.mixer.state(causal=causal) if self.mixer else ()

    def load(self, loader: Loader[W], name: str) -> LayerWeights[W]:
        """Claim the tensors under `name`."""
        mixer, mlp = self.mixer, self.mlp
        before = self.norms not in (NormPlacement.AFTER, NormPlacement.SUM)
        after = self.norms is not NormPlacement.BEFORE
        alone = not (mixer and mlp) and loader.has(f"{name}.norm")
        second = before and not (self.parallel and not loader.has(f"{name}.mlp_norm"))

        def norm(
            part: Mixer | FeedForward | None, label: str, *, placed: bool
        ) -> W | LayerNormWeights[W] | None:
            if part is None or not placed:
                return None
            return load_norm(loader, f"{name}.{label}", part.width, centred=self.centred)

        return LayerWeights(
            attention_norm=norm(mixer, "norm" if alone else "attention_norm", placed=before),
            mixer=mixer.load(loader, name) if mixer else None,
            after_attention=norm(mixer, "post_attention_norm", placed=after),
            mlp_norm=norm(mlp, "norm" if alone else "mlp_norm", placed=second),
            mlp=mlp.load(loader, f"{name}.mlp") if mlp else None,
            after_mlp=norm(mlp, "post_mlp_norm", placed=after),
        )

    def forward(
        self, ops: Ops[A, W], weights: LayerWeights[W], x: A, positions: A, index: int
    ) -> A:
        """The hidden state (T, width) after layer `index`."""
        entered = normed = x
        if self.mixer is not None:
            normed = self._norm(ops, x, weights.attention_norm)
            h = self.mixer.forward(ops, weights.mixer, normed, positions, index)
            x = self._add(ops, x, h, weights.after_attention)
        if self.mlp is not None:
            if not self.parallel:
                normed = self._norm(ops, x, weights.mlp_norm)
            elif weights.mlp_norm is not None:
                normed = self._norm(ops, entered, weights.mlp_norm)
            h = self.mlp.forward(ops, weights.mlp, normed)
            x = self._add(ops, x, h, weights.after_mlp)
        return x

    def _norm(self, ops: Ops[A, W], x: A, weights: W | LayerNormWeights[W] | None) -> A:
        return x if weights is None else apply_norm(ops, weights, x, self.norm_eps)

    def _add(self, ops: Ops[A, W], x: A, part: A, norm: W | LayerNormWeights[W] | None) -> A:
        """x plus the result of a part, normed and scaled; or the sum normed."""
        if self.norms is NormPlacement.SUM:
            return self._norm(ops, ops.add(x, part), norm)
        part = self._norm(ops, part, norm)
        if self.residual_scale != 1.0:
            part = ops.scale(part, self.residual_scale)
        return ops.add(x, part)
