"""Tiny models of Qwen3-Next: gated delta nets, gated attention, experts, a gated shared expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gguf_writer import Tensor
from models.tiny.base_delta_net import NAMES, TinyDeltaNet
from models.tiny.qwen2_moe import TinyQwen2Moe

if TYPE_CHECKING:
    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyQwen3Next(TinyDeltaNet, TinyQwen2Moe):
    """The matrices of a recurrence are by key head, in GGUF files too if `legacy`."""

    architecture = "qwen3_next"
    gguf_architecture = "qwen3next"
    gguf_names = TinyQwen2Moe.gguf_names | NAMES

    legacy: bool = False

    def config(self) -> dict[str, object]:
        return super().config() | {"norm_topk_prob": True}

    def metadata(self) -> dict[str, object]:
        shared = self.shared_width
        return super().metadata() | {"qwen3next.expert_shared_feed_forward_length": shared}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return {
            name: values
            for name, values in super().layer(random).items()
            if not name.endswith("bias")
        }

    def projections(self, random: Random) -> dict[str, np.ndarray]:
        own = self.value_heads // self.key_heads
        rows = self.key_heads * (2 * self.key_dim + 2 * own * self.value_dim)
        return {
            "linear_attn.in_proj_qkvz.weight": random.matrix(rows, self.width),
            "linear_attn.in_proj_ba.weight": random.matrix(2 * self.value_heads, self.width),
        }

    def tensors(self) -> list[Tensor]:
        """Newer files have queries, keys and values apart from gates, not by key head."""
        found = super().tensors()
        if self.legacy:
            return found
        apart = []
        for tensor in found:
            if not tensor.name.endswith("ssm_in.weight"):
                apart.append(tensor)
                continue
            rows = np.frombuffer(tensor.data, np.float32).reshape(self.key_heads, -1, self.width)
            own = self.value_heads // self.key_heads * self.value_dim
            ends = np.cumsum([self.key_dim, self.key_dim, own])
            parts = [one.reshape(-1, self.width) for one in np.split(rows, ends, axis=1)]
            layer = tensor.name.removesuffix("ssm_in.weight")
            apart.append(Tensor.of(f"{layer}attn_qkv.weight", np.concatenate(parts[:3])))
            apart.append(Tensor.of(f"{layer}attn_gate.weight", parts[3]))
        return apart


MODELS = (
    TinyQwen3Next("apart", heads=4, kv_heads=2, head_dim=16, tied=True),
    TinyQwen3Next("legacy", heads=2, kv_heads=1, head_dim=32, tied=False, legacy=True),
)
