"""What a Hugging Face folder is called in GGUF: metadata and rows as llama.cpp writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import UnsupportedModelError
from heddle.weights.gguf import names
from heddle.weights.gguf.tokenizer import exported_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from heddle.weights.checkpoint import Checkpoint, Hyperparameters, TensorInfo

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
    "granite": "granite",
    "olmo2": "olmo2",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
}
"""GGUF's architecture, by `model_type`."""

_WINDOWED = frozenset({"gemma2", "gemma3"})
"""Architectures of which llama.cpp knows the layers with a window."""

_SCALINGS = ("none", "linear", "yarn", "llama3")
_FLOATS = frozenset(
    {"norm_eps", "logit_cap", "rope.base", "rope.local_base", "rope.factor", "rope.beta_fast"}
    | {"rope.attention_factor", "rope.beta_slow", "expert_weights_scale", "attention.score_cap"}
    | {"embedding_scale", "residual_scale", "logit_divisor", "attention.scale"}
)
_OF_SCALING = ("rope.factor", "rope.original_context", "rope.attention_factor", "rope.scaling")
_LEFT_OUT = frozenset(
    {"vocabulary", "window_period", "pooling", "expert_scoring", "expert_weights_normalised"}
)
"""Values that llama.cpp finds elsewhere, or that its architecture implies."""


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
    return architecture


def exported_name(checkpoint: Checkpoint, name: str) -> str:
    """The name in GGUF of a tensor with the canonical name `name`."""
    if checkpoint.format == "gguf":
        return checkpoint.tensors[name].label
    return names.tensor_names(exported_architecture(checkpoint)).stored(name)


def exported_metadata(checkpoint: Checkpoint, pre_tokenizer: str | None) -> dict[str, object]:
    """The metadata of a GGUF file with the model of a folder.

    `pre_tokenizer` is llama.cpp's name of the pre-tokenizer, for byte-level vocabularies.

    Raises:
        UnsupportedModelError: GGUF cannot express a part of the model.
    """
    architecture = exported_architecture(checkpoint)
    metadata: dict[str, object] = {
        names.ARCHITECTURE: architecture,
        names.NAME: checkpoint.path.name,
        **_hyperparameters(checkpoint.hyperparameters, architecture),
        **exported_tokenizer(checkpoint.tokenizer(), pre_tokenizer),
    }
    if checkpoint.chat_template is not None:
        metadata[names.CHAT_TEMPLATE] = checkpoint.chat_template
    return metadata


def _hyperparameters(read: Hyperparameters, architecture: str) -> Mapping[str, object]:
    scaling = read.get("rope.scaling", "none")
    if scaling not in _SCALINGS:
        raise UnsupportedModelError(
            f"{read.label('rope.scaling')} {scaling!r} cannot be written as GGUF yet; possible:"
            f" {', '.join(_SCALINGS)}",
            param="rope.scaling",
        )
    windowed = read.get("window") is not None and architecture not in _WINDOWED
    if windowed and any(_list(read.get("window_layers", [True]))):
        raise UnsupportedModelError(
            f"GGUF's architecture {architecture} has no sliding window, and"
            f" {read.label('window')} is {read.get('window')!r}",
            param="window",
        )
    left_out = _LEFT_OUT | ({"window"} if architecture not in _WINDOWED else set())
    if scaling in ("none", "llama3"):  # the divisors of llama3 are a tensor
        left_out |= set(_OF_SCALING)
    found: dict[str, object] = {}
    for name, key in names.HYPERPARAMETERS.items():
        value = read.get(name)
        if value is not None and name not in left_out:
            is_float = name in _FLOATS and isinstance(value, int)
            found[f"{architecture}.{key}"] = float(str(value)) if is_float else value
    heads = read.integer("heads")
    head_dim = read.integer("key_dim", read.integer("width") // heads)
    found.setdefault(f"{architecture}.rope.dimension_count", head_dim)
    found[f"{architecture}.attention.key_length"] = head_dim
    found.setdefault(f"{architecture}.attention.value_length", head_dim)
    return found


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def exported_rows(
    checkpoint: Checkpoint, tensor: TensorInfo, raw: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """The bytes `raw` of a folder's tensor with rows in GGUF's order.

    Where rope pairs neighbours in GGUF, the rows of a head's two halves alternate.
    """
    part = tensor.name.rpartition(".")[0].rpartition("attention.")[2]
    if exported_architecture(checkpoint) not in names.INTERLEAVED or part not in ("q", "k"):
        return raw
    read = checkpoint.hyperparameters
    heads = read.integer("heads")
    if part == "k":
        heads = read.integer("kv_heads", heads)
    rows = raw.reshape(heads, 2, tensor.shape[0] // heads // 2, -1)
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)
