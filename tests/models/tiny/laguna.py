"""Tiny models of Laguna: gates of heads with windows, gates of elements without windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base import BASE, HEAD_NORMS, ORIGINAL_CONTEXT, SCALE, TinyModel
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    from models.tiny.base import Random

_LOCAL_BASE, _WEIGHT = 100.0, 2.5
_YARN = {"factor": SCALE, "original_max_position_embeddings": ORIGINAL_CONTEXT}
_PARTS = ("gate", "up", "down")


@dataclass(frozen=True)
class TinyLaguna(TinyMixture):
    """With a window, each fourth layer from the first on has none, fewer heads and yarn."""

    architecture = "laguna"
    gguf_names = (
        GGUF_NAMES
        | HEAD_NORMS
        | {"self_attn.g_proj": "attn_gate"}
        | {f"mlp.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in _PARTS}
    )

    layers: int = 5
    window: int = 5
    window_heads: int = 6

    def is_windowed(self, layer: int) -> bool:
        return self.window > 0 and layer % 4 > 0

    def heads_of(self, layer: int) -> int:
        return self.window_heads if self.is_windowed(layer) else self.heads

    def config(self) -> dict[str, object]:
        windowed = [self.is_windowed(layer) for layer in range(self.layers)]
        whole = {"rope_type": "default", "rope_theta": BASE, "partial_rotary_factor": 0.5}
        if self.window:
            whole |= {"rope_type": "yarn", **_YARN}
        local = {"rope_type": "default", "rope_theta": _LOCAL_BASE, "partial_rotary_factor": 1.0}
        return super().config() | {
            "num_attention_heads_per_layer": [self.heads_of(i) for i in range(self.layers)],
            "layer_types": ["sliding_attention" if one else "full_attention" for one in windowed],
            "mlp_layer_types": ["dense"] + ["sparse"] * (self.layers - 1),
            "sliding_window": self.window,
            "gating": True if self.window else "per-element",
            "shared_expert_intermediate_size": self.expert_width,
            "moe_routed_scaling_factor": _WEIGHT,
            "rope_parameters": {"full_attention": whole, "sliding_attention": local},
        }

    def metadata(self) -> dict[str, object]:
        heads = [self.heads_of(layer) for layer in range(self.layers)]
        keys: dict[str, object] = {
            "attention.head_count": np.array(heads, np.int32),
            "rope.dimension_count": self.head_dim // 2,
            "expert_shared_feed_forward_length": self.expert_width,
            "expert_weights_scale": _WEIGHT,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
            "leading_dense_block_count": 1,
        }
        if self.window:
            keys |= {
                "attention.sliding_window": self.window,
                "rope.freq_base_swa": _LOCAL_BASE,
                "rope.dimension_count_swa": self.head_dim,
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": SCALE,
                "rope.scaling.original_context_length": ORIGINAL_CONTEXT,
            }
        return super().metadata() | {f"laguna.{key}": value for key, value in keys.items()}

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        heads, width, size = self.heads_of(index), self.width, self.head_dim
        gates = heads if self.window else heads * size
        found = self.layer(random) | {
            "self_attn.q_proj.weight": 3 * random.matrix(heads * size, width),
            "self_attn.o_proj.weight": random.matrix(width, heads * size),
            "self_attn.g_proj.weight": 3 * random.matrix(gates, width),
            "self_attn.q_norm.weight": random.near(1, size),
            "self_attn.k_norm.weight": random.near(1, size),
        }
        if index > 0:
            return found
        dense = TinyModel.layer(self, random)
        kept = {name: values for name, values in found.items() if not name.startswith("mlp.")}
        return kept | {name: values for name, values in dense.items() if name.startswith("mlp.")}

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        width, hidden = self.width, self.expert_width
        return super().mixture(random) | {
            "mlp.experts.e_score_correction_bias": 0.3 * random.normal(self.experts),
            "mlp.shared_expert.gate_proj.weight": random.matrix(hidden, width),
            "mlp.shared_expert.up_proj.weight": random.matrix(hidden, width),
            "mlp.shared_expert.down_proj.weight": random.matrix(width, hidden),
        }

    def gguf_name(self, name: str) -> str:
        before, bias, _ = name.partition("mlp.experts.e_score_correction_bias")
        return f"blk.{before.split('.')[2]}.exp_probs_b.bias" if bias else super().gguf_name(name)


MODELS = (
    TinyLaguna("heads", heads=4, kv_heads=2, head_dim=32, tied=False),
    TinyLaguna("elements", heads=4, kv_heads=2, head_dim=16, tied=False, layers=2, window=0),
)
