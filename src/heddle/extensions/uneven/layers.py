"""Sizes that differ between layers with a window and the others."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from heddle.errors import UnsupportedModelError
from heddle.executor import ModelShape
from heddle.extensions.uneven.attention import UnevenAttention
from heddle.models.base import Sizes, read_windows
from heddle.models.blocks import Layer, NormPlacement
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.feed_forward import GatedMLP
from heddle.models.ops import AttentionSpec, RopeSpec
from heddle.models.positions import rope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.models.blocks import FeedForward
    from heddle.models.ops import Loader, Ops
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")

_log = logging.getLogger(__name__)


def read_attentions(read: Hyperparameters, context: int) -> list[UnevenAttention]:
    """The attention of each layer, without norms and gates.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: values are wider than keys.
    """
    count, width = read.integer("layers"), read.integer("width")
    windows = read_windows(read, count)
    heads, kv_heads = _sizes(read, "heads", count), _sizes(read, "kv_heads", count)
    keys = read.integers("key_dim", count)
    values = keys if read.get("value_dim") is None else read.integers("value_dim", count)
    value_scale = read.number("attention.value_scale", 1.0)
    found = []
    for layer, window in enumerate(windows):
        key, value = keys[layer], values[layer]
        scale = read.number("attention.scale_dim", key) ** -0.5
        if heads[layer] % kv_heads[layer]:
            read.fail(
                "kv_heads",
                f"is {kv_heads[layer]}, which does not divide the {heads[layer]} query heads of"
                f" layer {layer}",
            )
        if value > key:
            label = read.label("value_dim")
            raise UnsupportedModelError(
                f"{label} {value} is not supported: values wider than keys, which have {key}"
                " elements",
                param=label,
            )
        found.append(
            UnevenAttention(
                width,
                AttentionSpec(heads[layer], kv_heads[layer], key, scale, window),
                _nearby(read, key) if window else rope(read, key, context),
                value,
                value_scale,
            )
        )
    return found


def _sizes(read: Hyperparameters, name: str, count: int) -> tuple[int, ...]:
    """A size of each layer. In GGUF files, entries of prediction heads may follow."""
    listed = read.get(name)
    entries = len(listed) if isinstance(listed, list) else count
    return read.integers(name, max(entries, count))[:count]


def _nearby(read: Hyperparameters, head_dim: int) -> RopeSpec:
    """The rotation in layers with a window."""
    dim = read.integer("rope.local_dim", head_dim)
    if dim > head_dim or dim % 2:
        read.fail("rope.local_dim", f"must be even and at most {head_dim}, got {dim}")
    base = read.number("rope.local_base", 10_000.0)
    return RopeSpec(dim, base, read.flag("rope.interleaved", False))


def decoder_of(
    read: Hyperparameters,
    attentions: Sequence[UnevenAttention],
    mlps: Callable[[Sizes], Sequence[FeedForward]],
    norms: NormPlacement = NormPlacement.BEFORE,
    embedding_scale: float = 1.0,
) -> Decoder:
    """The decoder with these layers. Its heads for further tokens are not used."""
    widest = max((one.spec for one in attentions), key=lambda spec: spec.kv_heads * spec.head_dim)
    shape = ModelShape(
        layers=len(attentions),
        kv_heads=widest.kv_heads,
        head_dim=widest.head_dim,
        vocabulary=read.integer("vocabulary"),
        context=read.integer("context"),
        width=attentions[0].width,
    )
    eps = read.number("norm_eps")
    sizes = Sizes(shape, read.integer("mlp_width"), widest.heads, eps)
    if read.count("prediction_layers"):
        _log.info("the model's %d prediction heads are not used", read.count("prediction_layers"))
    layers = (Layer(one, mlp, eps, norms) for one, mlp in zip(attentions, mlps(sizes), strict=True))
    return Decoder(shape, tuple(layers), eps, embedding_scale=embedding_scale)


def without_heads_for_further_tokens(values: dict[str, Any], *names: str) -> None:
    """Cut lists by layer, whose last entries are of prediction heads, to the model's layers.

    Those of heads stay whole: joined matrices of prediction heads have their rows by them.
    """
    layers = values.get("layers")
    for name in ("window_period", *names):
        if isinstance(values.get(name), list) and isinstance(layers, int):
            values[name] = values[name][:layers]


@dataclass(frozen=True, slots=True)
class StoredFeedForward:
    """Experts if the checkpoint has their router, else a dense layer.

    GGUF files do not say which layers have experts.
    """

    dense: FeedForward
    experts: FeedForward

    @property
    def width(self) -> int:
        return self.dense.width

    def load(self, loader: Loader[W], name: str) -> tuple[FeedForward, Any]:
        """Claim the tensors under `name`."""
        part = self.experts if loader.has(f"{name}.router") else self.dense
        return part, part.load(loader, name)

    def forward(self, ops: Ops[A, W], weights: tuple[FeedForward, Any], x: A) -> A:
        """Map normed x (T, width) to (T, width)."""
        part, own = weights
        return part.forward(ops, own, x)


def experts_where_stored(
    dense: Sequence[FeedForward], experts: Sequence[FeedForward]
) -> list[FeedForward]:
    """For each layer its experts, if the checkpoint has their tensors, else its dense part."""
    return list(map(StoredFeedForward, dense, experts))


def experts_of(read: Hyperparameters) -> Callable[[Sizes], list[FeedForward]]:
    """A function that returns the feed-forward part of each layer.

    Experts are scored by sigmoids, unless the checkpoint says otherwise.
    """

    def mlps(sizes: Sizes) -> list[FeedForward]:
        activation = read.choice("activation", ("silu",), "silu")
        experts = feed_forwards(read, sizes, activation, scoring="sigmoid")
        dense = GatedMLP(sizes.shape.width, sizes.mlp_width, activation)
        return experts_where_stored([dense] * len(experts), experts)

    return mlps
