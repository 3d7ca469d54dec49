"""A tiny model of K-EXAONE: windows with positions, a dense layer first, experts with a bias."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.tiny.glm4_moe import TinyGlm4Moe


@dataclass(frozen=True)
class TinyExaoneMoe(TinyGlm4Moe):
    architecture = "exaone_moe"
    gguf_architecture = "exaone-moe"
    gguf_names = TinyGlm4Moe.gguf_names | {"post_attention_layernorm": "ffn_norm"}
    biased = False

    layers: int = 4
    shared: int = 1
    groups: int = 1
    groups_used: int = 1
    window: int = 5

    def config(self) -> dict[str, object]:
        common = super().config()
        for key in ("n_routed_experts", "n_shared_experts", "use_qk_norm", "attention_bias"):
            del common[key]
        return common | {
            "num_experts": self.experts,
            "num_shared_experts": self.shared,
            "sliding_window": self.window,
            "sliding_window_pattern": "LLLG",
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        }

    def metadata(self) -> dict[str, object]:
        keys: dict[str, object] = {
            "attention.sliding_window": self.window,
            "attention.sliding_window_pattern": np.array([True] * 3 + [False]),
            "rope.dimension_count": self.head_dim,
        }
        common = super().metadata()
        own = {key.replace("glm4moe.", "exaone-moe."): value for key, value in common.items()}
        return own | {f"exaone-moe.{key}": value for key, value in keys.items()}


MODELS = (TinyExaoneMoe("windows", heads=4, kv_heads=2, head_dim=16, tied=False),)
