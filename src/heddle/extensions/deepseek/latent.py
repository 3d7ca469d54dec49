"""Latent attention: all heads make their keys and values from one vector a position.

DeepSeek-AI 2024 (arXiv:2405.04434, section 2.1). The KV cache stores this vector, the latent, and
beside it a rotated key that all heads share. The matrices that make a head's keys and values are
absorbed: one turns queries into the space of latents, the other turns sums of latents into values.
Each token is computed so, whether it is of a prompt or generated. So its bits do not depend on the
chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.errors import UnsupportedModelError
from heddle.executor import ModelShape
from heddle.models.base import Sizes
from heddle.models.blocks import with_stored_divisors
from heddle.models.ops import LatentSpec, RopeSpec
from heddle.models.positions import rope, temperature
from heddle.state import KvShape, Pages

if TYPE_CHECKING:
    from heddle.models.ops import Loader, Ops, Temperature
    from heddle.state import StateKind
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")

_LANES = 16
"""Elements of a latent that kernels handle together."""


@dataclass(frozen=True, slots=True)
class LatentWeights(Generic[W]):
    """Weights of latent attention. `query` and `query_norm` are None without a query rank.

    `head_keys` and `head_values` have a matrix for each head. `rope` is the rotation with the
    checkpoint's divisors.
    """

    query: W | None
    query_norm: W | None
    q: W
    latent_key: W
    latent_norm: W
    head_keys: W
    head_values: W
    output: W
    rope: RopeSpec | None


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention over latents.

    Attributes:
        width: width of the hidden state.
        spec: heads, sizes of latent and rotated key, scale.
        rope: rotation of the last elements of each query, and of the rotated key; None: neither is
            rotated, and the model has no positions.
        key_dim: elements of a head's query that are not rotated.
        value_dim: elements of a head's value.
        query_rank: elements of the vector that queries are made from; 0: they are made from the
            hidden state.
        norm_eps: epsilon of the norms.
        temperature: growth of the queries with their position; None: no growth.
    """

    width: int
    spec: LatentSpec
    rope: RopeSpec | None
    key_dim: int
    value_dim: int
    query_rank: int
    norm_eps: float
    temperature: Temperature | None = None

    def state(self, *, causal: bool) -> tuple[StateKind, ...]:
        """See :class:`heddle.models.blocks.Mixer`."""
        return (Pages(KvShape(1, self.spec.rank + self.spec.rope_dim, has_values=False)),)

    def load(self, loader: Loader[W], name: str) -> LatentWeights[W]:
        """Claim the tensors of the layer `name`, with biases if the checkpoint has them."""
        name = f"{name}.attention"
        spec, compressed = self.spec, self.query_rank > 0
        q = "query_heads" if compressed else "q"
        q_input = self.query_rank or self.width
        query_norm = loader.vector(f"{name}.query_norm", q_input) if compressed else None
        rope = self.rope
        if rope is not None and rope.divisors:
            rope = with_stored_divisors(rope, loader)
        return LatentWeights(
            query=loader.linear(f"{name}.query", q_input, self.width) if compressed else None,
            query_norm=query_norm,
            q=loader.linear(f"{name}.{q}", spec.heads * (self.key_dim + spec.rope_dim), q_input),
            latent_key=loader.linear(f"{name}.latent_key", spec.rank + spec.rope_dim, self.width),
            latent_norm=loader.vector(f"{name}.latent_norm", spec.rank),
            head_keys=loader.experts(f"{name}.head_keys", spec.heads, spec.rank, self.key_dim),
            head_values=loader.experts(
                f"{name}.head_values", spec.heads, self.value_dim, spec.rank
            ),
            output=loader.linear(f"{name}.output", self.width, spec.heads * self.value_dim),
            rope=rope,
        )

    def forward(
        self, ops: Ops[A, W], weights: LatentWeights[W], x: A, positions: A, layer: int
    ) -> A:
        """Map normed x (T, width) to (T, width). Stores its latents in layer `layer`."""
        spec, source = self.spec, x
        latent_key = ops.linear(x, weights.latent_key)
        if weights.query is not None and weights.query_norm is not None:
            source = ops.norm(ops.linear(x, weights.query), weights.query_norm, self.norm_eps)
        q = ops.linear(source, weights.q)
        latent = ops.take_columns(latent_key, 0, spec.rank)
        latent = ops.norm(latent, weights.latent_norm, self.norm_eps)
        key = ops.take_columns(latent_key, spec.rank, spec.rope_dim)
        if weights.rope is not None:
            key = ops.rope(key, positions, weights.rope.at(0), 1)
            for turn in self._turns(weights.rope):
                q = ops.rope(q, positions, turn, spec.heads)
        q_latent = ops.head_linear(q, weights.head_keys)
        mixed = ops.latent_attend(q_latent, q, latent, key, layer, spec)
        return ops.linear(ops.head_linear(mixed, weights.head_values), weights.output)

    def _turns(self, rope: RopeSpec) -> tuple[RopeSpec, ...]:
        """The rotations of a query: of its last elements, and by no angle of those that grow."""
        turn = replace(rope.at(self.key_dim), temperature=self.temperature)
        if self.temperature is None:
            return (turn,)
        return turn, replace(RopeSpec.still(self.key_dim), temperature=self.temperature)


def latent_attention(
    hyperparameters: Hyperparameters, context: int, *, rotates: bool = True
) -> LatentAttention:
    """The latent attention of a checkpoint; without `rotates`, it has no positions.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: the scaling of positions is not known, or executors cannot store
            latents of this size.
    """
    read = hyperparameters
    heads, whole = read.integer("heads"), read.integer("key_dim")
    rank = read.integer("latent_rank")
    turned = rope(read, whole, context)
    if turned.dim >= whole:
        read.fail("rope.dim", f"is {turned.dim}; a part of each query of {whole} is not rotated")
    for name, size in (("latent_rank", rank), ("rope.dim", turned.dim)):
        if size % _LANES:
            label = read.label(name)
            raise UnsupportedModelError(
                f"{label} {size} is not supported: it must be a multiple of {_LANES}", param=label
            )
    growth = temperature(read, turned.dim)
    if growth is not None and whole % 2:
        read.fail("key_dim", f"is {whole}; heads of queries that grow have pairs of elements")
    scale = read.number("rope.score_factor", 1.0) / whole**0.5
    return LatentAttention(
        read.integer("width"),
        LatentSpec(heads, rank, turned.dim, scale),
        turned if rotates else None,
        whole - turned.dim,
        read.integer("value_dim"),
        read.count("query_rank"),
        read.number("latent_norm_eps", read.number("norm_eps")),
        growth,
    )


def latent_model_sizes(hyperparameters: Hyperparameters, attention: LatentAttention) -> Sizes:
    """The sizes of a model whose layers have `attention`, some or all.

    Raises:
        ModelFileError: a size is missing.
    """
    read, spec = hyperparameters, attention.spec
    shape = ModelShape(
        layers=read.integer("layers"),
        kv_heads=1,
        head_dim=spec.rank + spec.rope_dim,
        vocabulary=read.integer("vocabulary"),
        context=read.integer("context"),
        width=attention.width,
    )
    return Sizes(shape, read.integer("mlp_width"), spec.heads, read.number("norm_eps"))
