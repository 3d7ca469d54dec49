"""Which architecture serves a checkpoint: a row per family, with its name in each format."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError

if TYPE_CHECKING:
    from heddle.models.decoder import Decoder
    from heddle.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the registry.

    Attributes:
        module: the file in `heddle.models` whose `build` makes the model.
        gguf: values of `general.architecture` in GGUF files.
        hf: values of `model_type` in Hugging Face's `config.json`.
    """

    module: str
    gguf: tuple[str, ...]
    hf: tuple[str, ...]


FAMILIES = (
    Family("llama", gguf=("llama", "qwen2"), hf=("llama", "mistral", "qwen2")),
    Family("qwen3", gguf=("qwen3",), hf=("qwen3",)),
    Family("gemma3", gguf=("gemma3",), hf=("gemma3_text",)),
)


def names(format: str) -> dict[str, Family]:
    """Families by the architecture's name in `format`, "gguf" or "hf"."""
    return {name: family for family in FAMILIES for name in getattr(family, format)}


def build(checkpoint: Checkpoint, context: int = 0) -> Decoder:
    """The model that the checkpoint's architecture names, with its hyperparameters.

    `context` is the most tokens of a sequence as it will be served; 0 for the model's own. Some
    scalings of positions depend on it.

    Raises:
        UnsupportedModelError: no family has that name, or a hyperparameter asks for what is not
            supported.
        ModelFileError: a hyperparameter is missing or contradicts another.
    """
    known = names(checkpoint.format)
    family = known.get(checkpoint.architecture)
    if family is None:
        raise UnsupportedModelError(
            f"architecture {checkpoint.architecture!r} is not supported; supported:"
            f" {', '.join(sorted(known))}",
            param="architecture",
        )
    hyperparameters = checkpoint.hyperparameters
    _check_claims(checkpoint)
    module = importlib.import_module(f"heddle.models.{family.module}")
    model: Decoder = module.build(hyperparameters, context)
    return model


def _check_claims(checkpoint: Checkpoint) -> None:
    """Hold hyperparameters that memory is reckoned from to the tensors that are there.

    Raises:
        ModelFileError: they need larger tensors, or more of them.
    """
    read, tensors = checkpoint.hyperparameters, checkpoint.tensors
    largest = max((size for tensor in tensors.values() for size in tensor.shape), default=0)
    for name in ("layers", "width", "kv_heads", "vocabulary"):
        there = len(tensors) if name == "layers" else largest
        claimed = read.get(name)
        if isinstance(claimed, int) and claimed > there:
            read.fail(
                name,
                f"asks for {claimed} layers or columns, and the tensors of the file have at most"
                f" {there}; the file is damaged, fetch it again",
            )
