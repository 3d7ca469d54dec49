"""A tiny model of Apertus: norms of heads, and no gates. The activation has numbers by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tiny.base import HEAD_NORMS, TinyModel

if TYPE_CHECKING:
    from gguf_writer import Tensor
    from models.tiny.base import Random

NUMBERS = ("alpha_p", "alpha_n", "beta", "eps")


@dataclass(frozen=True)
class TinyApertus(TinyModel):
    architecture = "apertus"
    gguf_names = (
        TinyModel.gguf_names
        | HEAD_NORMS
        | {"attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"}
    )

    def config(self) -> dict[str, object]:
        return super().config() | {"hidden_act": "xielu"}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        weights = super().layer(random)
        del weights["mlp.gate_proj.weight"]
        weights["attention_layernorm.weight"] = weights.pop("input_layernorm.weight")
        weights["feedforward_layernorm.weight"] = weights.pop("post_attention_layernorm.weight")
        bits = np.array(-1e-6, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        eps = np.asarray(bits).view(np.float32)  # as bfloat16 has it
        return weights | {
            "self_attn.q_norm.weight": random.near(1, self.head_dim),
            "self_attn.k_norm.weight": random.near(1, self.head_dim),
            "mlp.act_fn.alpha_p": random.near(-1, 1),
            "mlp.act_fn.alpha_n": random.near(0.5, 1),
            "mlp.act_fn.beta": random.near(0.5, 1).reshape(()),
            "mlp.act_fn.eps": eps.reshape(()),
        }

    def metadata(self) -> dict[str, object]:
        state = self.state()
        lists = {
            f"xielu.{name}": np.array(
                [state[f"model.layers.{i}.mlp.act_fn.{name}"].item() for i in range(self.layers)],
                np.float32,
            )
            for name in NUMBERS
        }
        return super().metadata() | lists

    def tensors(self) -> list[Tensor]:
        state = {name: values for name, values in self.state().items() if "act_fn" not in name}
        return self.gguf_tensors(state)


MODELS = (TinyApertus("xielu", heads=4, kv_heads=2, head_dim=16, tied=False),)
