"""Tiny models of GPT-2: learned positions, matrices that folders have transposed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.tiny.base import EPS, Random
from models.tiny.base_joined import JOINED, TinyJoined

_MATRICES = {
    JOINED: "attn.c_attn",
    "self_attn.o_proj": "attn.c_proj",
    "mlp.up_proj": "mlp.c_fc",
    "mlp.down_proj": "mlp.c_proj",
}


@dataclass(frozen=True)
class TinyGPT2(TinyJoined):
    architecture = "gpt2"
    gguf_names = TinyJoined.gguf_names | {"model.positions": "position_embd"}
    folder_parts = _MATRICES | {
        "model.embed_tokens": "transformer.wte",
        "model.positions": "transformer.wpe",
        "model.norm": "transformer.ln_f",
        "lm_head": "lm_head",
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
    }

    activation: str = "gelu_new"

    def config(self) -> dict[str, object]:
        return {
            "model_type": "gpt2",
            "vocab_size": self.vocabulary,
            "n_embd": self.width,
            "n_inner": None if self.ffn_width == 4 * self.width else self.ffn_width,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_positions": self.context,
            "layer_norm_epsilon": EPS,
            "activation_function": self.activation,
            "tie_word_embeddings": self.tied,
        }

    def further(self) -> dict[str, np.ndarray]:
        table = 3 * Random(23).matrix(self.context, self.width)
        return super().further() | {"model.positions.weight": table}

    def join_heads(self, parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts)

    def stored(self) -> dict[str, np.ndarray]:
        state = super().stored()
        for name, values in state.items():
            if any(name.endswith(f".{part}.weight") for part in _MATRICES):
                state[name] = np.ascontiguousarray(values.T)
        return state


MODELS = (
    TinyGPT2("tied", heads=3, kv_heads=3, head_dim=16, tied=True),
    TinyGPT2("wide", heads=3, kv_heads=3, head_dim=16, tied=False, layers=3, ffn_width=192),
)
