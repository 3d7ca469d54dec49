"""A tiny model of MiniMax M3: a dense layer, shared experts, an indexer that chooses all blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from models.tiny.base import BASE, CONTEXT, TinyModel
from models.tiny.base_images import TinySeeing
from models.tiny.minimax_m2 import TinyMiniMaxM2

if TYPE_CHECKING:
    from models.tiny.base import Random

_ROPE = {"rope_type": "default", "rope_theta": BASE, "partial_rotary_factor": 0.5}
_BLOCK, _HEADS, _SIZE = 16, 2, 16


@dataclass(frozen=True)
class TinyMiniMaxM3(TinySeeing, TinyMiniMaxM2):
    architecture = "minimax_m3_vl_text"
    gguf_architecture = "minimax-m3"
    gguf_names = TinyMiniMaxM2.gguf_names | {
        f"block_sparse_moe.shared_experts.{part}_proj": f"ffn_{part}_shexp"
        for part in ("gate", "up", "down")
    }
    whole = "minimax_m3_vl"
    eyes = "model."
    vision: ClassVar[dict[str, object]] = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "image_size": 28,
    }
    norm_mean = 0.0

    layers: int = 3
    expert_width: int = 20
    top_blocks: int = CONTEXT // _BLOCK

    @property
    def text_config(self) -> dict[str, object]:
        dense = [layer == 0 for layer in range(self.layers)]
        return super().text_config | {
            "intermediate_size": self.expert_width,
            "dense_intermediate_size": self.ffn_width,
            "shared_intermediate_size": self.expert_width,
            "routed_scaling_factor": 2.0,
            "rope_parameters": _ROPE,
            "mlp_layer_types": ["dense" if one else "sparse" for one in dense],
            "layer_types": ["full_attention" if one else "minimax_m3_sparse" for one in dense],
            "index_n_heads": _HEADS,
            "index_head_dim": _SIZE,
            "index_block_size": _BLOCK,
            "index_topk_blocks": self.top_blocks,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
        }

    def metadata(self) -> dict[str, object]:
        keys = {
            "expert_gating_func": 2,
            "expert_shared_count": 1,
            "expert_weights_scale": 2.0,
            "expert_weights_norm": True,
            "leading_dense_block_count": 1,
            "rope.dimension_count": self.head_dim // 2,
            "attention.indexer.top_k": self.top_blocks,
            "attention.indexer.block_size": _BLOCK,
        }
        return super().metadata() | {f"minimax-m3.{key}": value for key, value in keys.items()}

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        layer = self.layer(random) | {
            "self_attn.q_norm.weight": random.near(0, self.head_dim),
            "self_attn.k_norm.weight": random.near(0, self.head_dim),
        }
        if index == 0:
            dense = TinyModel.layer(self, random)
            kept = {name: one for name, one in layer.items() if "block_sparse_moe" not in name}
            return kept | {name: one for name, one in dense.items() if name.startswith("mlp.")}
        width, hidden = self.width, self.expert_width
        shared = "block_sparse_moe.shared_experts"
        return layer | {
            f"{shared}.gate_proj.weight": random.matrix(hidden, width),
            f"{shared}.up_proj.weight": random.matrix(hidden, width),
            f"{shared}.down_proj.weight": random.matrix(width, hidden),
            "self_attn.index_q_proj.weight": random.matrix(_HEADS * _SIZE, width),
            "self_attn.index_k_proj.weight": random.matrix(_SIZE, width),
            "self_attn.index_q_norm.weight": random.near(0, _SIZE),
            "self_attn.index_k_norm.weight": random.near(0, _SIZE),
        }

    def folder_name(self, name: str) -> str:
        return f"language_model.{name}"

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        return values + np.float32(1) if name.endswith("norm.weight") else values

    def gguf_name(self, name: str) -> str:
        before, index, part = name.partition("self_attn.index_")
        return f"blk.{before.split('.')[2]}.indexer.{part}" if index else super().gguf_name(name)


MODELS = (
    TinyMiniMaxM3(
        "blocks", heads=4, kv_heads=2, head_dim=32, tied=False, width=64, experts=7, used=3
    ),
)
