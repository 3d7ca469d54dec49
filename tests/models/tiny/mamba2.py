"""Tiny models of Mamba-2 alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base_mamba import TinyMamba, mamba_names

if TYPE_CHECKING:
    import numpy as np

    from models.tiny.base import Random

_EPS = 3e-5


@dataclass(frozen=True)
class TinyMamba2(TinyMamba):
    """Heads of the recurrence have `head_dim` elements. There are no others."""

    architecture = "mamba2"
    gguf_names = mamba_names("mixer") | {
        "model.embeddings": "token_embd",
        "model.norm_f": "output_norm",
        "lm_head": "output",
        "norm": "attn_norm",
    }
    mamba_part = "mixer"

    @property
    def inner(self) -> int:
        return self.mamba_heads * self.head_dim

    def config(self) -> dict[str, object]:
        return {
            "model_type": self.architecture,
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "tie_word_embeddings": self.tied,
            "layer_norm_epsilon": _EPS,
            "num_heads": self.mamba_heads,
            "head_dim": self.head_dim,
            "expand": self.inner // self.width,
            "n_groups": self.groups,
            "state_size": self.state_dim,
            "conv_kernel": self.taps,
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
            "mamba2.attention.layer_norm_rms_epsilon": _EPS,
            "mamba2.attention.head_count": 0,
            "mamba2.feed_forward_length": 0,
        }

    def gguf_name(self, name: str) -> str:
        return super().gguf_name(name.replace("backbone.", "model."))


MODELS = (
    TinyMamba2("untied", heads=4, kv_heads=4, head_dim=16, tied=False),
    TinyMamba2("wide", heads=4, kv_heads=4, head_dim=24, tied=True, groups=1, taps=3),
)
