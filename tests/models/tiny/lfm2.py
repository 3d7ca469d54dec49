"""Tiny models of LFM2: short convolutions and attention, dense and with experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base import EPS, TinyModel
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    from models.tiny.base import Random

_NAMES = GGUF_NAMES | {
    "model.norm": "token_embd_norm",
    "model.embedding_norm": "token_embd_norm",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
}
_RENAMED = {
    "input_layernorm": "operator_norm",
    "self_attn.o_proj": "self_attn.out_proj",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}


@dataclass(frozen=True)
class TinyLfm2(TinyModel):
    """Layers `attention` have attention. config.json states the width of feed-forward layers
    before `transformers` adjusts it."""

    architecture = "lfm2"
    gguf_names = _NAMES

    layers: int = 4
    attention: tuple[int, ...] = (1,)
    taps: int = 3
    biased: bool = False
    stated_width: int = 66
    multiple: int = 16

    def config(self) -> dict[str, object]:
        config = super().config()
        del config["rms_norm_eps"]
        kinds = ("conv", "full_attention")
        return config | {
            "norm_eps": EPS,
            "conv_L_cache": self.taps,
            "conv_bias": self.biased,
            "layer_types": [kinds[layer in self.attention] for layer in range(self.layers)],
            "intermediate_size": self.stated_width,
            "block_multiple_of": self.multiple,
        }

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        layer = {}
        for name, values in self.layer(random).items():
            part, _, kind = name.rpartition(".")
            layer[f"{_RENAMED.get(part, part)}.{kind}"] = values
        if index in self.attention:
            return layer | {
                "self_attn.q_layernorm.weight": random.near(1, self.head_dim),
                "self_attn.k_layernorm.weight": random.near(1, self.head_dim),
            }
        kept = {name: one for name, one in layer.items() if not name.startswith("self_attn")}
        width = self.width
        kept |= {
            "conv.in_proj.weight": 2 * random.matrix(3 * width, width),
            "conv.conv.weight": random.matrix(width, self.taps)[:, None],
            "conv.out_proj.weight": random.matrix(width, width),
        }
        if self.biased:
            kept |= {
                "conv.in_proj.bias": random.normal(3 * width),
                "conv.conv.bias": random.normal(width),
                "conv.out_proj.bias": random.normal(width),
            }
        return kept

    def state(self) -> dict[str, np.ndarray]:
        return {
            name.replace("model.norm", "model.embedding_norm"): values
            for name, values in super().state().items()
        }

    def metadata(self) -> dict[str, object]:
        common = super().metadata()
        prefix = str(common["general.architecture"])
        kv_heads = [self.kv_heads * (layer in self.attention) for layer in range(self.layers)]
        return common | {
            f"{prefix}.shortconv.l_cache": self.taps,
            f"{prefix}.attention.head_count_kv": np.array(kv_heads, np.int32),
        }

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if name.endswith("conv.conv.weight") else values


@dataclass(frozen=True)
class TinyLfm2Moe(TinyLfm2, TinyMixture):
    architecture = "lfm2_moe"
    gguf_architecture = "lfm2moe"
    router = "feed_forward.gate"
    stacks = (
        "feed_forward.experts.*.w1",
        "feed_forward.experts.*.w3",
        "feed_forward.experts.*.w2",
    )

    dense: int = 1

    def config(self) -> dict[str, object]:
        return super().config() | {
            "intermediate_size": self.ffn_width,
            "num_dense_layers": self.dense,
            "use_expert_bias": True,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
        }

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        mixed, dense = super().layer_at(index, random), TinyModel.layer(self, random)
        if index >= self.dense:
            return mixed
        kept = {name: one for name, one in mixed.items() if not name.startswith("feed_forward")}
        parts = {new: dense[f"{old}.weight"] for old, new in _RENAMED.items() if "mlp" in old}
        return kept | {f"{name}.weight": values for name, values in parts.items()}

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        bias = {"feed_forward.expert_bias": 0.3 * random.normal(self.experts)}
        return super().mixture(random) | bias

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {
            "lfm2moe.leading_dense_block_count": self.dense,
            "lfm2moe.expert_gating_func": 2,
        }

    def gguf_name(self, name: str) -> str:
        if name.endswith("feed_forward.expert_bias"):
            return f"blk.{name.split('.')[2]}.exp_probs_b.bias"
        return super().gguf_name(name)


MODELS = (
    TinyLfm2("tied", heads=4, kv_heads=2, head_dim=16, tied=True),
    TinyLfm2(
        "biased",
        heads=2,
        kv_heads=1,
        head_dim=16,
        tied=False,
        layers=5,
        attention=(0, 3),
        taps=4,
        biased=True,
    ),
    TinyLfm2Moe("experts", heads=4, kv_heads=2, head_dim=16, tied=True),
)
