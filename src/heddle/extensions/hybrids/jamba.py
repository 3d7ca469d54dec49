"""Jamba: Mamba, every few layers attention without positions, and experts in every second layer.

AI21 2024 (arXiv:2403.19887; `transformers`, `models/jamba`; llama.cpp, `conversion/jamba.py`).
Smaller ones have no experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from heddle.extensions.decoders.recurrent import read_recurrent
from heddle.extensions.hybrids import names
from heddle.extensions.hybrids.config import jamba as config
from heddle.extensions.hybrids.layers import hybrid_layers
from heddle.extensions.hybrids.mamba_mixer import Norms, mamba
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.family import Family
from heddle.models.feed_forward import dense_mlp
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.blocks import FeedForward
    from heddle.models.ops import Loader, Ops
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")

_PERIOD = 8
_ACTIVATION = "silu"


@dataclass(frozen=True, slots=True)
class ExpertsIfStored:
    """A feed-forward part that has experts if the checkpoint has its router.

    GGUF files do not say which layers have experts.
    """

    dense: FeedForward
    mixture: FeedForward

    @property
    def width(self) -> int:
        """See `heddle.models.blocks.FeedForward`."""
        return self.dense.width

    def load(self, loader: Loader[Any], name: str) -> tuple[FeedForward, Any]:
        """The part that the checkpoint has, and its weights."""
        own = self.mixture if loader.has(f"{name}.router") else self.dense
        return own, own.load(loader, name)

    def forward(self, ops: Ops[A, Any], weights: tuple[FeedForward, Any], x: A) -> A:
        """Map normed x (T, width) to (T, width)."""
        own, loaded = weights
        return own.forward(ops, loaded, x)


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: a hyperparameter has a value that is not supported.
    """
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    activation = read.choice("activation", (_ACTIVATION,), _ACTIVATION)
    dense = dense_mlp(shape.width, sizes.mlp_width, activation)
    mlps: list[FeedForward] = [dense] * shape.layers
    if read.count("experts") > 1:  # a single one is stored as a dense part
        mixtures = feed_forwards(read, sizes, activation, normalised=False)
        mlps = [ExpertsIfStored(dense, mixture) for mixture in mixtures]
    layers = hybrid_layers(
        read_recurrent(read, shape.layers, _PERIOD),
        mamba(read, shape.width, Norms(eps, stored=True)),
        Attention(shape.width, sizes.attention(read), None),
        mlps,
        eps,
    )
    return Decoder(shape, layers, eps)


def _read_gguf(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    names.recurrent_without_heads(values, metadata)
    names.channels_as_heads(values)


FAMILY = Family(
    build=build,
    gguf={
        "jamba": GGUFNames(
            hyperparameters=names.GGUF_STEP_RANK,
            layer=names.GGUF_MAMBA
            | names.GGUF_SCAN
            | {
                "mixer.step_norm": "ssm_dt_norm",
                "mixer.key_norm": "ssm_b_norm",
                "mixer.query_norm": "ssm_c_norm",
            },
            tensors=names.GGUF_VECTORS,
            read=_read_gguf,
        )
    },
    hf={
        "jamba": FolderNames(
            hyperparameters={
                "state.inner": "mamba_expand",
                "state.key_dim": "mamba_d_state",
                "state.taps": "mamba_d_conv",
                "state.step_rank": "mamba_dt_rank",
            },
            outside={"output_norm": "model.final_layernorm"},
            layer=names.FOLDER_MAMBA
            | names.folder_scan("mamba")
            | {
                "mixer.step_norm": "mamba.dt_layernorm",
                "mixer.key_norm": "mamba.b_layernorm",
                "mixer.query_norm": "mamba.c_layernorm",
                "mlp_norm": "pre_ff_layernorm",
                "mlp.router": "feed_forward.router",
            }
            | {f"mlp.{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}
            | {
                f"mlp.experts.{part}": f"feed_forward.experts.*.{part}_proj"
                for part in ("gate", "up", "down")
            },
            tensors=names.folder_scan_vectors("mamba"),
            read=config.sizes,
        )
    },
)
