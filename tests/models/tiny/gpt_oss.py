"""Tiny models of GPT-OSS. The experts' weights are values that MXFP4 has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base import ORIGINAL_CONTEXT, SCALE
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    from models.tiny.base import Random

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


@dataclass(frozen=True)
class TinyGptOss(TinyMixture):
    architecture = "gpt_oss"
    gguf_architecture = "gpt-oss"
    gguf_names = GGUF_NAMES | {
        "post_attention_layernorm": "post_attention_norm",
        "self_attn.sinks": "attn_sinks",
    }
    router = "mlp.router"
    stacks = ("gate", "up", "down")
    count_key = "num_local_experts"

    layers: int = 3
    expert_width: int = 64
    ffn_width: int = 64
    window: int = 5

    def config(self) -> dict[str, object]:
        rope = {
            "rope_type": "yarn",
            "rope_theta": 1_000.0,
            "factor": SCALE,
            "original_max_position_embeddings": ORIGINAL_CONTEXT,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        }
        kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(self.layers)]
        return super().config() | {
            "rope_parameters": rope,
            "sliding_window": self.window,
            "layer_types": kinds,
            "attention_bias": True,
            "swiglu_limit": 7.0,
        }

    def metadata(self) -> dict[str, object]:
        keys: dict[str, object] = {
            "rope.freq_base": 1_000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": SCALE,
            "rope.scaling.original_context_length": ORIGINAL_CONTEXT,
            "attention.sliding_window": self.window,
        }
        return super().metadata() | {f"gpt-oss.{key}": value for key, value in keys.items()}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        widths = {"q": self.q_width, "k": self.kv_width, "v": self.kv_width, "o": self.width}
        biases = {f"self_attn.{n}_proj.bias": random.normal(width) for n, width in widths.items()}
        return super().layer(random) | biases | {"self_attn.sinks": 2 * random.normal(self.heads)}

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        """Some sums of gate and up are beyond the limits of the activation."""
        found = super().mixture(random)
        found["mlp.router.bias"] = random.normal(self.experts)
        for name, width in zip(
            self.stacks, (self.expert_width, self.expert_width, self.width), strict=True
        ):
            found[f"{name}.weight"] = _rounded(2 * found[f"{name}.weight"])
            found[f"{name}.bias"] = 2 * random.normal(self.experts, width)
        return found

    def state(self) -> dict[str, np.ndarray]:
        state = super().state()
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            experts = f"{prefix}.mlp.experts"
            for kind in ("weight", "bias"):
                gate, up = (state.pop(f"{prefix}.{part}.{kind}") for part in ("gate", "up"))
                pair = np.stack([gate, up], axis=2).reshape(self.experts, -1, *gate.shape[2:])
                down = state.pop(f"{prefix}.down.{kind}")
                if kind == "weight":
                    state[f"{experts}.gate_up_proj"] = pair.swapaxes(1, 2)
                    state[f"{experts}.down_proj"] = down.swapaxes(1, 2)
                else:
                    state[f"{experts}.gate_up_proj_bias"] = pair
                    state[f"{experts}.down_proj_bias"] = down
        return state

    def gguf_name(self, name: str) -> str:
        return super().gguf_name(f"{name}.weight" if name.endswith("sinks") else name)


def _rounded(values: np.ndarray) -> np.ndarray:
    """The nearest values of MXFP4, with an exponent of -2 for all blocks."""
    steps = np.abs(values[..., None] * 4 - E2M1 * np.sign(values)[..., None]).argmin(axis=-1)
    return (np.sign(values) * E2M1[steps] / 4).astype(np.float32)


MODELS = (
    TinyGptOss("sinks", heads=6, kv_heads=2, head_dim=16, tied=False),
    TinyGptOss("all experts", heads=3, kv_heads=1, head_dim=48, tied=True, experts=3),
)
