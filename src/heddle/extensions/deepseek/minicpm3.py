"""MiniCPM3: latent attention without experts, with MiniCPM's factors of muP.

Its rotation pairs the two halves of the rotated elements. `transformers`, `minicpm3`; llama.cpp,
`conversion/minicpm.py` and `minicpm3.cpp`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heddle.extensions.decoders import minicpm
from heddle.extensions.deepseek import deepseek
from heddle.extensions.deepseek.config import attention_sizes
from heddle.extensions.deepseek.names import FOLDER_LATENTS, GGUF_LATENTS
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.decoder import Decoder
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters

_FACTORS = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
"""Of MiniCPM3 4B. `transformers` takes them where config.json has no such key; null means 1."""


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    plain = deepseek.build(read, context)
    residual = read.number("residual_scale", 1.0)
    return replace(
        plain,
        layers=tuple(replace(layer, residual_scale=residual) for layer in plain.layers),
        embedding_scale=read.number("embedding_scale", 1.0),
        logit_scale=1 / read.number("logit_divisor", 1.0),
    )


def _size_of_values(width: object, heads: object) -> dict[str, object]:
    """Where no key says it, values share the width of the hidden state."""
    if isinstance(width, int) and isinstance(heads, int) and heads > 0:
        return {"value_dim": width // heads}
    return {}


def _read_metadata(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """Files have longrope's divisors as tensors, and no key that says so."""
    if "context" in values:
        values.setdefault("rope.original_context", values["context"])
    values |= _size_of_values(values.get("width"), values.get("heads")) | values
    minicpm.complete(values, metadata)


def _read(config: Config) -> Config:
    whole = _FACTORS | config
    found = attention_sizes(config) | minicpm.factors(whole)
    found = _size_of_values(config.get("hidden_size"), config.get("num_attention_heads")) | found
    if whole["scale_emb"] is not None:
        found["embedding_scale"] = whole["scale_emb"]
    return found


FAMILY = Family(
    build=build,
    gguf={
        # No key has the epsilon of the latents' norms.
        "minicpm3": GGUFNames(
            values={"latent_norm_eps": 1e-6}, layer=GGUF_LATENTS, read=_read_metadata
        )
    },
    hf={
        "minicpm3": FolderNames(
            hyperparameters={"embedding_scale": "scale_emb"}, layer=FOLDER_LATENTS, read=_read
        )
    },
)
