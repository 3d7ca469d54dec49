"""AFMoE, the architecture of Trinity: gates of attention, norms around each part, experts.

Layers with a window alone have positions. Each element of attention's result has a gate. Experts
are scored by sigmoids, chosen with a bias, and joined by shared experts.

Arcee AI 2025 (https://huggingface.co/arcee-ai/Trinity-Mini); `transformers`, `afmoe`; llama.cpp,
`conversion/afmoe.py` and `afmoe.cpp`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heddle.extensions.uneven.layers import decoder_of, experts_of, read_attentions
from heddle.models.blocks import NormPlacement
from heddle.models.family import Family
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import SHARED_EXPERTS, FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.decoder import Decoder
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters

_PERIOD = 4


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    eps = read.number("norm_eps")
    attentions = [
        replace(
            one,
            rope=rope(read, one.spec.head_dim, context) if one.spec.window else None,
            norm_eps=eps,
            gates=one.value_dim,
        )
        for one in read_attentions(read, context)
    ]
    scale = read.number("embedding_scale", 1.0)
    return decoder_of(read, attentions, experts_of(read), NormPlacement.AROUND, scale)


def _read_metadata(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """llama.cpp scales embeddings whatever a key says, and every fourth layer has no window."""
    width = values.get("width")
    if isinstance(width, int) and width > 0:
        values["embedding_scale"] = math.sqrt(width)
    values.setdefault("window_period", _PERIOD)


def _read_config(config: Config) -> Config:
    found: dict[str, object] = {}
    width = config.get("hidden_size")
    if config.get("mup_enabled") and isinstance(width, int) and width > 0:
        found["embedding_scale"] = math.sqrt(width)
    names = {"route_scale": "expert_weights_scale", "route_norm": "expert_weights_normalised"}
    names |= {"score_func": "expert_scoring", "global_attn_every_n_layers": "window_period"}
    found |= {name: config[key] for key, name in names.items() if config.get(key) is not None}
    return found


FAMILY = Family(
    build=build,
    gguf={"afmoe": GGUFNames(layer={"attention.gate": "attn_gate"}, read=_read_metadata)},
    hf={
        "afmoe": FolderNames(
            layer=SHARED_EXPERTS
            | {
                "attention.gate": "self_attn.gate_proj",
                "mlp.router": "mlp.router.gate",
                "post_attention_norm": "post_attention_layernorm",
                "mlp_norm": "pre_mlp_layernorm",
                "post_mlp_norm": "post_mlp_layernorm",
            },
            tensors={"mlp.selection_bias.weight": "mlp.expert_bias"},
            window_period=_PERIOD,
            read=_read_config,
        ),
    },
)
