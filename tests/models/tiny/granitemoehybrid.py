"""Tiny models of Granite's hybrids: Mamba-2, attention, factors; dense, and with experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gguf_writer import Tensor
from models.tiny.base import TinyModel
from models.tiny.base_mamba import TinyMamba, mamba_names
from models.tiny.base_mixture import GGUF_NAMES
from models.tiny.granitemoe import FACTORS, TinyGraniteMoe

if TYPE_CHECKING:
    from models.tiny.base import Random

_NAMES = mamba_names("mamba") | {
    "pair": "pair",
    "down": "ffn_down",
    "pair_shexp": "pair_shexp",
    "down_shexp": "ffn_down_shexp",
}


@dataclass(frozen=True)
class TinyGraniteHybrid(TinyMamba):
    """Every `period`-th layer has attention, with positions if `rotates`."""

    architecture = "granitemoehybrid"
    gguf_architecture = "granitehybrid"
    gguf_names = TinyModel.gguf_names | _NAMES
    interleaves = True

    layers: int = 3
    period: int = 2
    rotates: bool = False

    def has_attention(self, layer: int) -> bool:
        return (layer + 1) % self.period == 0

    def config(self) -> dict[str, object]:
        kinds = ("linear_attention", "full_attention")
        return (
            super().config()
            | {key: value for key, (_, value) in FACTORS.items()}
            | {
                "layer_types": [kinds[self.has_attention(layer)] for layer in range(self.layers)],
                "num_local_experts": 0,
                "shared_intermediate_size": self.ffn_width,
                "mamba_n_heads": self.mamba_heads,
                "mamba_n_groups": self.groups,
                "mamba_d_state": self.state_dim,
                "mamba_d_conv": self.taps,
                "mamba_expand": 2,
                "position_embedding_type": "rope" if self.rotates else None,
            }
        )

    def metadata(self) -> dict[str, object]:
        keys: dict[str, object] = dict(FACTORS.values()) | {
            "rope.scaling.finetuned": self.rotates,
            "attention.head_count_kv": np.array(
                [self.kv_heads * self.has_attention(layer) for layer in range(self.layers)],
                np.int32,
            ),
        }
        return super().metadata() | {f"granitehybrid.{key}": value for key, value in keys.items()}

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        layer = self.with_pair(super().layer_at(index, random), random)
        if self.has_attention(index):
            return layer
        kept = {name: one for name, one in layer.items() if not name.startswith("self_attn")}
        return kept | self.mixer(random)

    def with_pair(self, layer: dict[str, np.ndarray], random: Random) -> dict[str, np.ndarray]:
        """The layer with the MLP that every token passes: gate and up are one tensor."""
        kept = {name: one for name, one in layer.items() if not name.startswith("mlp.")}
        return kept | {
            "shared_mlp.input_linear.weight": random.matrix(2 * self.ffn_width, self.width),
            "shared_mlp.output_linear.weight": random.matrix(self.width, self.ffn_width),
        }

    def tensors(self) -> list[Tensor]:
        """GGUF has gate and up apart."""
        found = []
        for tensor in super().tensors():
            layer, _, part = tensor.name.partition("pair")
            if not part:
                found.append(tensor)
                continue
            rows = np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
            kind = part.removesuffix(".weight")
            for which, values in zip(("gate", "up"), np.split(rows, 2), strict=True):
                found.append(Tensor.of(f"{layer}ffn_{which}{kind}.weight", values))
        return found

    def gguf_name(self, name: str) -> str:
        kind = self.shared_kind
        name = name.replace("shared_mlp.input_linear", f"pair{kind}")
        return super().gguf_name(name.replace("shared_mlp.output_linear", f"down{kind}"))

    @property
    def shared_kind(self) -> str:
        """The end of GGUF's names of the MLP that every token passes."""
        return ""


@dataclass(frozen=True)
class TinyGraniteHybridMoe(TinyGraniteHybrid, TinyGraniteMoe):
    """With experts, and a shared expert."""

    gguf_names = GGUF_NAMES | TinyGraniteHybrid.gguf_names

    expert_width: int = 20

    def config(self) -> dict[str, object]:
        return super().config() | {
            "num_local_experts": self.experts,
            "intermediate_size": self.expert_width,
        }

    def metadata(self) -> dict[str, object]:
        keys = {
            "feed_forward_length": self.expert_width,
            "expert_feed_forward_length": None,
            "expert_shared_feed_forward_length": self.ffn_width,
        }
        changed = super().metadata() | {f"granitehybrid.{key}": keys[key] for key in keys}
        return {key: value for key, value in changed.items() if value is not None}

    @property
    def shared_kind(self) -> str:
        return "_shexp"


MODELS = (
    TinyGraniteHybrid("dense", heads=6, kv_heads=3, head_dim=16, tied=True),
    TinyGraniteHybrid("rotated", heads=2, kv_heads=1, head_dim=16, tied=False, rotates=True),
    TinyGraniteHybridMoe("experts", heads=2, kv_heads=1, head_dim=16, tied=True),
)
