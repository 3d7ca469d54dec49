"""Tiny models of Hunyuan: norms of heads after their rotation, a larger base, experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import BASE, TinyModel
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random

_ALPHA = 50.0
_NORMS = {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}


@dataclass(frozen=True)
class TinyHunyuan(TinyModel):
    architecture = "hunyuan_v1_dense"
    gguf_architecture = "hunyuan-dense"
    gguf_names = TinyModel.gguf_names | _NORMS

    alpha: bool = False

    def config(self) -> dict[str, object]:
        if not self.alpha:
            return super().config()
        rope = {"rope_theta": BASE, "rope_type": "dynamic", "alpha": _ALPHA, "factor": 1.0}
        return super().config() | {"rope_parameters": rope}

    def metadata(self) -> dict[str, object]:
        if not self.alpha:
            return super().metadata()
        base = BASE * _ALPHA ** (self.head_dim / (self.head_dim - 2))
        return super().metadata() | {f"{self.gguf_architecture}.rope.freq_base": base}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return super().layer(random) | {
            "self_attn.query_layernorm.weight": random.near(1, self.head_dim),
            "self_attn.key_layernorm.weight": random.near(1, self.head_dim),
        }


@dataclass(frozen=True)
class TinyHunyuanMoe(TinyMixture, TinyHunyuan):
    architecture = "hunyuan_v1_moe"
    gguf_architecture = "hunyuan-moe"
    gguf_names = (
        GGUF_NAMES
        | _NORMS
        | {f"mlp.shared_mlp.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
    )
    router = "mlp.gate.wg"

    expert_width: int = 48

    def config(self) -> dict[str, object]:
        config = super().config()
        del config["moe_intermediate_size"], config["num_experts_per_tok"]
        return config | {"moe_topk": [self.used] * self.layers, "num_shared_expert": [1, 1]}

    def metadata(self) -> dict[str, object]:
        key = "hunyuan-moe.expert_shared_feed_forward_length"
        return super().metadata() | {key: self.ffn_width}

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        width, hidden = self.width, self.ffn_width
        return super().mixture(random) | {
            "mlp.shared_mlp.gate_proj.weight": random.matrix(hidden, width),
            "mlp.shared_mlp.up_proj.weight": random.matrix(hidden, width),
            "mlp.shared_mlp.down_proj.weight": random.matrix(width, hidden),
        }


MODELS = (
    TinyHunyuan("plain", heads=4, kv_heads=2, head_dim=16, tied=True),
    TinyHunyuan("alpha", heads=4, kv_heads=2, head_dim=16, tied=False, alpha=True),
    TinyHunyuanMoe("experts", heads=4, kv_heads=2, head_dim=16, tied=True),
)
