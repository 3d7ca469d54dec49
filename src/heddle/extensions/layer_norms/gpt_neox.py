"""GPT-NeoX and Pythia: layer norms, both parts of a layer beside each other, each with a norm.

A quarter of each head is rotated. Black et al. 2022 (arXiv:2204.06745); Pythia: Biderman et al.
2023 (arXiv:2304.01373); `transformers`, `gpt_neox`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.decoders.joined import made_of, of_groups
from heddle.extensions.layer_norms.activations import NAMES, SUPPORTED
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import MLP
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import MadeTensor, Stored
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    attention = Attention(shape.width, sizes.attention(read), rope(read, shape.head_dim, context))
    mlp = MLP(shape.width, sizes.mlp_width, read.choice("activation", SUPPORTED, "gelu_erf"))
    layer = Layer(attention, mlp, eps, centred=True, parallel=read.flag("parallel", True))
    return Decoder(shape, (layer,) * shape.layers, eps)


def _read(config: Config) -> Config:
    """Older folders have keys of their own for rope."""
    share, base = config.get("rotary_pct"), config.get("rotary_emb_base")
    found: Config = {} if base is None else {"rope.base": base}
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if isinstance(share, float | int) and isinstance(width, int) and isinstance(heads, int):
        found["rope.dim"] = int(share * (width // max(heads, 1)))
    return found


def _make(tensors: Mapping[str, Stored], config: Config) -> dict[str, MadeTensor]:
    heads = config.get("num_attention_heads")
    if not isinstance(heads, int) or heads < 1:
        return {}  # the size is refused by name when the model is built
    cuts = {"attention.query_key_value": of_groups(heads, heads)}
    return made_of(tensors, "layers.", cuts)


FAMILY = Family(
    build=build,
    gguf={
        "gptneox": GGUFNames(
            hyperparameters={
                "norm_eps": "attention.layer_norm_epsilon",
                "parallel": "use_parallel_residual",
            },
            fused=("attention.qkv",),
        )
    },
    hf={
        "gpt_neox": FolderNames(
            hyperparameters={"norm_eps": "layer_norm_eps", "parallel": "use_parallel_residual"},
            outside={
                "embedding": "model.embed_in",
                "output_norm": "model.final_layer_norm",
                "output": "embed_out",
            },
            layer={
                "attention.output": "attention.dense",
                "mlp.up": "mlp.dense_h_to_4h",
                "mlp.down": "mlp.dense_4h_to_h",
            },
            bases=("gpt_neox.",),
            rotated_share=0.25,
            activations=NAMES,
            read=_read,
            make=_make,
        ),
    },
)
