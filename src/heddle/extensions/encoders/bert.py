"""BERT and those with its layers: RoBERTa, XLM-RoBERTa, DistilBERT, ELECTRA, Jina's BERT.

BERT: Devlin et al. 2019 (arXiv:1810.04805). RoBERTa: Liu et al. 2019 (arXiv:1907.11692); its first
positions are those of padding. DistilBERT: Sanh et al. 2019 (arXiv:1910.01108); it has no segments.
ELECTRA: Clark et al. 2020 (arXiv:2003.10555); its embeddings may be narrower than its layers.
Jina's BERT (Günther et al. 2023, arXiv:2310.19923) has ALiBi and gates; config.json calls it BERT.
Jina v3 (Sturua et al. 2024, arXiv:2409.10173) is an XLM-RoBERTa with rotary positions.
Norms follow the sums. Facts about files: `transformers`, and llama.cpp (`src/models/bert.cpp`). Its
files of RoBERTa have no rows for padding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.extensions.encoders.encoder import build
from heddle.extensions.encoders.files import (
    ACTIVATIONS,
    GGUF_KEYS,
    GGUF_LAYER,
    GGUF_OUTSIDE,
    GGUF_VALUES,
    check_values,
    read_gguf,
    read_labels,
)
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config


_SUPPORTED: dict[str, tuple[object, ...]] = {
    "position_embedding_type": ("absolute", "alibi"),
    "is_decoder": (False,),
    "feed_forward_type": ("original", "geglu", "reglu"),
}


def _read_bert(config: Config) -> Config:
    check_values(config, _SUPPORTED)
    found = dict(read_labels(config))
    if config.get("position_embedding_type") == "alibi":
        found["positions"] = "slopes"
    forward = config.get("feed_forward_type", "original")
    if forward != "original":
        found |= {"gated": True, "activation": "relu" if forward == "reglu" else "gelu_erf"}
    return found


def _read_electra(config: Config) -> Config:
    return {**_read_bert(config), "classifier_activation": "gelu_erf"}


def _read_roberta(config: Config) -> Config:
    """The positions of padding tokens come first. Jina v3's are rotary."""
    if config.get("position_embedding_type") == "rotary":
        base = config.get("rotary_emb_base", 10_000.0)
        return {**read_labels(config), "positions": "rotary", "rope.base": base}
    check_values(config, _SUPPORTED)
    padding = config.get("pad_token_id", 1)
    first = padding + 1 if isinstance(padding, int) else padding
    return {**read_labels(config), "first_position": first}


def _read_distilbert(config: Config) -> Config:
    activation = config.get("activation", "gelu")
    if activation not in ("gelu", "relu"):
        raise UnsupportedModelError(
            f"config.json: activation {activation!r} is not supported; supported: gelu, relu",
            param="activation",
        )
    own = {"activation": ACTIVATIONS[str(activation)], "classifier_activation": "relu"}
    return {**read_labels(config), **own}


_EMBEDDINGS = {
    "embedding": "model.embeddings.word_embeddings",
    "positions": "model.embeddings.position_embeddings",
    "segments": "model.embeddings.token_type_embeddings",
    "embedding_norm": "model.embeddings.LayerNorm",
}
_LAYER = {
    **{f"attention.{one[0]}": f"attention.self.{one}" for one in ("query", "key", "value")},
    "attention.output": "attention.output.dense",
    "post_attention_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "post_mlp_norm": "output.LayerNorm",
}
_ALIASES = {
    f"{stored.removeprefix('model.')}.{old}": f"{canonical}.{kind}"
    for canonical, stored in (_LAYER | _EMBEDDINGS).items()
    if canonical.endswith("norm")
    for old, kind in (("gamma", "weight"), ("beta", "bias.weight"))
}
"""Names of norms' weights in the first checkpoints, which came from TensorFlow."""
_OF_JINA = {
    "mlp.gated_layers.weight": "mlp.gate_up.weight",
    "mlp.wo.weight": "mlp.down.weight",
    "mlp.wo.bias": "mlp.down.bias",
    "mlp.layernorm.weight": "post_mlp_norm.weight",
    "mlp.layernorm.bias": "post_mlp_norm.bias.weight",
}

_OF_JINA_3 = {
    f"{stored}.{kind}": f"{canonical}.{canonical_kind}"
    for canonical, stored in {
        "embedding": "embeddings.word_embeddings",
        "embedding_norm": "emb_ln",
        "attention.qkv": "mixer.Wqkv",
        "attention.output": "mixer.out_proj",
        "post_attention_norm": "norm1",
        "mlp.up": "mlp.fc1",
        "mlp.down": "mlp.fc2",
        "post_mlp_norm": "norm2",
    }.items()
    for kind, canonical_kind in (
        ("weight", "weight"),
        ("parametrizations.weight.original", "weight"),
        ("bias", "bias.weight" if canonical.endswith("norm") else "bias"),
    )
}
"""Names of Jina v3. Its adapters for single tasks lie beside each original weight."""

_BERT = FolderNames(
    hyperparameters={"norm_eps": "layer_norm_eps"},
    values={"causal": False},
    outside={**_EMBEDDINGS, "pooler": "model.pooler.dense", "classifier": "classifier"},
    layer=_LAYER,
    aliases=_ALIASES | _OF_JINA,
    bases=("bert.",),
    layers=("encoder.layer.",),
    activations=ACTIVATIONS,
    read=_read_bert,
)
_ROBERTA = replace(
    _BERT,
    outside={**_EMBEDDINGS, "pooler": "classifier.dense", "classifier": "classifier.out_proj"},
    aliases=_ALIASES | _OF_JINA_3,
    bases=("roberta.",),
    layers=("encoder.layers.", "encoder.layer."),
    read=_read_roberta,
)
_ELECTRA = replace(
    _BERT,
    hyperparameters={**_BERT.hyperparameters, "embedding_width": "embedding_size"},
    outside={
        **_EMBEDDINGS,
        "embedding_projection": "model.embeddings_project",
        "pooler": "classifier.dense",
        "classifier": "classifier.out_proj",
    },
    bases=("electra.",),
    read=_read_electra,
)

FAMILY = Family(
    build=build,
    gguf={
        "bert": GGUFNames(
            hyperparameters=GGUF_KEYS,
            values=GGUF_VALUES,
            outside=GGUF_OUTSIDE,
            layer=GGUF_LAYER,
            fused=("attention.qkv",),
            read=read_gguf,
        ),
        "jina-bert-v2": GGUFNames(
            hyperparameters=GGUF_KEYS,
            values={**GGUF_VALUES, "positions": "slopes", "gated": True},
            outside=GGUF_OUTSIDE,
            layer={**GGUF_LAYER, "mlp.gate_up": "ffn_up", "mlp.gate": "", "mlp.up": ""},
            fused=("mlp.gate_up",),
            read=read_gguf,
        ),
    },
    hf={
        "bert": _BERT,
        "electra": _ELECTRA,
        "roberta": _ROBERTA,
        "xlm-roberta": _ROBERTA,
        "camembert": _ROBERTA,
        "distilbert": FolderNames(
            hyperparameters={
                "width": "dim",
                "heads": "n_heads",
                "layers": "n_layers",
                "mlp_width": "hidden_dim",
            },
            values={"causal": False, "norm_eps": 1e-12},
            outside={**_EMBEDDINGS, "pooler": "pre_classifier", "classifier": "classifier"},
            layer={
                **{f"attention.{one}": f"attention.{one}_lin" for one in "qkv"},
                "attention.output": "attention.out_lin",
                "post_attention_norm": "sa_layer_norm",
                "mlp.up": "ffn.lin1",
                "mlp.down": "ffn.lin2",
                "post_mlp_norm": "output_layer_norm",
            },
            bases=("distilbert.",),
            layers=("transformer.layer.",),
            read=_read_distilbert,
        ),
    },
)
