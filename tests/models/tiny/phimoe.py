"""Tiny models of PhiMoE: layer norms, biases, sparsemixer; longrope, or a window.

`transformers` turns all tokens by the short divisors, whatever it says of the long ones. So both
lists are the same here where sequences are long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gguf_writer import Tensor
from models.tiny.base import BASE, CONTEXT, ORIGINAL_CONTEXT, Random
from models.tiny.base_layer_norm import QKV, TinyLayerNorm, add_biases
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

_NEAR = 3
"""So many experts of each router are alike, so that some are near each other."""


@dataclass(frozen=True)
class TinyPhiMoe(TinyMixture, TinyLayerNorm):
    architecture = "phimoe"
    gguf_names = GGUF_NAMES
    router = "block_sparse_moe.gate"
    stacks = (
        "block_sparse_moe.experts.*.w1",
        "block_sparse_moe.experts.*.w3",
        "block_sparse_moe.experts.*.w2",
    )
    count_key = "num_local_experts"

    used: int = 2
    expert_width: int = 48
    longrope: bool = False
    window: int = 0

    def config(self) -> dict[str, object]:
        rope: dict[str, object] = {"rope_type": "default", "rope_theta": BASE}
        if self.longrope:
            rope |= {"rope_type": "longrope", "original_max_position_embeddings": ORIGINAL_CONTEXT}
            rope |= dict.fromkeys(("short_factor", "long_factor"), self.divisors())
            rope |= dict.fromkeys(("short_mscale", "long_mscale"), self.factor())
        return super().config() | {
            "rope_parameters": rope,
            "sliding_window": self.window or None,
            "attention_bias": True,
            "lm_head_bias": True,
        }

    def divisors(self) -> list[float]:
        """Divisors of each pair's frequency."""
        return [1.5 + pair for pair in range(self.head_dim // 2)]

    def factor(self) -> float:
        """The factor on queries and keys that llama.cpp writes."""
        return math.sqrt(1 + math.log(CONTEXT / ORIGINAL_CONTEXT) / math.log(ORIGINAL_CONTEXT))

    def metadata(self) -> dict[str, object]:
        keys: dict[str, object] = {"attention.sliding_window": self.window}
        if self.longrope:
            keys["rope.scaling.original_context_length"] = ORIGINAL_CONTEXT
            keys["rope.scaling.attn_factor"] = self.factor()
        found = super().metadata()
        del found["phimoe.expert_feed_forward_length"]
        eps = found.pop("phimoe.attention.layer_norm_epsilon")
        keys["attention.layer_norm_rms_epsilon"] = eps
        return found | {f"phimoe.{key}": value for key, value in keys.items()}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        weights = super().layer(random)
        add_biases(weights, random, *QKV, "self_attn.o_proj")
        router = weights[f"{self.router}.weight"]
        for like in range(1, _NEAR):
            router[like] = router[0] * (1 + 0.01 * like)
        return weights

    def further(self) -> dict[str, np.ndarray]:
        return super().further() | {"lm_head.bias": Random(22).near(0, self.vocabulary)}

    def tensors(self) -> list[Tensor]:
        divisors = np.float32(self.divisors())
        kinds = ("short", "long") if self.longrope else ()
        more = [Tensor.of(f"rope_factors_{kind}.weight", divisors) for kind in kinds]
        return [*super().tensors(), *more]


MODELS = (
    TinyPhiMoe("window", heads=3, kv_heads=1, head_dim=48, tied=False, window=5),
    TinyPhiMoe("longrope", heads=4, kv_heads=2, head_dim=16, tied=False, longrope=True),
)
