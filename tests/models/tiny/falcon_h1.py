"""Tiny models of Falcon-H1: attention and Mamba-2 side by side, with factors on all parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base_mamba import TinyMamba, mamba_names

if TYPE_CHECKING:
    from models.tiny.base import Random

_NAMES = {
    "model.final_layernorm": "output_norm",
    "pre_ff_layernorm": "ffn_norm",
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
}
_RENAMED = {
    "model.norm.": "model.final_layernorm.",
    "post_attention_layernorm": "pre_ff_layernorm",
    "mlp.": "feed_forward.",
}
FACTORS: dict[str, float] = {
    "embedding_multiplier": 5.5,
    "lm_head_multiplier": 0.4,
    "key_multiplier": 0.75,
    "attention_in_multiplier": 1.25,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.5,
    "ssm_out_multiplier": 0.6,
}
SSM_FACTORS = [0.7, 1.25, 0.8, 1.5, 0.9]
MLP_FACTORS = [0.8, 0.5]


@dataclass(frozen=True)
class TinyFalconH1(TinyMamba):
    """With `normed`, the result of Mamba-2 is normed."""

    architecture = "falcon_h1"
    gguf_architecture = "falcon-h1"
    gguf_names = TinyMamba.gguf_names | mamba_names("mamba") | _NAMES

    mamba_head_dim: int = 12
    normed: bool = True
    scaled: bool = True

    @property
    def inner(self) -> int:
        return self.mamba_heads * self.mamba_head_dim

    def config(self) -> dict[str, object]:
        factors: dict[str, object] = {
            **FACTORS,
            "ssm_multipliers": SSM_FACTORS,
            "mlp_multipliers": MLP_FACTORS,
        }
        config = super().config() | (factors if self.scaled else {})
        return config | {
            "mamba_d_ssm": self.inner,
            "mamba_n_heads": self.mamba_heads,
            "mamba_d_head": self.mamba_head_dim,
            "mamba_n_groups": self.groups,
            "mamba_d_state": self.state_dim,
            "mamba_d_conv": self.taps,
            "mamba_rms_norm": self.normed,
            "mamba_norm_before_gate": False,
        }

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        mixer = self.mixer(random)
        if not self.normed:
            del mixer["mamba.norm.weight"]
        return super().layer(random) | mixer

    def state(self) -> dict[str, np.ndarray]:
        state = {}
        for name, values in super().state().items():
            new = name
            for old, renamed in _RENAMED.items():
                new = new.replace(old, renamed)
            state[new] = values
        return state

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """The weights times their factors, as llama.cpp's converter writes them."""
        factor = self._factor(name) if self.scaled else 1.0
        return super().gguf_values(name, (values * np.float32(factor)).astype(np.float32))

    def gguf_name(self, name: str) -> str:
        """llama.cpp leaves out the end of one name."""
        return super().gguf_name(name).replace("ffn_norm.weight", "ffn_norm")

    def _factor(self, name: str) -> float | np.ndarray:
        attention, mixer = FACTORS["attention_in_multiplier"], FACTORS["ssm_in_multiplier"]
        keys = self.groups * self.state_dim
        rows = np.repeat(SSM_FACTORS, [self.inner, self.inner, keys, keys, self.mamba_heads])
        factors: dict[str, float | np.ndarray] = {
            "embed_tokens.weight": FACTORS["embedding_multiplier"],
            "lm_head.weight": FACTORS["lm_head_multiplier"],
            "q_proj.weight": attention,
            "k_proj.weight": attention * FACTORS["key_multiplier"],
            "v_proj.weight": attention,
            "o_proj.weight": FACTORS["attention_out_multiplier"],
            "mamba.in_proj.weight": mixer * rows[:, None],
            "mamba.out_proj.weight": FACTORS["ssm_out_multiplier"],
            "gate_proj.weight": MLP_FACTORS[0],
            "down_proj.weight": MLP_FACTORS[1],
        }
        return next((factors[end] for end in factors if name.endswith(end)), 1.0)


MODELS = (
    TinyFalconH1("normed", heads=3, kv_heads=1, head_dim=16, tied=False),
    TinyFalconH1("gated", heads=4, kv_heads=2, head_dim=16, tied=False, normed=False),
    TinyFalconH1("plain", heads=2, kv_heads=1, head_dim=16, tied=True, normed=False, scaled=False),
)
