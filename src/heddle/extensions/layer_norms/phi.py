"""Phi-1, Phi-1.5 and Phi-2: layer norms, both parts of a layer beside each other, no gates.

Li et al. 2023 (arXiv:2309.05463).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.layer_norms.stablelm import refuse_norms
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import MLP
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    attention = Attention(shape.width, sizes.attention(read), rope(read, shape.head_dim, context))
    mlp = MLP(shape.width, sizes.mlp_width, read.choice("activation", ("gelu",), "gelu"))
    layer = Layer(attention, mlp, eps, centred=True, parallel=True)
    return Decoder(shape, (layer,) * shape.layers, eps)


FAMILY = Family(
    build=build,
    gguf={
        "phi2": GGUFNames(
            hyperparameters={"norm_eps": "attention.layer_norm_epsilon"},
            fused=("attention.qkv",),
        ),
    },
    hf={
        "phi": FolderNames(
            hyperparameters={"norm_eps": "layer_norm_eps"},
            outside={"output_norm": "model.final_layernorm"},
            layer={
                "attention.output": "self_attn.dense",
                "mlp.up": "mlp.fc1",
                "mlp.down": "mlp.fc2",
            },
            rotated_share=0.5,
            read=lambda config: refuse_norms(config, "qk_layernorm"),
        ),
    },
)
