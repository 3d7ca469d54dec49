"""Falcon-H1: each layer has attention and Mamba-2 side by side, and factors on all of its parts.

TII 2025 (arXiv:2507.22448; `transformers`, `models/falcon_h1`; llama.cpp, `falcon-h1.cpp`). Some
models norm the result of Mamba-2, and others only gate it. The factors are those of muP, Yang et
al. 2022 (arXiv:2203.03466).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from heddle.extensions.hybrids import names
from heddle.extensions.hybrids.config import falcon_h1 as config
from heddle.extensions.hybrids.mamba2_mixer import Mamba2, mamba2
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.extensions.hybrids.mamba2_mixer import Mamba2Weights
    from heddle.models.blocks import AttentionWeights
    from heddle.models.ops import Loader, Ops
    from heddle.state import StateKind
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")

_STREAMS = 5  # gates, values, keys, queries, step sizes


@dataclass(frozen=True, slots=True)
class SideBySideWeights(Generic[W]):
    attention: AttentionWeights[W]
    recurrence: Mamba2Weights[W]


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Attention and Mamba-2 that read the same input. Their results are scaled and added."""

    attention: Attention
    recurrence: Mamba2
    attention_scale: float
    recurrence_scale: float

    @property
    def width(self) -> int:
        """Width of the hidden state."""
        return self.attention.width

    def state(self, *, causal: bool) -> tuple[StateKind, ...]:
        """See `heddle.models.blocks.Mixer`."""
        return (*self.attention.state(causal=causal), *self.recurrence.state(causal=causal))

    def load(self, loader: Loader[W], name: str) -> SideBySideWeights[W]:
        """Claim the tensors of the layer `name`."""
        return SideBySideWeights(
            self.attention.load(loader, name), self.recurrence.load(loader, name)
        )

    def forward(
        self, ops: Ops[A, W], weights: SideBySideWeights[W], x: A, positions: A, layer: int
    ) -> A:
        """Map normed x (T, width) to (T, width)."""
        y = self.recurrence.forward(ops, weights.recurrence, x, positions, layer)
        z = self.attention.forward(ops, weights.attention, x, positions, layer)
        return ops.add(
            _scaled(ops, y, self.recurrence_scale), _scaled(ops, z, self.attention_scale)
        )


def _scaled(ops: Ops[A, Any], x: A, scale: float) -> A:
    return x if scale == 1.0 else ops.scale(x, scale)


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: a hyperparameter has a value that is not supported.
    """
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    recurrence = replace(mamba2(read, shape.width, eps), norm_if_stored=True)
    if read.get("state.stream_scales") is not None:
        scales = read.numbers("state.stream_scales", _STREAMS)
        recurrence = replace(recurrence, scales=scales)
    mixer = SideBySide(
        Attention(shape.width, sizes.attention(read), rope(read, shape.head_dim, context)),
        recurrence,
        read.number("attention.result_scale", 1.0),
        read.number("state.result_scale", 1.0),
    )
    mlp = GatedMLP(
        shape.width,
        sizes.mlp_width,
        read.choice("activation", ("silu",), "silu"),
        read.number("mlp.gate_scale", 1.0),
        read.number("mlp.result_scale", 1.0),
    )
    return Decoder(
        shape,
        (Layer(mixer, mlp, eps),) * shape.layers,
        eps,
        embedding_scale=read.number("embedding_scale", 1.0),
        logit_scale=1 / read.number("logit_divisor", 1.0),
    )


FAMILY = Family(
    build=build,
    gguf={
        "falcon-h1": GGUFNames(
            values={"recurrence_beside": True},
            layer=names.GGUF_MAMBA,
            tensors=names.GGUF_VECTORS | {"mlp_norm.weight": "ffn_norm"},
        )
    },
    hf={
        "falcon_h1": FolderNames(
            hyperparameters=names.FOLDER_MAMBA_KEYS,
            outside={"output_norm": "model.final_layernorm"},
            layer={
                **names.FOLDER_MAMBA,
                "mlp_norm": "pre_ff_layernorm",
                **{f"mlp.{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
            },
            tensors=names.folder_vectors("mamba"),
            read=config.sizes,
        )
    },
)
