"""DeepSeek-V4: one shared key, compressed positions, streams, experts listed by token id.

DeepSeek-AI 2026; `transformers` defines the meaning of the keys of config.json
(`DeepseekV4Config`) and of the tensors. `streams.py`, `compressed.py` and `listed.py` have the
parts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.executor import ModelShape
from heddle.extensions.deepseek.compressed import Compressor, SharedKeyAttention
from heddle.extensions.deepseek.listed import ListedExperts
from heddle.extensions.deepseek.streams import Mixing, StreamDecoder, StreamLayer
from heddle.extensions.deepseek.v4_folders import FOLDER
from heddle.models.experts import MixtureOfExperts, expert_spec
from heddle.models.family import Family
from heddle.models.feed_forward import dense_mlp
from heddle.models.ops import AttentionSpec, RopeSpec
from heddle.models.positions import rope

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.models.blocks import FeedForward
    from heddle.models.decoder import Decoder
    from heddle.weights.hyperparameters import Hyperparameters

_LIMIT = 10.0
"""Limit of the activation "limited"."""
_LONGEST_RUN = 4096
"""Most positions of a run: a bound of the memory that a file can ask for."""
_LANES, _WIDEST = 32, 512
"""Elements of a key that kernels handle together, in all types of the KV cache, and most of a key.
"""


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: a value is not supported.
    """
    read, eps = hyperparameters, hyperparameters.number("norm_eps")
    dim, width = read.integer("key_dim"), read.integer("width")
    layers = read.integer("layers")
    shape = ModelShape(
        layers=layers,
        kv_heads=1,
        head_dim=dim,
        vocabulary=read.integer("vocabulary"),
        context=read.integer("context"),
        width=width,
    )
    mixing = Mixing(
        read.integer("streams"),
        width,
        read.integer("streams.turns"),
        read.number("streams.eps"),
        eps,
    )
    attention = _attentions(read, dim, context, eps)
    mixture = _mixture(read, width)
    listed = read.count("listed_layers")

    def layer(index: int, ratio: int) -> StreamLayer:
        own: FeedForward = ListedExperts(mixture, shape.vocabulary) if index < listed else mixture
        return StreamLayer(mixer=attention(ratio), mlp=own, norm_eps=eps, mixing=mixing)

    ratios = _ratios(read, layers)
    made = tuple(layer(index, ratio) for index, ratio in enumerate(ratios))
    return StreamDecoder(shape=shape, layers=made, norm_eps=eps, mixing=mixing)


def _attentions(
    read: Hyperparameters, dim: int, context: int, eps: float
) -> Callable[[int], SharedKeyAttention]:
    """Returns what makes the attention of a layer that compresses `ratio` positions, or none."""
    heads, groups = read.integer("heads"), read.integer("output_groups")
    if heads % groups:
        read.fail("output_groups", f"is {groups}, which does not divide the {heads} heads")
    if dim % _LANES or dim > _WIDEST:
        label = read.label("key_dim")
        raise UnsupportedModelError(
            f"{label} {dim} is not supported: it must be a multiple of {_LANES}, at most {_WIDEST}",
            param=label,
        )
    whole = rope(read, dim, context)
    local = RopeSpec(whole.dim, read.number("rope.local_base", 10_000.0), whole.interleaved)
    width, overlapping = read.integer("width"), read.count("compression.overlapping")
    plain = SharedKeyAttention(
        width,
        AttentionSpec(heads, 1, dim, dim**-0.5, read.integer("window")),
        local.at(dim - whole.dim),
        read.integer("query_rank"),
        groups,
        read.integer("output_rank"),
        eps,
        None,
    )
    far = replace(plain, rope=whole.at(dim - whole.dim))

    def attention(ratio: int) -> SharedKeyAttention:
        if not ratio:
            return plain
        return replace(far, compressor=Compressor(width, dim, ratio, ratio == overlapping))

    return attention


def _mixture(read: Hyperparameters, width: int) -> MixtureOfExperts:
    limit = read.number("expert_limit", _LIMIT)
    if limit != _LIMIT:
        label = read.label("expert_limit")
        raise UnsupportedModelError(
            f"{label} {limit:g} is not supported; supported: {_LIMIT:g}", param=label
        )
    spec = expert_spec(read, "sqrt_softplus", "limited", normalised=True)
    hidden = read.integer("expert_width")
    shared = read.count("shared_experts") * hidden
    own = dense_mlp(width, shared, "limited") if shared else None
    return MixtureOfExperts(width, hidden, spec, own)


def _ratios(read: Hyperparameters, layers: int) -> list[int]:
    """The positions of a run in each layer; 0: the layer compresses none."""
    listed = read.get("compression")
    if not isinstance(listed, list) or len(listed) != layers:
        read.fail("compression", f"must have {layers} entries, got {listed!r}")
    for one in listed:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= _LONGEST_RUN:
            read.fail("compression", f"must have numbers from 0 to {_LONGEST_RUN}, got {one!r}")
    return listed


_GLM = (
    "Heddle lacks its recurrence whose decay has a lower bound, and latents without rotation; the"
    " nearest that it serves are deepseek_v4 and kimi_linear"
)
FAMILY = Family(
    build=build,
    gguf={},
    hf={"deepseek_v4": FOLDER},
    near={
        "deepseek4": "Heddle reads DeepSeek-V4 from folders as published, not from GGUF files yet;"
        " the nearest that it reads from GGUF files is deepseek32",
        "glm5_next": _GLM,
        "glm5_next_text": _GLM,
        "glm5next": _GLM,
    },
)
