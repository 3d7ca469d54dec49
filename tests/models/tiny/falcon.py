"""Tiny models of Falcon: one key/value head and one norm, or groups and a norm for each part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from models.tiny.base import BASE, EPS
from models.tiny.base_joined import JOINED, TinyJoined

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyFalcon(TinyJoined):
    architecture = "falcon"
    # GGUF's first norm is that of the feed-forward layer if there are two (llama.cpp).
    gguf_names = TinyJoined.gguf_names | {"ln_mlp": "attn_norm", "ln_attn": "attn_norm_2"}
    biased = False
    folder_parts: ClassVar[dict[str, str]] = {
        JOINED: "self_attention.query_key_value",
        "self_attn.o_proj": "self_attention.dense",
        "mlp.up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
        "model.embed_tokens": "transformer.word_embeddings",
        "model.norm": "transformer.ln_f",
        "lm_head": "lm_head",
        "input_layernorm": "input_layernorm",
        "ln_attn": "ln_attn",
        "ln_mlp": "ln_mlp",
    }

    new: bool = False
    """Whether it is of the kind of Falcon 40B."""
    norms: int = 1

    def config(self) -> dict[str, object]:
        return {
            "model_type": "falcon",
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_kv_heads": self.kv_heads if self.new else self.heads,
            "ffn_hidden_size": None if self.ffn_width == 4 * self.width else self.ffn_width,
            "num_ln_in_parallel_attn": self.norms if self.new else None,
            "new_decoder_architecture": self.new,
            "multi_query": True,
            "parallel_attn": True,
            "bias": False,
            "alibi": False,
            "max_position_embeddings": self.context,
            "layer_norm_epsilon": EPS,
            "rope_theta": BASE,
            "tie_word_embeddings": self.tied,
        }

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        weights = super().layer(random)
        others = {"input_layernorm": "ln_attn", "post_attention_layernorm": "ln_mlp"}
        for kind in ("weight", "bias"):
            for name, other in others.items():
                if self.norms == 2:
                    weights[f"{other}.{kind}"] = weights.pop(f"{name}.{kind}")
                elif other == "ln_mlp":
                    del weights[f"{name}.{kind}"]
        return weights


MODELS = (
    TinyFalcon("one", heads=3, kv_heads=1, head_dim=16, tied=True),
    TinyFalcon("groups", heads=4, kv_heads=2, head_dim=16, tied=False, width=64, new=True, norms=2),
    TinyFalcon(
        "shared", heads=4, kv_heads=2, head_dim=16, tied=True, width=64, ffn_width=256, new=True
    ),
)
