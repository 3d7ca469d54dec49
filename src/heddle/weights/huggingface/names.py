"""Names of hyperparameters and tensors in Hugging Face folders, by canonical name.

`transformers` writes these names. Here are those that most architectures share. A family brings
what is particular to its folders, as `FolderNames`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.doors import family_with
from heddle.weights.tensor_names import TensorNames

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import MadeTensor, Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderNames:
    """The names and values that are particular to folders of one architecture.

    Attributes:
        hyperparameters: keys of config.json, by canonical name.
        values: hyperparameters that config.json need not name.
        outside: parts outside of layers, by canonical part.
        layer: parts of a layer, by canonical part.
        layer_without_experts: the same in models without experts; None: as in the others.
        tensors: whole names of tensors of a layer that do not end as their canonical names do.
        aliases: other names of tensors, in full, with their canonical names: those of a layer after
            its prefix, others after that of all tensors.
        bases: prefixes that all tensors may have, beside those of other architectures.
        layers: prefixes of the layers after that of all tensors.
        head_layers: prefix of the layers of a prediction head that lies outside of the model's
            layers; empty: it lies behind them, or there is none.
        head: parts of such a head, by canonical part.
        norms_without_one: whether norm weights are stored without their offset of 1.
        rotated_share: share of a head that is rotated if config.json does not say.
        window_period: number of layers after which one layer has no window, if config.json does
            not list the layers.
        scalings: canonical names of rope scalings that have another meaning here.
        activations: canonical names of activations that have another meaning here.
        with_images: values of `model_type` of models that see images, too. Their `text_config` has
            this architecture.
        read: hyperparameters that only this architecture's config.json has, by canonical name; they
            replace those that all have. Raises ModelFileError or UnsupportedModelError.
        make: the tensors that are computed from stored ones without a change of a value, by
            canonical name, from their sizes and config.json; None: there are none. It reads experts
            of types that `quant_method` mxfp4 names.
    """

    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, object] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    layer: Mapping[str, str] = field(default_factory=dict)
    layer_without_experts: Mapping[str, str] | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    bases: tuple[str, ...] = ()
    layers: tuple[str, ...] = ("layers.",)
    head_layers: str = ""
    head: Mapping[str, str] = field(default_factory=dict)
    norms_without_one: bool = False
    rotated_share: float | None = None
    window_period: int | None = None
    scalings: Mapping[str, str] = field(default_factory=dict)
    activations: Mapping[str, str] = field(default_factory=dict)
    with_images: tuple[str, ...] = ()
    read: Callable[[Config], Mapping[str, object]] = lambda config: {}
    make: Callable[[Mapping[str, Stored], Config], Mapping[str, MadeTensor]] | None = None


def names_of(architecture: str) -> FolderNames:
    """The names for folders of an architecture, a value of `model_type`.

    They are empty if no family has the architecture.
    """
    family = family_with("hf", architecture)
    return FolderNames() if family is None else family.hf[architecture]


HYPERPARAMETERS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "mlp_width": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "key_dim": "head_dim",
    "shared_layers": "num_kv_shared_layers",
    "context": "max_position_embeddings",
    "vocabulary": "vocab_size",
    "norm_eps": "rms_norm_eps",
    "window": "sliding_window",
    "window_period": "sliding_window_pattern",
    "attention.score_cap": "attn_logit_softcapping",
    "logit_cap": "final_logit_softcapping",
    "attention.scale_dim": "query_pre_attn_scalar",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_divisor": "logits_scaling",
    "prediction_layers": "num_nextn_predict_layers",
    "segments": "type_vocab_size",
    "separator": "sep_token_id",
    "problem_type": "problem_type",
}
"""Keys of config.json, by canonical name. The keys of rope are in `config.py`."""

_OUTSIDE_LAYERS = {
    "embedding": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_LAYER = {
    "attention_norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.qkv": "self_attn.qkv_proj",
    "attention.output": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.gate_up": "mlp.gate_up_proj",
    "mlp.down": "mlp.down_proj",
    "prediction.projection": "eh_proj",
    "prediction.embedding_norm": "enorm",
    "prediction.state_norm": "hnorm",
    "prediction.embedding": "embed_tokens",
    "prediction.output_norm": "shared_head.norm",
    "prediction.output": "shared_head.head",
    "mlp.router": "mlp.gate",
    "mlp.shared_gate": "mlp.shared_expert_gate",
    **{f"mlp.shared.{part}": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
    **{f"mlp.experts.{part}": f"mlp.experts.*.{part}_proj" for part in ("gate", "up", "down")},
}
"""Parts of a layer. `*` stands for the number of an expert; see `experts.py`."""
_IRREGULAR = {"mlp.selection_bias.weight": "mlp.gate.e_score_correction_bias"}
"""Tensors of a layer, by whole names: they do not end as their canonical names do."""

SHARED_EXPERTS = {
    f"mlp.shared.{part}": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")
}
"""Parts of shared experts, in architectures that may have several."""
NORMS_AROUND = {
    "post_attention_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
"""Norms before and after each part."""
STACKED_GATE_UP = {
    "mlp.experts.gate": "mlp.experts.gate_up_proj",
    "mlp.experts.up": "mlp.experts.gate_up_proj",
}
"""Gate and up of all experts as one tensor; see `experts.py`."""

_BASE = "model."
_BASES = {
    _BASE: "",
    "backbone.": "",  # Mamba-2's name
    "": "",  # somebody saved the model without its output matrix
    "language_model.model.": "language_model.",  # models that see images, too
    "model.language_model.": "",
    "model.text_model.": "",
}
"""Prefixes of all tensors but the output matrix, and for each prefix that of the output matrix."""


def bases_of(architecture: str) -> tuple[str, ...]:
    """The prefixes that all tensors of an architecture's folders may have."""
    return (*names_of(architecture).bases, *_BASES)


def base_of(architecture: str, labels: Container[str]) -> str:
    """The prefix of a folder's tensors, whose names are `labels`."""
    own = names_of(architecture)
    embedding = own.outside.get("embedding", "").removeprefix(_BASE)
    aliases = (label for label, name in own.aliases.items() if name == "embedding.weight")
    names = ("embed_tokens.weight", "embeddings.weight", f"{embedding}.weight", *aliases)
    bases = bases_of(architecture)
    found = (base for base in bases if any(f"{base}{name}" in labels for name in names))
    return next(found, _BASE)


def tensor_names(
    architecture: str,
    *,
    base: str = _BASE,
    layers: object = 0,
    dense: Sequence[str] = (),
    has_experts: bool = True,
) -> TensorNames:
    """The tensor names of one architecture, a value of `model_type`.

    Args:
        architecture: the value of `model_type`.
        has_experts: whether the model has layers with experts.
        base: see :func:`base_of`.
        layers: the number of layers, unchecked.
        dense: folders of dense layers after the last norm.
    """
    own = names_of(architecture)
    outside = _OUTSIDE_LAYERS | dict(own.outside)
    outside |= {f"dense.{i}": f"{folder}/linear" for i, folder in enumerate(dense)}
    for name, stored in outside.items():
        if stored.startswith(_BASE):
            outside[name] = base + stored.removeprefix(_BASE)
    outside["output"] = _BASES.get(base, "") + outside["output"]
    further = None
    if own.head_layers and isinstance(layers, int):
        outside |= {f"layers.{layers}.{part}": stored for part, stored in own.head.items()}
        further = own.head_layers, layers
    layer = own.layer
    if not has_experts and own.layer_without_experts is not None:
        layer = own.layer_without_experts
    return TensorNames(
        [f"{base}{one}" for one in own.layers],
        outside,
        _IN_LAYER | dict(layer),
        _IRREGULAR | dict(own.tensors),
        further,
        {**own.aliases, **{f"{base}{label}": name for label, name in own.aliases.items()}},
    )
