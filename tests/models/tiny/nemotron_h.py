"""Tiny models of Nemotron-H: layers of one part, dense and with experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base_mamba import TinyMamba, mamba_names
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    from models.tiny.base import Random

_EPS = 3e-5
_NAMES = {
    "model.embeddings": "token_embd",
    "model.norm_f": "output_norm",
    "norm": "attn_norm",
    "mixer.q_proj": "attn_q",
    "mixer.k_proj": "attn_k",
    "mixer.v_proj": "attn_v",
    "mixer.o_proj": "attn_output",
    "mixer.up_proj": "ffn_up",
    "mixer.down_proj": "ffn_down",
    "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up",
}
_BIAS = "mixer.gate.e_score_correction_bias"


@dataclass(frozen=True)
class TinyNemotronH(TinyMamba):
    """`pattern` has a letter for each layer, as in config.json of the first models."""

    architecture = "nemotron_h"
    gguf_names = GGUF_NAMES | mamba_names("mixer") | _NAMES
    mamba_part = "mixer"

    layers: int = 5
    pattern: str = "M-*-M"
    mamba_head_dim: int = 12

    @property
    def inner(self) -> int:
        return self.mamba_heads * self.mamba_head_dim

    def config(self) -> dict[str, object]:
        config = super().config()
        del config["rms_norm_eps"]
        return config | {
            "hybrid_override_pattern": self.pattern,
            "layer_norm_epsilon": _EPS,
            "mamba_num_heads": self.mamba_heads,
            "mamba_head_dim": self.mamba_head_dim,
            "n_groups": self.groups,
            "ssm_state_size": self.state_dim,
            "conv_kernel": self.taps,
            "time_step_min": 0.0,  # `transformers` would limit steps by it
        }

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        layer, kind = super().layer(random), self.pattern[index]
        norm = {"norm.weight": layer["input_layernorm.weight"]}
        if kind == "M":
            return norm | self.mixer(random)
        part = "self_attn." if kind == "*" else "mlp."
        kept = {name: one for name, one in layer.items() if name.startswith(part)}
        kept.pop("mlp.gate_proj.weight", None)
        return norm | {name.replace(part, "mixer."): one for name, one in kept.items()}

    def state(self) -> dict[str, np.ndarray]:
        return {
            name.replace("model.embed_tokens", "model.embeddings")
            .replace("model.norm.", "model.norm_f.")
            .replace("model.", "backbone."): values
            for name, values in super().state().items()
        }

    def metadata(self) -> dict[str, object]:
        common = super().metadata()
        prefix = str(common["general.architecture"])
        heads = [self.kv_heads * (kind == "*") for kind in self.pattern]
        widths = [self.mlp_width * (kind in "-E") for kind in self.pattern]
        return common | {
            f"{prefix}.attention.head_count_kv": np.array(heads, np.int32),
            f"{prefix}.feed_forward_length": np.array(widths, np.int32),
            f"{prefix}.attention.layer_norm_rms_epsilon": _EPS,
            f"{prefix}.attention.layer_norm_epsilon": _EPS,  # llama.cpp requires it
        }

    @property
    def mlp_width(self) -> int:
        """The width of feed-forward layers that GGUF states."""
        return self.ffn_width

    def gguf_name(self, name: str) -> str:
        return super().gguf_name(name.replace("backbone.", "model."))


@dataclass(frozen=True)
class TinyNemotronHMoe(TinyNemotronH, TinyMixture):
    """With `latent`, experts read a latent of so many elements."""

    gguf_architecture = "nemotron_h_moe"
    router = "mixer.gate"
    stacks = ("no gate", "mixer.experts.*.up_proj", "mixer.experts.*.down_proj")
    count_key = "n_routed_experts"

    pattern: str = "ME*EM"
    shared_width: int = 28
    latent: int = 0
    normalised: bool = True

    def config(self) -> dict[str, object]:
        return super().config() | {
            "moe_shared_expert_intermediate_size": self.shared_width,
            "moe_latent_size": self.latent or None,
            "norm_topk_prob": self.normalised,
            "routed_scaling_factor": 2.5,
        }

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        if self.pattern[index] != "E":
            return super().layer_at(index, random)
        return {"norm.weight": random.near(1, self.width)} | self.mixture(random)

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        width, hidden, shared, inner = self.width, self.expert_width, self.shared_width, self.latent
        read = inner or width
        up = [random.matrix(hidden, read) for _ in range(self.experts)]
        down = [random.matrix(read, hidden) for _ in range(self.experts)]
        found = {
            "mixer.gate.weight": 4 * random.matrix(self.experts, width),
            _BIAS: 0.3 * random.normal(self.experts),
            "mixer.experts.*.up_proj.weight": np.stack(up),
            "mixer.experts.*.down_proj.weight": np.stack(down),
            "mixer.shared_experts.up_proj.weight": random.matrix(shared, width),
            "mixer.shared_experts.down_proj.weight": random.matrix(width, shared),
        }
        if inner:
            found["mixer.fc1_latent_proj.weight"] = random.matrix(inner, width)
            found["mixer.fc2_latent_proj.weight"] = random.matrix(width, inner)
        return found

    def metadata(self) -> dict[str, object]:
        keys = {
            "expert_shared_feed_forward_length": self.shared_width,
            "expert_weights_norm": self.normalised,
            "expert_weights_scale": 2.5,
        }
        if self.latent:
            keys["moe_latent_size"] = self.latent
        return super().metadata() | {f"nemotron_h_moe.{key}": keys[key] for key in keys}

    @property
    def mlp_width(self) -> int:
        return self.expert_width

    def gguf_name(self, name: str) -> str:
        if name.endswith(_BIAS):
            return f"blk.{name.split('.')[2]}.exp_probs_b.bias"
        return super().gguf_name(name)


MODELS = (
    TinyNemotronH("dense", heads=3, kv_heads=1, head_dim=16, tied=False),
    TinyNemotronHMoe("experts", heads=4, kv_heads=2, head_dim=16, tied=False),
    TinyNemotronHMoe(
        "latent",
        heads=2,
        kv_heads=1,
        head_dim=48,
        tied=False,
        layers=4,
        pattern="*EME",
        latent=24,
        normalised=False,
    ),
)
