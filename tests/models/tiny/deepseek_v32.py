"""Tiny models of DeepSeek-V3.2 and GLM-5: DeepSeek-V3 with an indexer that leaves no token out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import CONTEXT
from models.tiny.deepseek_v3 import TinyDeepseekV3

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random

_HEADS, _SIZE = 2, 32


@dataclass(frozen=True)
class TinyDeepseekV32(TinyDeepseekV3):
    """`top` tokens are attended to. All tokens of a test fit in."""

    architecture = "deepseek_v32"
    gguf_architecture = "deepseek32"
    gguf_names = TinyDeepseekV3.gguf_names | {
        "self_attn.indexer.wq_b": "indexer.attn_q_b",
        "self_attn.indexer.wk": "indexer.attn_k",
        "self_attn.indexer.k_norm": "indexer.k_norm",
        "self_attn.indexer.weights_proj": "indexer.proj",
    }

    top: int = CONTEXT

    def config(self) -> dict[str, object]:
        return super().config() | {
            "index_topk": self.top,
            "index_n_heads": _HEADS,
            "index_head_dim": _SIZE,
        }

    def metadata(self) -> dict[str, object]:
        keys = {"head_count": _HEADS, "key_length": _SIZE, "top_k": self.top}
        return super().metadata() | {
            f"{self.gguf_architecture}.attention.indexer.{key}": value
            for key, value in keys.items()
        }

    def attention(self, random: Random) -> dict[str, np.ndarray]:
        return super().attention(random) | {
            "self_attn.indexer.wq_b.weight": random.matrix(_HEADS * _SIZE, self.query_rank),
            "self_attn.indexer.wk.weight": random.matrix(_SIZE, self.width),
            "self_attn.indexer.k_norm.weight": random.near(1, _SIZE),
            "self_attn.indexer.k_norm.bias": random.near(0, _SIZE),
            "self_attn.indexer.weights_proj.weight": random.matrix(_HEADS, self.width),
        }


@dataclass(frozen=True)
class TinyGlmDsa(TinyDeepseekV32):
    architecture = "glm_moe_dsa"
    gguf_architecture = "glm-dsa"

    def config(self) -> dict[str, object]:
        kinds = ["dense"] * self.dense + ["sparse"] * (self.layers - self.dense)
        return super().config() | {"mlp_layer_types": kinds}


MODELS = (
    TinyDeepseekV32(
        "groups",
        heads=3,
        kv_heads=3,
        head_dim=28,
        tied=False,
        query_rank=24,
        groups=4,
        groups_used=2,
        stretched=True,
    ),
    TinyGlmDsa("one group", heads=4, kv_heads=4, head_dim=36, tied=False, query_rank=24, dense=2),
)
