"""Tiny models of Phi-3 and Phi-4-mini: q, k and v in one tensor, gate and up in another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gguf_writer import Tensor
from models.tiny.base import BASE, CONTEXT, ORIGINAL_CONTEXT, TinyModel

if TYPE_CHECKING:
    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyPhi3(TinyModel):
    """All layers see a window, or rope turns three quarters of a head and is scaled by longrope."""

    architecture = "phi3"
    gguf_names = TinyModel.gguf_names | {
        "self_attn.qkv_proj": "attn_qkv",
        "mlp.gate_up_proj": "ffn_up",
    }

    width: int = 48
    window: int = 0
    longrope: bool = False

    def config(self) -> dict[str, object]:
        rope: dict[str, object] = {"rope_type": "default", "rope_theta": BASE}
        if self.longrope:
            factors = {f"{kind}_factor": of for kind, of in self.divisors().items()}
            rope |= {"rope_type": "longrope", "partial_rotary_factor": 0.75} | factors
        return super().config() | {
            "sliding_window": self.window or None,
            "original_max_position_embeddings": ORIGINAL_CONTEXT if self.longrope else CONTEXT,
            "rope_parameters": rope,
        }

    def metadata(self) -> dict[str, object]:
        keys: dict[str, object] = {"phi3.attention.sliding_window": self.window}
        if self.longrope:
            factor = math.log(CONTEXT / ORIGINAL_CONTEXT) / math.log(ORIGINAL_CONTEXT)
            keys["phi3.rope.dimension_count"] = self.head_dim * 3 // 4
            keys["phi3.rope.scaling.original_context_length"] = ORIGINAL_CONTEXT
            keys["phi3.rope.scaling.attn_factor"] = math.sqrt(1 + factor)
        return super().metadata() | keys

    def divisors(self) -> dict[str, list[float]]:
        """Divisors of each pair's frequency, for short and for long sequences."""
        pairs = range(self.head_dim * 3 // 8)
        return {"short": [1 + pair / 16 for pair in pairs], "long": [1.5 + pair for pair in pairs]}

    def tensors(self) -> list[Tensor]:
        divisors = self.divisors() if self.longrope else {}
        more = [Tensor.of(f"rope_factors_{k}.weight", np.float32(v)) for k, v in divisors.items()]
        return [*super().tensors(), *more]

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        weights = super().layer(random)
        parts = [weights.pop(f"self_attn.{part}_proj.weight") for part in "qkv"]
        del weights["mlp.gate_proj.weight"], weights["mlp.up_proj.weight"]
        return weights | {
            "self_attn.qkv_proj.weight": np.concatenate(parts),
            "mlp.gate_up_proj.weight": random.matrix(2 * self.ffn_width, self.width),
        }


MODELS = (
    TinyPhi3("long", heads=3, kv_heads=1, head_dim=16, tied=True, longrope=True),
    TinyPhi3("windowed", heads=3, kv_heads=3, head_dim=16, tied=False, window=5),
)
