"""Encoders of BERT's layers with rotary positions: nomic-bert, gte, Jina v3 in GGUF.

nomic-bert: Nussbaum et al. 2024 (arXiv:2402.01613); feed-forward layers have gates. gte: Zhang et
al. 2024 (arXiv:2407.19669). Jina v3: Sturua et al. 2024 (arXiv:2409.10173); XLM-RoBERTa without its
table of positions. Its adapters for single tasks are not used. Facts about files: `transformers`
(`conversion_mapping.py`), and llama.cpp (`src/models/bert.cpp`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.encoders.encoder import build
from heddle.extensions.encoders.experts import stacks
from heddle.extensions.encoders.files import (
    ACTIVATIONS,
    GGUF_KEYS,
    GGUF_LAYER,
    GGUF_OUTSIDE,
    GGUF_VALUES,
    check_values,
    layers_with_experts,
    read_gguf,
    read_labels,
)
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.huggingface.json_files import Config

_ROTARY: dict[str, object] = {"causal": False, "positions": "rotary"}


_NOMIC: dict[str, tuple[object, ...]] = {
    "activation_function": ("swiglu", "gelu"),
    "prenorm": (False,),
    "parallel_block": (False,),
    "use_rms_norm": (False, None),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_fraction": (1.0,),
    "rotary_scaling_factor": (None,),
    "expert_choice_router": (False,),
    "num_shared_experts": (0, None),
}
_GTE: dict[str, tuple[object, ...]] = {
    "position_embedding_type": ("rope",),
    "logn_attention_scale": (False,),
    "pack_qkv": (True,),
    "layer_norm_type": ("layer_norm",),
}


def _read_nomic(config: Config) -> Config:
    """nomic-bert's feed-forward layers have gates; those of its mixture of experts have none."""
    check_values(config, _NOMIC)
    found = {**read_labels(config), "rope.base": config.get("rotary_emb_base", 1000.0)}
    if config.get("activation_function", "swiglu") == "gelu":
        found |= {"gated": False, "activation": "gelu_erf"}
    every = config.get("moe_every_n_layers")
    if every:
        found |= {"experts": config.get("num_experts"), "experts_used": config.get("moe_top_k")}
        found |= layers_with_experts(config.get("n_layer"), every)
    return found


def _read_gguf_experts(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    read_gguf(values, metadata)
    values |= layers_with_experts(values.get("layers"), metadata.get("moe_every_n_layers"))


def _read_gte(config: Config) -> Config:
    """The scaling of positions is one base and one factor for all pairs.

    So does the code beside the hub's files (`NTKScalingRotaryEmbedding` in its modeling.py).
    """
    check_values(config, _GTE)
    scaling: Any = config.get("rope_scaling")
    theta: Any = config.get("rope_theta", 10_000.0)
    width: Any = config.get("hidden_size")
    heads: Any = config.get("num_attention_heads")
    factor = scaling.get("factor") if isinstance(scaling, dict) else None
    if not isinstance(scaling, dict) or scaling.get("type") != "ntk":
        return read_labels(config)
    for one in (factor, theta, width, heads):
        if not isinstance(one, int | float) or one <= 0:
            raise ModelFileError(
                f"config.json: rope_scaling needs positive numbers, got {one!r}",
                field="rope_scaling",
            )
    if scaling.get("mixed_b") is not None:
        raise UnsupportedModelError(
            "config.json: rope_scaling.mixed_b is not supported; supported: null",
            param="rope_scaling",
        )
    turns = {
        "rope.scaling": "linear",
        "rope.base": theta * factor,
        "rope.factor": factor ** (2 * heads / width),
    }
    return {**read_labels(config), **turns}


_GATED = {**_ROTARY, "gated": True}
_EMBEDDINGS = {
    "embedding": "model.embeddings.word_embeddings",
    "segments": "model.embeddings.token_type_embeddings",
}

FAMILY = Family(
    build=build,
    gguf={
        "nomic-bert": GGUFNames(
            hyperparameters=GGUF_KEYS,
            values={**GGUF_VALUES, **_GATED, "activation": "silu"},
            outside=GGUF_OUTSIDE,
            layer=GGUF_LAYER,
            fused=("attention.qkv",),
            read=read_gguf,
        ),
        "nomic-bert-moe": GGUFNames(
            hyperparameters=GGUF_KEYS,
            values={**GGUF_VALUES, **_ROTARY},
            outside=GGUF_OUTSIDE,
            layer=GGUF_LAYER,
            fused=("attention.qkv",),
            read=_read_gguf_experts,
        ),
        "jina-bert-v3": GGUFNames(
            hyperparameters=GGUF_KEYS,
            values={**GGUF_VALUES, **_ROTARY},
            outside=GGUF_OUTSIDE,
            layer=GGUF_LAYER,
            fused=("attention.qkv",),
            read=read_gguf,
        ),
    },
    hf={
        "nomic_bert": FolderNames(
            hyperparameters={
                "width": "n_embd",
                "heads": "n_head",
                "layers": "n_layer",
                "mlp_width": "n_inner",
                "context": "n_positions",
                "norm_eps": "layer_norm_epsilon",
            },
            values={**_GATED, "activation": "silu"},
            outside={**_EMBEDDINGS, "embedding_norm": "model.emb_ln", "classifier": "classifier"},
            layer={
                "attention.qkv": "attn.Wqkv",
                "attention.output": "attn.out_proj",
                "post_attention_norm": "norm1",
                "mlp.up": "mlp.fc11",
                "mlp.gate": "mlp.fc12",
                "mlp.down": "mlp.fc2",
                "mlp.router": "mlp.router.layer",
                "post_mlp_norm": "norm2",
            },
            aliases={
                "mlp.fc1.weight": "mlp.up.weight",
                "mlp.fc1.bias": "mlp.up.bias",
                "mlp.experts.bias": "mlp.result_bias.weight",
            },
            make=stacks,
            bases=("bert.",),
            layers=("encoder.layers.",),
            read=_read_nomic,
        ),
        "new": FolderNames(
            hyperparameters={"norm_eps": "layer_norm_eps"},
            values=_GATED,
            outside={
                **_EMBEDDINGS,
                "embedding_norm": "model.embeddings.LayerNorm",
                "pooler": "model.pooler.dense",
                "classifier": "classifier",
            },
            layer={
                "attention.qkv": "attention.qkv_proj",
                "attention.output": "attention.o_proj",
                "post_attention_norm": "attn_ln",
                "mlp.up_gate": "mlp.up_gate_proj",
                "mlp.down": "mlp.down_proj",
                "post_mlp_norm": "mlp_ln",
            },
            bases=("new.",),
            layers=("encoder.layer.",),
            activations=ACTIVATIONS,
            read=_read_gte,
        ),
    },
)
