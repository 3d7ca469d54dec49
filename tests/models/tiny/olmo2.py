"""Tiny models of OLMo 2 and 3: norms after each part, norms of all queries and keys, windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base import BASE, HEAD_NORMS, ORIGINAL_CONTEXT, SCALE, TinyModel

if TYPE_CHECKING:
    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyOlmo2(TinyModel):
    architecture = "olmo2"
    gguf_names = (
        TinyModel.gguf_names
        | HEAD_NORMS
        | {
            "post_attention_layernorm": "post_attention_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
    )

    width: int = 48

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        weights = super().layer(random)
        del weights["input_layernorm.weight"]
        return weights | {
            "self_attn.q_norm.weight": random.near(1, self.q_width),
            "self_attn.k_norm.weight": random.near(1, self.kv_width),
            "post_feedforward_layernorm.weight": random.near(1, self.width),
        }


@dataclass(frozen=True)
class TinyOlmo3(TinyOlmo2):
    """Three of four layers see a window. Yarn stretches positions in the others."""

    architecture = "olmo3"
    gguf_architecture = "olmo2"

    layers: int = 5
    window: int = 5

    def config(self) -> dict[str, object]:
        yarn = {"rope_type": "yarn", "rope_theta": BASE, "factor": SCALE}
        yarn["original_max_position_embeddings"] = ORIGINAL_CONTEXT
        plain = {"rope_type": "default", "rope_theta": BASE}
        return super().config() | {
            "sliding_window": self.window,
            "layer_types": [
                "sliding_attention" if one else "full_attention" for one in self.windowed()
            ],
            "rope_parameters": {"full_attention": yarn, "sliding_attention": plain},
        }

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {
            "olmo2.attention.sliding_window": self.window,
            "olmo2.attention.sliding_window_pattern": np.array(self.windowed()),
            "olmo2.rope.scaling.type": "yarn",
            "olmo2.rope.scaling.factor": SCALE,
            "olmo2.rope.scaling.original_context_length": ORIGINAL_CONTEXT,
        }

    def windowed(self) -> list[bool]:
        return [(layer + 1) % 4 > 0 for layer in range(self.layers)]


MODELS = (
    TinyOlmo2("olmo 2", heads=3, kv_heads=1, head_dim=16, tied=False),
    TinyOlmo3("olmo 3", heads=3, kv_heads=3, head_dim=16, tied=False),
)
