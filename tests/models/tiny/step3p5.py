"""Tiny models of Step 3.5, as the text part of Step 3.7: gates of heads, limited activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gguf_writer import Tensor
from models.tiny.base import BASE, HEAD_NORMS, SCALE, TinyModel
from models.tiny.base_images import TinySeeing
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture
from models.tiny.llama import LLAMA3_DIVISORS

if TYPE_CHECKING:
    from models.tiny.base import Random

_LOCAL_BASE, _WEIGHT = 100.0, 3.0
_PARTS = ("gate", "up", "down")
_SCALING = {
    "rope_type": "llama3",
    "factor": SCALE,
    "original_max_position_embeddings": 64,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
"""With 16 rotated elements, `LLAMA3_DIVISORS` are its divisors."""


@dataclass(frozen=True)
class TinyStep(TinySeeing, TinyMixture):
    """Weights of feed-forward parts are enlarged, so that the limits take effect."""

    architecture = "step3p5"
    gguf_architecture = "step35"
    gguf_names = (
        GGUF_NAMES
        | HEAD_NORMS
        | {"self_attn.g_proj": "attn_gate"}
        | {f"share_expert.{part}_proj": f"ffn_{part}_shexp" for part in _PARTS}
    )
    whole = "step3p7"
    eyes = "model."
    vision: ClassVar[dict[str, object]] = {
        "width": 32,
        "layers": 1,
        "heads": 2,
        "image_size": 28,
        "mlp_ratio": 1.0,
    }
    router = "moe.gate"
    stacks = ("moe.gate_proj", "moe.up_proj", "moe.down_proj")
    norm_mean = 0.0

    layers: int = 4
    window: int = 5
    window_heads: int = 6

    def is_windowed(self, layer: int) -> bool:
        return layer in (1, 2)

    def heads_of(self, layer: int) -> int:
        return self.window_heads if self.is_windowed(layer) else self.heads

    @property
    def text_config(self) -> dict[str, object]:
        """The keys of the published folder. Their lists have entries of prediction heads, too."""
        layers, heads = range(self.layers), 1
        windowed = [self.is_windowed(layer) for layer in layers] + [True] * heads
        common = super().text_config
        for key in (
            "rope_parameters",
            "num_key_value_heads",
            self.count_key,
            "num_experts_per_tok",
        ):
            del common[key]
        return common | {
            "pad_token_id": 0,
            "num_attention_groups": self.kv_heads,
            "attention_other_setting": {
                "attention_type": "sliding_attention",
                "num_attention_heads": self.window_heads,
                "num_attention_groups": self.kv_heads,
                "head_dim": self.head_dim,
            },
            "num_nextn_predict_layers": heads,
            "layer_types": ["sliding_attention" if one else "full_attention" for one in windowed],
            "rope_theta": [_LOCAL_BASE if one else BASE for one in windowed],
            "partial_rotary_factors": [1.0 if one else 0.5 for one in windowed],
            "rope_scaling": _SCALING,
            "yarn_only_types": ["full_attention"],
            "use_head_wise_attn_gate": True,
            "sliding_window": self.window,
            "moe_num_experts": self.experts,
            "moe_top_k": self.used,
            "share_expert_dim": self.expert_width,
            "moe_layers_enum": ",".join(str(layer) for layer in layers if layer),
            "moe_router_activation": "sigmoid",
            "moe_router_scaling_factor": _WEIGHT,
            "norm_expert_weight": True,
            "swiglu_limits": [0.0, 0.0, 7, None] + [0.0] * heads,
            "swiglu_limits_shared": [7, 0.0, 16, 0.0] + [0.0] * heads,
        }

    def metadata(self) -> dict[str, object]:
        layers, heads = range(self.layers), 1
        windowed = [self.is_windowed(layer) for layer in layers] + [True] * heads
        of_layers = [self.window_heads if one else self.heads for one in windowed]
        keys: dict[str, object] = {
            "block_count": self.layers + heads,
            "nextn_predict_layers": heads,
            "attention.head_count": np.array(of_layers, np.int32),
            "attention.head_count_kv": np.array([self.kv_heads] * len(windowed), np.int32),
            "attention.sliding_window": self.window,
            "attention.sliding_window_pattern": np.array(windowed),
            "rope.freq_base_swa": _LOCAL_BASE,
            "expert_shared_feed_forward_length": self.expert_width,
            "expert_weights_scale": _WEIGHT,
            "expert_weights_norm": True,
            "leading_dense_block_count": 1,
            "swiglu_clamp_exp": np.array([0, 0, 7, 0, 0], np.float32),
            "swiglu_clamp_shexp": np.array([7, 0, 16, 0, 0], np.float32),
        }
        return super().metadata() | {f"step35.{key}": value for key, value in keys.items()}

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        heads, width, size = self.heads_of(index), self.width, self.head_dim
        found = self.layer(random) | {
            "self_attn.q_proj.weight": 3 * random.matrix(heads * size, width),
            "self_attn.o_proj.weight": random.matrix(width, heads * size),
            "self_attn.g_proj.weight": 3 * random.matrix(heads, width),
            "self_attn.q_norm.weight": random.near(0, size),
            "self_attn.k_norm.weight": random.near(0, size),
        }
        if index > 0:
            return found
        dense = TinyModel.layer(self, random)
        parts = ("moe.", "share_expert.")
        kept = {name: values for name, values in found.items() if not name.startswith(parts)}
        return kept | {
            name: 5 * values for name, values in dense.items() if name.startswith("mlp.")
        }

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        width, hidden = self.width, self.expert_width
        found = super().mixture(random)
        for part in self.stacks:
            found[f"{part}.weight"] = 3 * found[f"{part}.weight"]
        return found | {
            "moe.router_bias": 0.3 * random.normal(self.experts),
            "share_expert.gate_proj.weight": 6 * random.matrix(hidden, width),
            "share_expert.up_proj.weight": 6 * random.matrix(hidden, width),
            "share_expert.down_proj.weight": random.matrix(width, hidden),
        }

    def folder_name(self, name: str) -> str:
        return name

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        return values + np.float32(1) if name.endswith("norm.weight") else values

    def tensors(self) -> list[Tensor]:
        """llama.cpp's converter writes the divisors of whole heads, of which half are 1."""
        ones = [1.0] * (self.head_dim // 2 - len(LLAMA3_DIVISORS))
        divisors = np.float32([*LLAMA3_DIVISORS, *ones])
        return [*super().tensors(), Tensor.of("rope_freqs.weight", divisors)]

    def gguf_name(self, name: str) -> str:
        before, bias, _ = name.partition("moe.router_bias")
        return f"blk.{before.split('.')[2]}.exp_probs_b.bias" if bias else super().gguf_name(name)


MODELS = (TinyStep("limits", heads=4, kv_heads=2, head_dim=32, tied=False, width=64),)
