"""A tiny model of Nemotron NAS: layers without attention, without a feed-forward part, or either.

`transformers` does not have it. The definition follows vLLM's `nemotron_nas.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from models.tiny.base_defined import Defined, attention, gated, normed

if TYPE_CHECKING:
    from models.tiny.base import Random
    from models.tiny.base_defined import Weights


@dataclass(frozen=True)
class TinyNemotronNas(Defined):
    architecture = "nemotron-nas"
    gguf_architecture = "deci"
    interleaves = True
    parts: ClassVar[tuple[tuple[int, float], ...]] = (
        (2, 9.0),
        (0, 14.0),
        (2, 0.0),
        (0, 0.0),
        (1, 9.0),
    )
    """Key/value heads and `ffn_mult` of each layer; 0: it lacks the part."""
    widths: ClassVar[dict[float, int]] = {0.0: 0, 9.0: 256, 14.0: 512}

    layers: int = 5
    width: int = 32

    def config(self) -> dict[str, object]:
        blocks = [
            {
                "attention": {
                    "n_heads_in_group": self.heads // kv_heads if kv_heads else None,
                    "no_op": kv_heads == 0,
                    "replace_with_linear": False,
                },
                "ffn": {"ffn_mult": multiple or None, "no_op": multiple == 0.0},
            }
            for kv_heads, multiple in self.parts
        ]
        config = super().config() | {"block_configs": blocks, "num_key_value_heads": None}
        return config | {"intermediate_size": None}

    def metadata(self) -> dict[str, object]:
        lists = {
            "attention.head_count": [self.heads if kv else 0 for kv, _ in self.parts],
            "attention.head_count_kv": [kv for kv, _ in self.parts],
            "feed_forward_length": [self.widths[multiple] for _, multiple in self.parts],
        }
        arrays = {f"deci.{key}": np.array(values, np.int32) for key, values in lists.items()}
        return super().metadata() | arrays

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        kv_heads, multiple = self.parts[index]
        width, inner = self.width, self.widths[multiple]
        q, kv = self.heads * self.head_dim, kv_heads * self.head_dim
        found: dict[str, np.ndarray] = {}
        if kv_heads:
            found |= {
                "input_layernorm.weight": random.near(1, width),
                "self_attn.q_proj.weight": 3 * random.matrix(q, width),
                "self_attn.k_proj.weight": 3 * random.matrix(kv, width),
                "self_attn.v_proj.weight": random.matrix(kv, width),
                "self_attn.o_proj.weight": random.matrix(width, q),
            }
        if inner:
            found |= {
                "post_attention_layernorm.weight": random.near(1, width),
                "mlp.gate_proj.weight": random.matrix(inner, width),
                "mlp.up_proj.weight": random.matrix(inner, width),
                "mlp.down_proj.weight": random.matrix(width, inner),
            }
        return found

    def layer_of(self, index: int, weights: Weights, x: np.ndarray) -> np.ndarray:
        kv_heads, multiple = self.parts[index]
        if kv_heads:
            h = normed(x, weights["input_layernorm.weight"])
            x = x + attention(weights, h, kv_heads, self.head_dim)
        if multiple:
            h = normed(x, weights["post_attention_layernorm.weight"])
            x = x + gated(weights, "mlp.", h)
        return x


MODELS = (TinyNemotronNas("pruned", heads=4, kv_heads=2, head_dim=16, tied=False),)
