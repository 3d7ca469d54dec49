"""Names and metadata in GGUF of Hugging Face folders, as llama.cpp writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.extensions.quantise.export_recurrent import (
    LAYOUT_KEYS,
    SHORT_CONVOLUTIONS,
    layout_metadata,
    refuse,
)
from heddle.extensions.quantise.tokenizer_metadata import exported_tokenizer
from heddle.weights.fused import FUSED_PARTS
from heddle.weights.gguf import names
from heddle.weights.gguf.hyperparameters import POOLING
from heddle.weights.heads import is_of_heads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.hyperparameters import Hyperparameters

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "glm4": "glm4",
    "glm4_moe": "glm4moe",
    "gpt_oss": "gpt-oss",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "ministral3": "mistral3",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "phi3": "phi3",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "granitemoehybrid": "granitehybrid",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "glm4_moe_lite": "deepseek2",
    "kimi_linear": "kimi-linear",
    "nemotron_h": "nemotron_h",
    "jamba": "jamba",
}
"""GGUF's architecture, by `model_type`."""

_WITH_EXPERTS = {"nemotron_h": "nemotron_h_moe"}
"""GGUF's architecture of models with experts, where it is another."""

_WINDOW_PERIODS = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "olmo2": 4, "phi3": 0}
"""Architectures with windows, and the number of layers after which one layer has none; 0: all have.

No key says which layers have a window: llama.cpp knows. It ignores the window of Phi-3."""

_WEIGHTS_NORMALISED = {
    **dict.fromkeys(("jamba", "qwen2moe"), False),
    **dict.fromkeys(("kimi-linear", "lfm2moe", "qwen35moe", "qwen3moe", "qwen3next"), True),
}
"""Whether expert weights are divided by their sum, where llama.cpp reads no key for it."""

_OUTPUT_REQUIRED = frozenset({"gpt-oss", "kimi-linear", "olmo2", "qwen2moe"})
"""Architectures of which llama.cpp loads no file without an output matrix."""

_SCALINGS = ("none", "linear", "yarn", "llama3")
_MORE_SCALINGS = {"phi3": ("longrope",)}
_FLOATS = frozenset(
    {"norm_eps", "logit_cap", "rope.base", "rope.local_base", "rope.factor", "rope.beta_fast"}
    | {"rope.attention_factor", "rope.beta_slow", "expert_weights_scale", "attention.score_cap"}
    | {"embedding_scale", "residual_scale", "logit_divisor", "attention.scale"}
    | {"attention.temperature"}
)
_OF_SCALING = ("rope.factor", "rope.original_context", "rope.attention_factor", "rope.scaling")
_LEFT_OUT = frozenset({"vocabulary", "window_period", "pooling", "expert_scoring"}) | LAYOUT_KEYS
"""Values that llama.cpp finds elsewhere, or that its architecture implies, or that are numbers in
GGUF."""


def exported_architecture(checkpoint: Checkpoint) -> str:
    """GGUF's architecture of a checkpoint.

    Raises:
        UnsupportedModelError: there is none that Heddle can write.
    """
    if checkpoint.format == "gguf":
        return checkpoint.architecture
    architecture = ARCHITECTURES.get(checkpoint.architecture)
    if architecture is None:
        raise UnsupportedModelError(
            f"model_type {checkpoint.architecture!r} cannot be written as GGUF yet; possible:"
            f" {', '.join(ARCHITECTURES)}",
            param="model_type",
        )
    has_experts = checkpoint.hyperparameters.get("experts")
    return _WITH_EXPERTS.get(architecture, architecture) if has_experts else architecture


def exported_name(checkpoint: Checkpoint, name: str) -> str:
    """The name in GGUF of a tensor with the canonical name `name`.

    The parts of a fused tensor have one name. Their rows follow one another.

    Raises:
        UnsupportedModelError: parts of the fused tensor do not follow one another.
    """
    if checkpoint.format == "gguf":
        label = checkpoint.tensors[name].label
        if is_of_heads(checkpoint.tensors[name]) and label != checkpoint.label(name):
            raise UnsupportedModelError(
                f"tensor {label} has keys and values of heads as one matrix; such files cannot be"
                " written anew, take a file that llama.cpp has converted since May 2025",
                param=label,
            )
        return label
    architecture = exported_architecture(checkpoint)
    stem, _, kind = name.rpartition(".")
    before, _, part = stem.rpartition(".")
    for fused in names.names_of(architecture).fused:
        if part in FUSED_PARTS[fused] and before.endswith(fused.rpartition(".")[0]):
            name = f"{before}.{fused.rpartition('.')[2]}.{kind}"
    return names.tensor_names(architecture).stored(name)


def is_exported(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a tensor is written: not those of layers behind the last one, if no head is whole."""
    if checkpoint.format == "gguf" or not name.startswith("layers."):
        return True
    last = checkpoint.hyperparameters.integer("layers") + _prediction_layers(checkpoint)
    return int(name.split(".")[1]) < last


def _prediction_layers(checkpoint: Checkpoint) -> int:
    """Number of layers behind the last one, each of a prediction head. Some folders lack them."""
    read = checkpoint.hyperparameters
    first = f"layers.{read.integer('layers')}.prediction.projection.weight"
    return read.count("prediction_layers") if first in checkpoint.tensors else 0


def needs_output_matrix(checkpoint: Checkpoint) -> bool:
    """Whether a folder has no output matrix, because the embedding is it, and llama.cpp wants one.

    The file then has the embedding twice.
    """
    tensors, is_file = checkpoint.tensors, checkpoint.format == "gguf"
    if is_file or "output.weight" in tensors or "embedding.weight" not in tensors:
        return False
    return exported_architecture(checkpoint) in _OUTPUT_REQUIRED


def exported_key(checkpoint: Checkpoint, name: str) -> str:
    """The key in GGUF of the hyperparameter with the canonical name `name`."""
    return f"{exported_architecture(checkpoint)}.{names.HYPERPARAMETERS[name]}"


def exported_metadata(checkpoint: Checkpoint, pre_tokenizer: str | None) -> dict[str, object]:
    """The metadata of a GGUF file with the model of a folder.

    `pre_tokenizer` is llama.cpp's name of the pre-tokenizer, for byte-level vocabularies.

    Raises:
        UnsupportedModelError: GGUF cannot express a part of the model.
    """
    architecture = exported_architecture(checkpoint)
    _check_biases(checkpoint, architecture)
    metadata: dict[str, object] = {
        names.ARCHITECTURE: architecture,
        names.NAME: checkpoint.path.name,
        **_hyperparameters(checkpoint.hyperparameters, architecture),
        **exported_tokenizer(checkpoint.tokenizer(), pre_tokenizer),
    }
    if further := _prediction_layers(checkpoint):
        layers = checkpoint.hyperparameters.integer("layers")
        metadata[f"{architecture}.{names.HYPERPARAMETERS['layers']}"] = layers + further
        metadata[f"{architecture}.{names.PREDICTION_LAYERS}"] = further
    if checkpoint.chat_template is not None:
        metadata[names.CHAT_TEMPLATE] = checkpoint.chat_template
    return metadata


def _hyperparameters(read: Hyperparameters, architecture: str) -> Mapping[str, object]:
    if read.get("causal", True) is not True:
        raise refuse(read, "causal", "encoders are not supported there")
    scaling = read.get("rope.scaling", "none")
    _check_rope(read, architecture)
    _check_windows(read, architecture)
    _check_experts(read, architecture)
    left_out = _LEFT_OUT | (set() if architecture in _WINDOW_PERIODS else {"window"})
    if scaling in ("none", "llama3"):  # the divisors of llama3 are a tensor
        left_out |= set(_OF_SCALING)
    elif scaling == "longrope":  # its divisors are tensors; a factor would stretch them again
        left_out |= {"rope.scaling", "rope.factor"}
    if architecture in _WEIGHTS_NORMALISED:
        left_out |= {"expert_weights_normalised"}
    found: dict[str, object] = {}
    own = names.names_of(architecture).hyperparameters
    for name, key in {**names.HYPERPARAMETERS, **own}.items():
        value = read.get(name)
        if value is not None and name not in left_out:
            is_float = name in _FLOATS and isinstance(value, int)
            found[f"{architecture}.{key}"] = float(str(value)) if is_float else value
    if pooling := read.get("pooling"):
        numbers = {name: number for number, name in POOLING.items()}
        found[f"{architecture}.{names.HYPERPARAMETERS['pooling']}"] = numbers[str(pooling)]
    heads = read.integer("heads")
    head_dim = read.integer("key_dim", read.integer("width") // heads)
    found.setdefault(f"{architecture}.rope.dimension_count", head_dim)
    found[f"{architecture}.attention.key_length"] = head_dim
    found.setdefault(f"{architecture}.attention.value_length", head_dim)
    if read.get("experts"):
        width = read.integer("expert_width", read.integer("mlp_width"))
        found[f"{architecture}.{names.HYPERPARAMETERS['expert_width']}"] = width
    more = layout_metadata(read, architecture)
    return found | {f"{architecture}.{key}": value for key, value in more.items()}


def _check_rope(read: Hyperparameters, architecture: str) -> None:
    """Raise UnsupportedModelError if GGUF cannot express how rope is scaled."""
    scaling = read.get("rope.scaling", "none")
    possible = _SCALINGS + _MORE_SCALINGS.get(architecture, ())
    if scaling not in possible:
        raise refuse(read, "rope.scaling", f"possible: {', '.join(possible)}")
    whole = names.names_of(architecture).values.get("rope.whole_pairs", True)
    if scaling == "yarn" and read.get("rope.whole_pairs", True) is not whole:
        raise refuse(read, "rope.whole_pairs", f"GGUF's architecture {architecture} has {whole}")


def _check_windows(read: Hyperparameters, architecture: str) -> None:
    """Raise UnsupportedModelError unless llama.cpp finds the layers that have a window."""
    layers, period = read.integer("layers"), _WINDOW_PERIODS.get(architecture)
    if read.get("window") is None:
        return
    listed = read.get("window_layers")
    if period is None:
        if any(listed if isinstance(listed, list) else [True]):
            raise UnsupportedModelError(
                f"GGUF's architecture {architecture} has no sliding window, and"
                f" {read.label('window')} is {read.get('window')!r}",
                param="window",
            )
        return
    known = [not period or (layer + 1) % period > 0 for layer in range(layers)]
    name = "window_layers" if listed is not None else "window_period"
    if listed not in (None, known) or read.get("window_period", period) != period:
        every = f"all but every {period}th layer" if period else "all layers"
        raise refuse(read, name, f"GGUF's architecture {architecture} has a window in {every}")


def _check_biases(checkpoint: Checkpoint, architecture: str) -> None:
    """Raise UnsupportedModelError if short convolutions have biases, which llama.cpp has not."""
    for name, tensor in checkpoint.tensors.items():
        if architecture in SHORT_CONVOLUTIONS and name.endswith(".mixer.conv.bias"):
            raise UnsupportedModelError(
                f"tensor {tensor.label} cannot be written as GGUF: convolutions of its architecture"
                f" {architecture} have no biases",
                param=tensor.label,
            )


def _check_experts(read: Hyperparameters, architecture: str) -> None:
    """Raise UnsupportedModelError if llama.cpp would weigh experts in another way."""
    name, implied = "expert_weights_normalised", _WEIGHTS_NORMALISED.get(architecture)
    if implied is not None and read.get(name, implied) is not implied:
        raise refuse(read, name, f"GGUF's architecture {architecture} has {implied}")
