"""A tiny model of Ling 2.0: a GLM-4.5 with queries, keys and values in one matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from models.tiny.base import DATA
from models.tiny.glm4_moe import TinyGlm4Moe

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class TinyLing(TinyGlm4Moe):
    architecture = "bailing_moe_v2"
    gguf_architecture = "bailingmoe2"
    gguf_names = TinyGlm4Moe.gguf_names | {
        "self_attn.qkv": "attn_qkv",
        "post_attention_layernorm": "ffn_norm",
    }
    folder_parts: ClassVar[dict[str, str]] = {
        "model.embed_tokens": "model.word_embeddings",
        "self_attn.qkv": "attention.query_key_value",
        "self_attn.o_proj": "attention.dense",
        "self_attn.q_norm": "attention.query_layernorm",
        "self_attn.k_norm": "attention.key_layernorm",
    }

    @property
    def logits_file(self) -> Path:
        return DATA / "glm4_moe_logits.json"

    def config(self) -> dict[str, object]:
        config = super().config() | {
            "num_experts": self.experts,
            "num_shared_experts": self.shared,
            "num_nextn_predict_layers": 1,
        }
        del config["n_routed_experts"], config["n_shared_experts"]
        return config

    def metadata(self) -> dict[str, object]:
        return {
            key.replace("glm4moe.", "bailingmoe2."): value
            for key, value in super().metadata().items()
        }

    def stored(self) -> dict[str, np.ndarray]:
        return self._joined(self.state())

    def _joined(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for i in range(self.layers):
            prefix = f"model.layers.{i}.self_attn."
            for kind in ("weight", "bias"):
                parts = [state.pop(f"{prefix}{part}_proj.{kind}") for part in "qkv"]
                state[f"{prefix}qkv.{kind}"] = np.concatenate(parts)
        return state

    def folder_name(self, name: str) -> str:
        for ours, theirs in self.folder_parts.items():
            name = name.replace(f"{ours}.", f"{theirs}.")
        return name.replace("e_score_correction_bias", "expert_bias")


MODELS = (TinyLing("groups", heads=6, kv_heads=2, head_dim=16, tied=False),)
