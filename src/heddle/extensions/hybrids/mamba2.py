"""Mamba-2 alone: layers without attention and without feed-forward parts.

Dao & Gu 2024 (arXiv:2405.21060; `transformers`, `models/mamba2`; llama.cpp, `mamba2.cpp`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.extensions.hybrids import names
from heddle.extensions.hybrids.config import mamba2 as config
from heddle.extensions.hybrids.layers import recurrent_decoder
from heddle.extensions.hybrids.mamba2_mixer import mamba2
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.decoder import Decoder
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
    """
    read = hyperparameters
    mixer = mamba2(read, read.integer("width"), read.number("norm_eps"))
    return recurrent_decoder(read, mixer)


def _read_gguf(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    names.recurrent_in_all(values)


FAMILY = Family(
    build=build,
    gguf={
        "mamba2": GGUFNames(
            layer=names.GGUF_ONE_PART,
            tensors=names.GGUF_VECTORS,
            read=_read_gguf,
        )
    },
    hf={
        "mamba2": FolderNames(
            hyperparameters={
                "norm_eps": "layer_norm_epsilon",
                "state.heads": "num_heads",
                "state.groups": "n_groups",
                "state.key_dim": "state_size",
                "state.taps": "conv_kernel",
            },
            outside={"embedding": "model.embeddings", "output_norm": "model.norm_f"},
            layer=names.FOLDER_ONE_PART,
            tensors=names.folder_vectors("mixer"),
            read=config.sizes,
        )
    },
)
