"""A tiny model of ERNIE 4.5 with experts in every second layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import TinyModel
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random

_BIAS = "mlp.moe_statics.e_score_correction_bias"


@dataclass(frozen=True)
class TinyErnieMoe(TinyMixture):
    architecture = "ernie4_5_moe"
    gguf_architecture = "ernie4_5-moe"
    gguf_names = GGUF_NAMES | {
        f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")
    }
    count_key = "moe_num_experts"

    shared: int = 2
    first: int = 1
    step: int = 2

    def config(self) -> dict[str, object]:
        config = super().config() | {
            "moe_k": self.used,
            "moe_num_shared_experts": self.shared,
            "moe_layer_start_index": self.first,
            "moe_layer_interval": self.step,
            "use_bias": False,
        }
        del config["num_experts_per_tok"]
        return config

    def metadata(self) -> dict[str, object]:
        keys = {
            "expert_shared_count": self.shared,
            "leading_dense_block_count": self.first,
            "interleave_moe_layer_step": self.step,
        }
        return super().metadata() | {f"ernie4_5-moe.{key}": value for key, value in keys.items()}

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        width, hidden = self.width, self.expert_width * self.shared
        return super().mixture(random) | {
            _BIAS: 0.1 * random.normal(1, self.experts),
            "mlp.shared_experts.gate_proj.weight": random.matrix(hidden, width),
            "mlp.shared_experts.up_proj.weight": random.matrix(hidden, width),
            "mlp.shared_experts.down_proj.weight": random.matrix(width, hidden),
        }

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        if index >= self.first and (index + 1) % self.step == 0:
            return self.layer(random)
        return TinyModel.layer(self, random)

    def gguf_name(self, name: str) -> str:
        before, bias, _ = name.partition(_BIAS)
        return f"blk.{before.split('.')[2]}.exp_probs_b.bias" if bias else super().gguf_name(name)

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        return values.reshape(-1) if name.endswith(_BIAS) else super().gguf_values(name, values)


MODELS = (TinyErnieMoe("bias", heads=4, kv_heads=2, head_dim=16, tied=True, layers=3),)
