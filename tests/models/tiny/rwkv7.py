"""Tiny models of RWKV-7. A definition in NumPy computes their logits: `transformers` has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from models.rwkv7_definition import Rwkv7
from models.tiny.base import TOKENS, Random, TinyModel

if TYPE_CHECKING:
    from pathlib import Path

    from gguf_writer import Tensor

RANKS = {"w": 8, "a": 12, "g": 20, "v": 4}
SHIFTS = "rwkvag"


@dataclass(frozen=True)
class TinyRwkv7(TinyModel):
    """Heads have `head_dim` elements, and `heads` times as many are the width."""

    architecture = "rwkv7"
    gguf_names: ClassVar[dict[str, str]] = {
        "model.embeddings": "token_embd",
        "model.layers.0.pre_norm": "token_embd_norm",
        "model.norm": "output_norm",
        "lm_head": "output",
        "attn_norm": "attn_norm",
        "ffn_norm": "attn_norm_2",
        "attn.r_proj": "time_mix_receptance",
        "attn.k_proj": "time_mix_key",
        "attn.v_proj": "time_mix_value",
        "attn.o_proj": "time_mix_output",
        "attn.g_norm": "time_mix_ln",
        "ffn.key": "channel_mix_key",
        "ffn.value": "channel_mix_value",
        **{f"attn.{one}_lora.lora.0": f"time_mix_{one}1" for one in RANKS},
        **{f"attn.{one}_lora.lora.2": f"time_mix_{one}2" for one in RANKS},
    }

    joined: bool = False
    """Whether a folder stores all shares of time mixing in one tensor, as the first folders do."""

    @property
    def logits_file(self) -> Path:
        """There is none."""
        return super().logits_file.with_name("none.json")

    def expected_logits(self) -> np.ndarray:
        return self.definition().logits(TOKENS)

    def definition(self, state: dict[str, np.ndarray] | None = None) -> Rwkv7:
        """The model in NumPy, before its first token; perhaps with another state."""
        return Rwkv7(state or self.state(), self.layers, self.head_dim)

    def config(self) -> dict[str, object]:
        return {
            "model_type": self.architecture,
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.ffn_width,
            "num_hidden_layers": self.layers,
            "head_dim": self.head_dim,
            "num_heads": self.heads,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": False,
            "hidden_act": "sqrelu",
            "norm_eps": 1e-5,
            "norm_first": True,
            "norm_bias": True,
            "attn": None,
            "value_dim": [self.width] * self.layers,
            "decay_low_rank_dim": RANKS["w"],
            "a_low_rank_dim": RANKS["a"],
            "gate_low_rank_dim": RANKS["g"],
            "v_low_rank_dim": RANKS["v"],
        }

    def state(self) -> dict[str, np.ndarray]:
        plain = super().state()
        plain["model.embeddings.weight"] = plain.pop("model.embed_tokens.weight")
        random = Random(7)
        plain |= self.layer_norm("model.layers.0.pre_norm", random)
        return plain | {"model.norm.bias": random.near(0, self.width)}

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        width, inner = self.width, self.ffn_width
        layer: dict[str, np.ndarray] = {}
        for name in ("attn_norm", "ffn_norm", "attn.g_norm"):
            layer |= self.layer_norm(name, random)
        for one in SHIFTS:
            layer[f"attn.x_{one}"] = random.near(0.5, width).reshape(1, 1, width)
        for one in "rkvo":
            layer[f"attn.{one}_proj.weight"] = random.matrix(width, width)
        for one, rank in RANKS.items():
            if one == "v" and index == 0:
                continue
            name = f"attn.{one}_lora.lora"
            layer[f"{name}.0.weight"] = 2 * random.matrix(rank, width)
            layer[f"{name}.2.weight"] = 2 * random.matrix(width, rank)
            if one != "g":
                layer[f"{name}.2.bias"] = random.near(0.3, width)
        layer["attn.k_k"] = random.near(0.8, width)
        layer["attn.k_a"] = random.near(1, width)
        layer["attn.r_k"] = random.near(0, width).reshape(self.heads, self.head_dim)
        layer["ffn.x_k"] = random.near(0.5, width)
        layer["ffn.key.weight"] = random.matrix(inner, width)
        layer["ffn.value.weight"] = random.matrix(width, inner)
        return layer

    def layer_norm(self, name: str, random: Random) -> dict[str, np.ndarray]:
        weight, bias = random.near(1, self.width), random.near(0, self.width)
        return {f"{name}.weight": weight, f"{name}.bias": bias}

    def stored(self) -> dict[str, np.ndarray]:
        return joined(self.state(), "x_x") if self.joined else self.state()

    def metadata(self) -> dict[str, object]:
        keys = {
            "block_count": self.layers,
            "context_length": self.context,
            "embedding_length": self.width,
            "feed_forward_length": self.ffn_width,
            "attention.layer_norm_epsilon": 1e-5,
            "attention.head_count": 0,
            "wkv.head_size": self.head_dim,
            "attention.decay_lora_rank": RANKS["w"],
            "attention.iclr_lora_rank": RANKS["a"],
            "attention.gate_lora_rank": RANKS["g"],
            "attention.value_residual_mix_lora_rank": RANKS["v"],
            "vocab_size": self.vocabulary,
        }
        return {"general.architecture": "rwkv7"} | {f"rwkv7.{k}": v for k, v in keys.items()}

    def gguf_name(self, name: str) -> str:
        if name.startswith("model.layers.0.pre_norm."):
            return name.replace("model.layers.0.pre_norm", "token_embd_norm")
        part = name.partition("layers.")[2].partition(".")
        plain = {
            "attn.x_x": "time_mix_lerp_fused",
            "attn.k_k": "time_mix_k_k",
            "attn.k_a": "time_mix_k_a",
            "attn.r_k": "time_mix_r_k",
            "ffn.x_k": "channel_mix_lerp_k",
        }
        if part[2] in plain:
            return f"blk.{part[0]}.{plain[part[2]]}.weight"
        if name.endswith("lora.2.bias"):
            return f"blk.{part[0]}.time_mix_{part[2][5]}0.weight"
        return super().gguf_name(name)

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        return values.ravel() if name.endswith(".r_k") else values

    def tensors(self) -> list[Tensor]:
        return self.gguf_tensors(joined(self.state(), "x_x"))


def joined(state: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """The shares of each layer's time mixing as one tensor."""
    kept = {label: values for label, values in state.items() if ".attn.x_" not in label}
    for layer in range(99):
        prefix = f"model.layers.{layer}.attn"
        if f"{prefix}.x_r" in state:
            kept[f"{prefix}.{name}"] = np.stack([state[f"{prefix}.x_{one}"] for one in SHIFTS])
    return kept


MODELS = (
    TinyRwkv7("goose", heads=2, kv_heads=2, head_dim=16, tied=False),
    TinyRwkv7(
        "joined", heads=1, kv_heads=1, head_dim=48, tied=False, width=48, layers=3, joined=True
    ),
)
