"""Ling 2.0 and Ring 2.0: as GLM-4.5, with queries, keys and values in one matrix.

inclusionAI 2025 (arXiv:2510.22115); llama.cpp, `conversion/bailingmoe.py` and `bailingmoe2.cpp`.
Their heads for further tokens are not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.extensions.decoders import glm4_moe
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import SHARED_EXPERTS, FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping


def _without_head(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    values["prediction_layers"] = 0


FAMILY = Family(
    build=glm4_moe.build,
    gguf={"bailingmoe2": GGUFNames(fused=("attention.qkv",), read=_without_head)},
    hf={
        "bailing_moe_v2": FolderNames(
            outside={"embedding": "model.word_embeddings"},
            layer=SHARED_EXPERTS
            | {
                "attention.qkv": "attention.query_key_value",
                "attention.output": "attention.dense",
                "attention.q_norm": "attention.query_layernorm",
                "attention.k_norm": "attention.key_layernorm",
            },
            tensors={"mlp.selection_bias.weight": "mlp.gate.expert_bias"},
            rotated_share=0.5,
            read=lambda config: {"prediction_layers": 0},
        ),
    },
)
