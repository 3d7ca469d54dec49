"""A tiny model of BLOOM: ALiBi, a norm of the embedding. Its heads are no power of 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from models.tiny.base import EPS, Random
from models.tiny.base_joined import JOINED, TinyJoined

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TinyBloom(TinyJoined):
    architecture = "bloom"
    gguf_names = TinyJoined.gguf_names | {"model.embedding_norm": "token_embd_norm"}
    folder_parts: ClassVar[dict[str, str]] = {
        JOINED: "self_attention.query_key_value",
        "self_attn.o_proj": "self_attention.dense",
        "mlp.up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
        "model.embed_tokens": "transformer.word_embeddings",
        "model.embedding_norm": "transformer.word_embeddings_layernorm",
        "model.norm": "transformer.ln_f",
        "input_layernorm": "input_layernorm",
        "post_attention_layernorm": "post_attention_layernorm",
    }

    ffn_width: int = 192

    def config(self) -> dict[str, object]:
        return {
            "model_type": "bloom",
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "n_layer": self.layers,
            "n_head": self.heads,
            "layer_norm_epsilon": EPS,
            "seq_length": self.context,
            "tie_word_embeddings": self.tied,
        }

    def further(self) -> dict[str, np.ndarray]:
        random = Random(23)
        return super().further() | {
            "model.embedding_norm.weight": random.near(1, self.width),
            "model.embedding_norm.bias": random.near(0, self.width),
        }


MODELS = (TinyBloom("alibi", heads=3, kv_heads=3, head_dim=16, tied=True),)
