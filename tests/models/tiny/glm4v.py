"""Tiny models of GLM-4.1V and GLM-4.5V: GLM-4 and GLM-4.5 with three axes of positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.tiny.base import BASE
from models.tiny.base_images import TinySeeing
from models.tiny.glm4 import TinyGlm4
from models.tiny.glm4_moe import TinyGlm4Moe

_VISION: dict[str, object] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "image_size": 28,
}
_MROPE = {"rope_type": "default", "rope_theta": BASE, "partial_rotary_factor": 0.5}


@dataclass(frozen=True)
class TinyGlm4v(TinySeeing, TinyGlm4):
    architecture = "glm4v_text"
    gguf_architecture = "glm4"
    whole = "glm4v"
    vision = _VISION

    @property
    def text_config(self) -> dict[str, object]:
        return super().text_config | {
            "rope_parameters": _MROPE | {"mrope_section": self.sections(1, 1, 2)}
        }

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {
            "glm4.rope.dimension_sections": np.int32(self.sections(1, 1, 2, 0))
        }

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """Of each head's rotated half, the even rows come first: llama.cpp converts it so."""
        if not ("q_proj" in name or "k_proj" in name):
            return values
        rows = values.reshape(-1, self.head_dim, *values.shape[1:])
        turned, kept = np.split(rows, [self.head_dim // 2], axis=1)
        ordered = np.concatenate([turned[:, ::2], turned[:, 1::2], kept], axis=1)
        return ordered.reshape(values.shape)


@dataclass(frozen=True)
class TinyGlm4vMoe(TinySeeing, TinyGlm4Moe):
    architecture = "glm4v_moe_text"
    whole = "glm4v_moe"
    vision = _VISION

    @property
    def text_config(self) -> dict[str, object]:
        return super().text_config | {
            "rope_parameters": _MROPE | {"mrope_section": self.sections(1, 1, 2)}
        }

    def metadata(self) -> dict[str, object]:
        return super().metadata() | {
            "glm4moe.rope.dimension_sections": np.int32(self.sections(1, 1, 2, 0))
        }


MODELS = (
    TinyGlm4v("dense", heads=4, kv_heads=2, head_dim=16, tied=False, width=64),
    TinyGlm4vMoe(
        "experts", heads=4, kv_heads=2, head_dim=16, tied=False, width=64, norms_heads=False
    ),
)
