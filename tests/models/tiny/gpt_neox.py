"""Tiny models of GPT-NeoX and Pythia: parts beside each other or not, partial rotation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from models.tiny.base import BASE
from models.tiny.base_joined import JOINED, TinyJoined


@dataclass(frozen=True)
class TinyNeoX(TinyJoined):
    architecture = "gpt_neox"
    gguf_architecture = "gptneox"
    folder_layers = "gpt_neox.layers."
    folder_parts: ClassVar[dict[str, str]] = {
        JOINED: "attention.query_key_value",
        "self_attn.o_proj": "attention.dense",
        "mlp.up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
        "model.embed_tokens": "gpt_neox.embed_in",
        "model.norm": "gpt_neox.final_layer_norm",
        "lm_head": "embed_out",
        "input_layernorm": "input_layernorm",
        "post_attention_layernorm": "post_attention_layernorm",
    }

    parallel: bool = True
    old_keys: bool = False
    """Whether config.json has the keys for rope of the first folders."""

    def config(self) -> dict[str, object]:
        config = super().config() | {
            "hidden_act": "gelu",
            "use_parallel_residual": self.parallel,
            "rope_parameters": {
                "rope_theta": BASE,
                "rope_type": "default",
                "partial_rotary_factor": 0.25,
            },
        }
        if self.old_keys:
            del config["rope_parameters"]
            config |= {"rotary_pct": 0.25, "rotary_emb_base": BASE}
        return config

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {
            "gptneox.rope.dimension_count": self.head_dim // 4,
            "gptneox.use_parallel_residual": self.parallel,
        }


MODELS = (
    TinyNeoX("parallel", heads=3, kv_heads=3, head_dim=16, tied=False),
    TinyNeoX(
        "in sequence", heads=3, kv_heads=3, head_dim=16, tied=False, parallel=False, old_keys=True
    ),
)
