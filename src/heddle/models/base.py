"""What an architecture file must offer, and the typed reading of model metadata."""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from heddle.errors import ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.ops import Batch, Loader, Ops

T = TypeVar("T", int, float)

_SMALLEST_FLOAT, _LARGEST_FLOAT = 2.0**-126, 2.0**127


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the engine must know of a model to size its memory. `width` is that of embeddings."""

    layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    width: int


@dataclass(frozen=True, slots=True)
class Dimensions:
    """What every architecture of attention and a gated feed-forward layer has.

    Attributes:
        ffn_width: of the feed-forward layer.
        heads: query heads, a multiple of the shape's key/value heads.
        eps: of the RMS norms.
        rope_dim: leading elements of each head that are rotated.
    """

    shape: ModelShape
    ffn_width: int
    heads: int
    eps: float
    rope_dim: int


class Model(Protocol):
    """An architecture bound to one file's hyperparameters. Holds no tensors."""

    @property
    def shape(self) -> ModelShape: ...

    def load(self, loader: Loader[Any]) -> Any:
        """Claim every tensor; returns the weights `forward` takes."""
        ...

    def forward(self, ops: Ops[Any, Any], weights: Any, batch: Batch[Any]) -> Any:
        """Last hidden states (R, width) of the batch's rows, after the final norm."""
        ...

    def logits(self, ops: Ops[Any, Any], weights: Any, states: Any) -> Any:
        """Logits (R, vocabulary) of what `forward` gave."""
        ...


def metadata_number(
    metadata: Mapping[str, object], key: str, kind: type[T], default: T | None = None
) -> T:
    """A positive number from model metadata; for `int` a whole one, for `float` one that float32
    holds.

    Raises:
        ModelFileError: the key is missing without a default, or is no such number.
    """
    value = metadata.get(key, default)
    allowed = (int,) if kind is int else (int, float)
    low, high = (1, math.inf) if kind is int else (_SMALLEST_FLOAT, _LARGEST_FLOAT)
    if isinstance(value, bool) or not isinstance(value, allowed) or not low <= value <= high:
        whole = "whole " if kind is int else ""
        raise ModelFileError(f"{key} must be a positive {whole}number, got {value!r}", field=key)
    return kind(value)


def read_dimensions(metadata: Mapping[str, object], architecture: str) -> Dimensions:
    """The dimensions under GGUF's keys, which begin with the architecture's name.

    Raises:
        ModelFileError: one is missing or contradicts another.
        UnsupportedModelError: values have another width than keys.
    """

    def integer(key: str, default: int | None = None) -> int:
        return metadata_number(metadata, f"{architecture}.{key}", int, default)

    width, heads = integer("embedding_length"), integer("attention.head_count")
    kv_heads = integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise ModelFileError(
            f"{heads} heads cannot share {kv_heads} key/value heads",
            field=f"{architecture}.attention.head_count_kv",
        )
    head_dim = integer("attention.key_length", width // heads)
    value_dim = integer("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise UnsupportedModelError(
            f"heads with keys of {head_dim} and values of {value_dim} elements are not supported",
            param=f"{architecture}.attention.value_length",
        )
    rope_dim = integer("rope.dimension_count", head_dim)
    if rope_dim > head_dim or rope_dim % 2:
        raise ModelFileError(
            f"cannot rotate {rope_dim} elements of a head of {head_dim}",
            field=f"{architecture}.rope.dimension_count",
        )
    shape = ModelShape(
        layers=integer("block_count"),
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=_vocabulary(metadata, f"{architecture}.vocab_size"),
        context=integer("context_length"),
        width=width,
    )
    return Dimensions(
        shape=shape,
        ffn_width=integer("feed_forward_length"),
        heads=heads,
        eps=metadata_number(metadata, f"{architecture}.attention.layer_norm_rms_epsilon", float),
        rope_dim=rope_dim,
    )


def _vocabulary(metadata: Mapping[str, object], key: str) -> int:
    """How many tokens the model knows: `key`, or else the tokenizer, says. They must agree.

    A model that samples a token which the tokenizer does not have could not go on.
    """
    tokens = metadata.get("tokenizer.ggml.tokens")
    pieces = len(tokens) if isinstance(tokens, Sized) else None
    size = metadata_number(metadata, key, int, pieces)
    if pieces not in (None, size):
        raise ModelFileError(
            f"{key} is {size}, but the tokenizer has {pieces} tokens; the file is damaged or was"
            " converted wrongly, fetch another one",
            field=key,
        )
    return size


def read_rope_factors(
    metadata: Mapping[str, object], architecture: str, dim: int
) -> tuple[float, ...]:
    """Factors of a RopeSpec for linear scaling (Chen et al. 2023, arXiv:2306.15595); 1 for none.

    Raises:
        ModelFileError: the factor is no positive number.
        UnsupportedModelError: the model stretches its context in another way.
    """
    key = f"{architecture}.rope.scaling.type"
    kind = metadata.get(key, "linear")
    if not isinstance(kind, str) or kind not in {"linear", "none"}:
        raise UnsupportedModelError(
            f"{key} {kind!r} is not supported; supported: 'linear', 'none'", param=key
        )
    factor = metadata_number(metadata, f"{architecture}.rope.scaling.factor", float, 1.0)
    return (1.0 if kind == "none" else factor,) * (dim // 2)
