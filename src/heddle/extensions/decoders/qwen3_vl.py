"""Qwen3-VL, dense or with experts, the text part: as Qwen3.

What its eyes see after earlier layers is added to the states of the first layers (Qwen Team 2025,
arXiv:2511.21631). The axes of its positions alternate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.extensions.decoders.transposed import transposed_experts
from heddle.models.families import qwen3
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.models.decoder import Decoder
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    model = qwen3.build(hyperparameters, context)
    layers = hyperparameters.integer("seeing_layers", 3)
    if layers > model.shape.layers:
        hyperparameters.fail("seeing_layers", f"is {layers}, of {model.shape.layers} layers")
    return replace(model, seeing_layers=layers)


def _seeing_layers(config: Config) -> dict[str, object]:
    """The number of layers that see, which is that of the layers of the eyes that they see."""
    vision = config.get("vision_config")
    listed = vision.get("deepstack_visual_indexes") if isinstance(vision, dict) else None
    return {"seeing_layers": len(listed)} if isinstance(listed, list) else {}


_ALTERNATE = {"rope.sections_alternate": True}
_GGUF = GGUFNames(hyperparameters={"seeing_layers": "n_deepstack_layers"}, values=_ALTERNATE)
_FOLDER = FolderNames(values=_ALTERNATE, with_images=("qwen3_vl",), read=_seeing_layers)
FAMILY = Family(
    build=build,
    gguf={"qwen3vl": _GGUF, "qwen3vlmoe": _GGUF},
    hf={
        "qwen3_vl_text": _FOLDER,
        "qwen3_vl_moe_text": replace(
            _FOLDER, with_images=("qwen3_vl_moe",), make=transposed_experts
        ),
    },
)
