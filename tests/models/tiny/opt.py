"""A tiny model of OPT: learned positions from row 2 on, ReLU. GGUF has no such architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from models.tiny.base import Random
from models.tiny.base_layer_norm import QKV, TinyLayerNorm, add_biases

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TinyOPT(TinyLayerNorm):
    architecture = "opt"
    folder_parts: ClassVar[dict[str, str]] = {
        "model.embed_tokens": "model.decoder.embed_tokens",
        "model.norm": "model.decoder.final_layer_norm",
        "self_attn.o_proj": "self_attn.out_proj",
        "input_layernorm": "self_attn_layer_norm",
        "post_attention_layernorm": "final_layer_norm",
        "mlp.up_proj": "fc1",
        "mlp.down_proj": "fc2",
        "model.layers": "model.decoder.layers",
    }

    def config(self) -> dict[str, object]:
        return {
            "model_type": "opt",
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "word_embed_proj_dim": self.width,
            "ffn_dim": self.ffn_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": self.tied,
        }

    def further(self) -> dict[str, np.ndarray]:
        table = 3 * Random(23).matrix(self.context + 2, self.width)
        return super().further() | {"model.decoder.embed_positions.weight": table}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        weights = super().layer(random)
        del weights["mlp.gate_proj.weight"]
        parts = ("self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
        add_biases(weights, random, *QKV, *parts)
        return weights

    def folder_name(self, name: str) -> str:
        for ours, theirs in self.folder_parts.items():
            name = name.replace(f"{ours}.", f"{theirs}.")
        return name


FOLDERS = (TinyOPT("relu", heads=3, kv_heads=3, head_dim=16, tied=True),)
