"""Tiny models of MiniCPM3: dense layers with latent attention, factors, and longrope.

The values of a head have no key: they share the width. The first model has the factors of
MiniCPM3 4B, which neither its folder nor its GGUF file names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gguf_writer import Tensor
from models.tiny.base import BASE, CONTEXT, ORIGINAL_CONTEXT
from models.tiny.base_latent import TinyLatent

if TYPE_CHECKING:
    from models.tiny.base import Random

_EPS = 0.02
"""So large that the norms of latents, which have 1e-6, differ."""
_KEPT = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length"),
    *("attention.q_lora_rank", "attention.kv_lora_rank", "rope.dimension_count"),
)
"""Keys of GGUF files of MiniCPM3, beside the epsilon."""


@dataclass(frozen=True)
class TinyMiniCPM3(TinyLatent):
    architecture = "minicpm3"
    gguf_architecture = "minicpm3"

    width: int = 64
    query_rank: int = 24
    value_dim: int = 16
    dense: int = 3
    fused: bool = True
    original: int = CONTEXT
    factors: bool = False

    def config(self) -> dict[str, object]:
        found = {
            key: value
            for key, value in super().config().items()
            if "expert" not in key and key not in ("v_head_dim", "first_k_dense_replace")
        }
        rope = {"rope_type": "longrope", "rope_theta": BASE} | self.divisors()
        rope |= {"original_max_position_embeddings": self.original}
        if self.factors:
            found |= {"scale_emb": 3, "scale_depth": 1.1, "dim_model_base": 32}
        return found | {"rms_norm_eps": _EPS, "rope_parameters": rope}

    def divisors(self) -> dict[str, object]:
        """Divisors of each pair's frequency, for short and for long sequences."""
        pairs = range(self.rope_dim // 2)
        return {
            "short_factor": [1 + pair / 16 for pair in pairs],
            "long_factor": [1.5 + pair for pair in pairs],
        }

    def metadata(self) -> dict[str, object]:
        found = super().metadata()
        kept = {f"minicpm3.{key}": found[f"minicpm3.{key}"] for key in _KEPT}
        kept |= {"general.architecture": "minicpm3"}
        kept |= {"minicpm3.attention.layer_norm_rms_epsilon": _EPS}
        if self.original != CONTEXT:
            kept |= {"minicpm3.rope.scaling.original_context_length": self.original}
        if self.factors:
            residual = 1.1 / math.sqrt(self.layers)
            kept |= {"minicpm3.embedding_scale": 3.0, "minicpm3.residual_scale": residual}
            kept |= {"minicpm3.logit_scale": self.width / 32}
        return kept

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return {
            name: values for name, values in super().layer(random).items() if "expert" not in name
        }

    def tensors(self) -> list[Tensor]:
        divisors = [
            Tensor.of(f"rope_factors_{name.removesuffix('_factor')}.weight", np.float32(values))
            for name, values in self.divisors().items()
        ]
        return [*super().tensors(), *divisors]


MODELS = (
    TinyMiniCPM3("short", heads=4, kv_heads=4, head_dim=28, tied=True),
    TinyMiniCPM3(
        "long",
        heads=4,
        kv_heads=4,
        head_dim=28,
        tied=False,
        original=ORIGINAL_CONTEXT,
        factors=True,
    ),
)
