"""GLM-4: norms around each part. Rope turns neighbours, in a half of each head.

GLM Team 2024 (arXiv:2406.12793); the form of GLM-4-0414. The text part of GLM-4.1V is the same
(GLM-V Team 2025, arXiv:2507.01006): a token of text has the same position on all axes of its rope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer, NormPlacement
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.models.positions import rope
from heddle.weights.gguf.names import INTERLEAVED, GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    spec = sizes.attention(read)
    attention = Attention(shape.width, spec, rope(read, shape.head_dim, context))
    mlp = GatedMLP(shape.width, sizes.mlp_width, read.choice("activation", ("silu",), "silu"))
    layer = Layer(attention, mlp, eps, NormPlacement.AROUND)
    return Decoder(shape, (layer,) * shape.layers, eps)


def _read_sections(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """Files of models with axes of positions pair halves: llama.cpp converts them so."""
    if "rope.dimension_sections" in metadata:
        values["rope.interleaved"] = False


_NORMS = {
    "post_attention_norm": "post_self_attn_layernorm",
    "post_mlp_norm": "post_mlp_layernorm",
}
FAMILY = Family(
    build=build,
    gguf={
        "glm4": GGUFNames(
            layer={"mlp.gate_up": "ffn_up"},
            fused=("mlp.gate_up",),
            values=INTERLEAVED,
            read=_read_sections,
        )
    },
    hf={
        "glm4": FolderNames(layer=_NORMS, values=INTERLEAVED, rotated_share=0.5),
        "glm4v_text": FolderNames(
            layer=_NORMS, values=INTERLEAVED, with_images=("glm4v", "glm46v")
        ),
    },
)
