"""Tiny models of InternLM 2 and 3: Llamas. Folders of InternLM 2 have joined heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from models.tiny.base import DATA
from models.tiny.base_joined import grouped_heads
from models.tiny.llama import TinyLlama

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np


@dataclass(frozen=True)
class TinyInternLM3(TinyLlama):
    architecture = "internlm3"
    gguf_architecture = "llama"

    @property
    def logits_file(self) -> Path:
        return DATA / "llama_logits.json"


@dataclass(frozen=True)
class TinyInternLM2(TinyInternLM3):
    architecture = "internlm2"
    gguf_architecture = "internlm2"
    folder_parts: ClassVar[dict[str, str]] = {
        "model.embed_tokens": "model.tok_embeddings",
        "lm_head": "output",
        "input_layernorm": "attention_norm",
        "self_attn.o_proj": "attention.wo",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    }

    def stored(self) -> dict[str, np.ndarray]:
        state = self.state()
        for i in range(self.layers):
            parts = [state.pop(f"model.layers.{i}.self_attn.{one}_proj.weight") for one in "qkv"]
            joined = grouped_heads(parts, self.kv_heads, self.head_dim)
            state[f"model.layers.{i}.attention.wqkv.weight"] = joined
        return state

    def folder_name(self, name: str) -> str:
        for ours, theirs in self.folder_parts.items():
            name = name.replace(f"{ours}.", f"{theirs}.")
        return name


MODELS = (
    TinyInternLM2("plain", heads=4, kv_heads=2, head_dim=16, tied=True),
    TinyInternLM3("plain", heads=4, kv_heads=2, head_dim=16, tied=True),
)
