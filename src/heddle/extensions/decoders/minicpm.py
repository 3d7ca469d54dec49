"""MiniCPM 1, 2 and 4: as Granite, with the factors of muP under keys of their own.

Hu et al. 2024 (arXiv:2404.06395); llama.cpp, `conversion/minicpm.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from heddle.errors import UnsupportedModelError
from heddle.extensions.decoders import granite
from heddle.models.family import Family
from heddle.weights.gguf.names import INTERLEAVED, GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.huggingface.json_files import Config


def complete(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """The first files lack the factors: they are those of MiniCPM 2B.

    Files with tensors of divisors name the original context, but no scaling.
    """
    layers, width = values.get("layers"), values.get("width")
    values.setdefault("embedding_scale", 12.0)
    if isinstance(layers, int) and isinstance(width, int) and layers > 0:
        values.setdefault("residual_scale", 1.4 / math.sqrt(layers))
        values.setdefault("logit_divisor", width / 256)
    if "rope.original_context" in values:
        values.setdefault("rope.scaling", "longrope")


def _read(config: Config) -> Config:
    if config.get("sparse_config"):
        raise UnsupportedModelError(
            "config.json: sparse_config is not supported: sparse attention of MiniCPM 4.1",
            param="sparse_config",
        )
    return factors(config)


def factors(config: Config) -> Config:
    """The factors on what parts of a layer add, and on logits."""
    depth, base = config.get("scale_depth"), config.get("dim_model_base")
    layers, width = config.get("num_hidden_layers"), config.get("hidden_size")
    found: Config = {}
    if isinstance(depth, float | int) and isinstance(layers, int) and layers > 0:
        found["residual_scale"] = depth / math.sqrt(layers)
    if isinstance(base, int) and isinstance(width, int) and base > 0:
        found["logit_divisor"] = width / base
    return found


FAMILY = Family(
    build=granite.build,
    gguf={"minicpm": GGUFNames(values=INTERLEAVED, read=complete)},
    hf={"minicpm": FolderNames(hyperparameters={"embedding_scale": "scale_emb"}, read=_read)},
)
