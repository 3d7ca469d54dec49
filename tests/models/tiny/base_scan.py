"""The common part of tiny models with Mamba mixers, and those of layers with nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from models.tiny.base import TinyModel
from models.tiny.base_mamba import mamba_names

if TYPE_CHECKING:
    from models.tiny.base import Random

EPS = 3e-5


def scan_names(part: str) -> dict[str, str]:
    """GGUF's names of the tensors of a mixer that `transformers` calls `part`."""
    return mamba_names(part) | {f"{part}.x_proj": "ssm_x", f"{part}.dt_proj": "ssm_dt"}


@dataclass(frozen=True)
class TinyScan(TinyModel):
    """`transformers` calls the mixer `scan_part`. Each of `channels` has `states` elements."""

    scan_part: ClassVar[str] = "mixer"

    channels: int = 64
    states: int = 6
    rank: int = 3
    taps: int = 4
    biased: bool = False

    @property
    def inner(self) -> int:
        return self.channels

    @property
    def state_dim(self) -> int:
        return self.states

    def mixer(self, random: Random) -> dict[str, np.ndarray]:
        """The weights of a mixer. Step sizes are near 0.5, so that states last some tokens."""
        part, channels = self.scan_part, self.channels
        found = {
            f"{part}.in_proj.weight": random.matrix(2 * channels, self.width),
            f"{part}.conv1d.weight": random.matrix(channels, self.taps)[:, None],
            f"{part}.conv1d.bias": random.normal(channels),
            f"{part}.x_proj.weight": 2 * random.matrix(self.rank + 2 * self.states, channels),
            f"{part}.dt_proj.weight": random.matrix(channels, self.rank),
            f"{part}.dt_proj.bias": random.near(-0.5, channels),
            f"{part}.A_log": 0.7 * random.normal(channels, self.states),
            f"{part}.D": random.near(1, channels),
            f"{part}.out_proj.weight": random.matrix(self.width, channels),
        }
        if self.biased:
            found[f"{part}.in_proj.bias"] = random.normal(2 * channels)
            found[f"{part}.out_proj.bias"] = random.normal(self.width)
        return found

    def metadata(self) -> dict[str, object]:
        common = super().metadata()
        prefix = f"{common['general.architecture']}.ssm"
        return common | {
            f"{prefix}.conv_kernel": self.taps,
            f"{prefix}.state_size": self.states,
            f"{prefix}.inner_size": self.channels,
            f"{prefix}.time_step_rank": self.rank,
        }

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """Rates of decay in place of logarithms."""
        if name.endswith("A_log"):
            return -np.exp(values)
        return values[:, 0] if name.endswith("conv1d.weight") else super().gguf_values(name, values)

    def gguf_name(self, name: str) -> str:
        for own, stored in {"A_log": "ssm_a", "D": "ssm_d"}.items():
            if name.endswith(f"{self.scan_part}.{own}"):
                return f"blk.{name.split('.')[2]}.{stored}"
        return super().gguf_name(name)


@dataclass(frozen=True)
class TinyScanAlone(TinyScan):
    """Layers have no other part."""

    gguf_architecture = "mamba"
    gguf_names = scan_names("mixer") | {
        "model.embeddings": "token_embd",
        "model.norm_f": "output_norm",
        "lm_head": "output",
        "norm": "attn_norm",
    }

    def config(self) -> dict[str, object]:
        return {
            "model_type": self.architecture,
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.channels,
            "num_hidden_layers": self.layers,
            "tie_word_embeddings": self.tied,
            "layer_norm_epsilon": EPS,
            "state_size": self.states,
            "conv_kernel": self.taps,
            "time_step_rank": self.rank,
            "use_bias": self.biased,
        }

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return {"norm.weight": random.near(1, self.width)} | self.mixer(random)

    def state(self) -> dict[str, np.ndarray]:
        return {
            name.replace("model.embed_tokens", "model.embeddings")
            .replace("model.norm.", "model.norm_f.")
            .replace("model.", "backbone."): values
            for name, values in super().state().items()
        }

    def metadata(self) -> dict[str, object]:
        common = super().metadata()
        attention = [key for key in common if ".attention." in key or ".rope." in key]
        kept = {key: value for key, value in common.items() if key not in attention}
        return kept | {
            "mamba.attention.layer_norm_rms_epsilon": EPS,
            "mamba.attention.head_count": 0,
            "mamba.feed_forward_length": 0,
            "mamba.ssm.dt_b_c_rms": False,
        }

    def gguf_name(self, name: str) -> str:
        return super().gguf_name(name.replace("backbone.", "model."))
