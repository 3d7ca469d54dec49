"""Tiny models of Qwen3-VL: Qwen3 with axes of positions; folders have transposed stacks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.tiny.base import BASE
from models.tiny.base_images import TinySeeing
from models.tiny.qwen3 import TinyQwen3
from models.tiny.qwen3_moe import TinyQwen3Moe

_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
_MROPE = {
    "rope_type": "default",
    "rope_theta": BASE,
    "mrope_interleaved": True,
}


@dataclass(frozen=True)
class TinyQwen3VL(TinySeeing, TinyQwen3):
    architecture = "qwen3_vl_text"
    gguf_architecture = "qwen3vl"
    whole = "qwen3_vl"
    vision = _VISION

    @property
    def text_config(self) -> dict[str, object]:
        return super().text_config | {
            "rope_parameters": _MROPE | {"mrope_section": self.sections(4, 2, 2)}
        }

    def metadata(self) -> dict[str, object]:
        keys = {
            "rope.dimension_sections": np.int32(self.sections(4, 2, 2, 0)),
            "n_deepstack_layers": 1,
        }
        return super().metadata() | {
            f"{self.gguf_architecture}.{key}": value for key, value in keys.items()
        }


@dataclass(frozen=True)
class TinyQwen3VLMoe(TinyQwen3VL, TinyQwen3Moe):
    architecture = "qwen3_vl_moe_text"
    gguf_architecture = "qwen3vlmoe"
    whole = "qwen3_vl_moe"
    gguf_names = TinyQwen3Moe.gguf_names

    def stored(self) -> dict[str, np.ndarray]:
        return transposed(super().stored())


def transposed(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The state with the experts of each layer as two stacks (experts, columns, rows)."""
    found: dict[str, list[np.ndarray]] = {}
    kept = {}
    for name, values in state.items():
        before, is_expert, after = name.partition(".experts.")
        if not is_expert:
            kept[name] = values
            continue
        part = after.split(".")[1]
        found.setdefault(f"{before}.experts.{part}", []).append(values.T)
    stacks = {name: np.stack(matrices) for name, matrices in found.items()}
    for name in [name for name in stacks if name.endswith("gate_proj")]:
        pair = [stacks.pop(name), stacks.pop(name.replace("gate_proj", "up_proj"))]
        stacks[name.replace("gate_proj", "gate_up_proj")] = np.concatenate(pair, axis=2)
    return kept | stacks


MODELS = (
    TinyQwen3VL("dense", heads=4, kv_heads=2, head_dim=16, tied=True),
    TinyQwen3VLMoe("experts", heads=4, kv_heads=2, head_dim=16, tied=False),
)
