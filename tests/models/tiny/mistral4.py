"""A tiny model of Mistral 4, text part: softmax scores, stacked experts, queries that grow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from models.tiny.base import TinyModel
from models.tiny.base_images import TinySeeing
from models.tiny.base_latent import TinyLatent


@dataclass(frozen=True)
class TinyMistral4(TinySeeing, TinyLatent):
    architecture = "mistral4"
    gguf_architecture = "mistral4"
    whole = "mistral3"
    eyes = "model."
    vision: ClassVar[dict[str, object]] = {
        "model_type": "pixtral",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 1,
    }

    biased: bool = False
    growth: float = 0.5

    @property
    def text_config(self) -> dict[str, object]:
        common = TinyLatent.config(self)
        rope = common["rope_parameters"]
        assert isinstance(rope, dict)
        growing = {"rope_parameters": rope | {"llama_4_scaling_beta": self.growth}}
        return common | growing | {"norm_topk_prob": True, "pad_token_id": None}

    def folder_name(self, name: str) -> str:
        return f"language_model.{name}"

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {
            "mistral4.attention.temperature_scale": self.growth,
            "mistral4.expert_gating_func": 1,
            "mistral4.expert_weights_norm": True,
        }

    def stored(self) -> dict[str, np.ndarray]:
        """Folders have the matrices of all experts stacked, gate and up in one tensor."""
        stacked = TinyModel.state(self)
        found = {}
        for name, values in stacked.items():
            layer, _, part = name.partition("mlp.experts.*.")
            if not part:
                found[name] = values
            elif part == "down_proj.weight":
                found[f"{layer}mlp.experts.down_proj"] = values
            elif part == "gate_proj.weight":
                up = stacked[f"{layer}mlp.experts.*.up_proj.weight"]
                found[f"{layer}mlp.experts.gate_up_proj"] = np.concatenate([values, up], axis=1)
        return found


MODELS = (
    TinyMistral4(
        "small",
        heads=4,
        kv_heads=4,
        head_dim=36,
        tied=False,
        query_rank=24,
        shared=1,
        dense=1,
        stretched=True,
    ),
)
