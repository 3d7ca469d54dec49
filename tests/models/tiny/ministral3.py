"""Tiny models of Ministral 3: yarn, and queries that grow with their position."""

from __future__ import annotations

from dataclasses import dataclass

from models.tiny.base import BASE, ORIGINAL_CONTEXT, SCALE, TinyModel


@dataclass(frozen=True)
class TinyMinistral3(TinyModel):
    architecture = "ministral3"
    gguf_architecture = "mistral3"
    interleaves = True

    growth: float = 0.5

    def config(self) -> dict[str, object]:
        rope = {
            "rope_type": "yarn",
            "rope_theta": BASE,
            "factor": SCALE,
            "original_max_position_embeddings": ORIGINAL_CONTEXT,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": self.growth,
        }
        return super().config() | {"rope_parameters": rope}

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {
            "mistral3.rope.scaling.type": "yarn",
            "mistral3.rope.scaling.factor": SCALE,
            "mistral3.rope.scaling.original_context_length": ORIGINAL_CONTEXT,
            "mistral3.rope.scaling.yarn_beta_fast": 32.0,
            "mistral3.rope.scaling.yarn_beta_slow": 1.0,
            "mistral3.rope.scaling.yarn_log_multiplier": 1.0,
            "mistral3.attention.temperature_scale": self.growth,
        }


MODELS = (TinyMinistral3("odd heads", heads=3, kv_heads=1, head_dim=16, tied=True),)
