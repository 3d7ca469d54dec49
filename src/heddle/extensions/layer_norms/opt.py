"""OPT: layer norms, learned positions from row 2 of their table on, ReLU.

Zhang et al. 2022 (arXiv:2205.01068); `transformers`, `opt`. OPT-350M, whose norms follow the parts,
is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.layer_norms import gpt2
from heddle.extensions.layer_norms.activations import activation_of, require
from heddle.models.family import Family
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config


def _read(config: Config) -> Config:
    require(config, "do_layer_norm_before", value=True)
    require(config, "_remove_final_layer_norm", value=False)
    require(config, "layer_norm_elementwise_affine", value=True)
    require(config, "word_embed_proj_dim", value=config.get("hidden_size"))
    return activation_of(config, "activation_function", "relu")


FAMILY = Family(
    build=gpt2.build,
    gguf={},
    hf={
        "opt": FolderNames(
            hyperparameters={"mlp_width": "ffn_dim"},
            values={"norm_eps": 1e-5, "first_position": 2},
            outside={
                "positions": "model.embed_positions",
                "output_norm": "model.final_layer_norm",
            },
            layer={
                "attention_norm": "self_attn_layer_norm",
                "attention.output": "self_attn.out_proj",
                "mlp_norm": "final_layer_norm",
                "mlp.up": "fc1",
                "mlp.down": "fc2",
            },
            bases=("model.decoder.", "decoder."),
            read=_read,
        ),
    },
)
