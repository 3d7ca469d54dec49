"""Builds the model of a checkpoint: finds its family, and checks what the family made of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from heddle.doors import architectures, families, family_with
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.models.decoder import DecoderWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.models.decoder import Decoder, PredictionHead
    from heddle.models.family import Family
    from heddle.weights.checkpoint import Checkpoint


_log = logging.getLogger(__name__)


_LABELS = {"gguf": "general.architecture", "hf": "model_type"}
"""Keys of the architecture's name in files, by the format."""


def family_of(format: str, architecture: str) -> Family:
    """The family of an architecture by its name in `format`, "gguf" or "hf".

    Raises:
        UnsupportedModelError: there is none.
    """
    found: Family | None = family_with(format, architecture)
    if found is not None:
        return found
    lacking = {name: one for family in families() for name, one in family.near.items()}
    if architecture in lacking:
        label = _LABELS[format]
        raise UnsupportedModelError(
            f"{label} {architecture!r} is not supported; {lacking[architecture]}", param=label
        )
    known = architectures(format)
    label, near = _LABELS[format], get_close_matches(architecture, known, 1)
    nearest = f"; the nearest name is {near[0]}" if near else ""
    raise UnsupportedModelError(
        f"{label} {architecture!r} is not supported{nearest}; supported:"
        f" {', '.join(sorted(known))}",
        param=label,
    )


def build(checkpoint: Checkpoint, context: int = 0) -> Decoder:
    """Build the model of a checkpoint from its architecture and hyperparameters.

    `context` is the most tokens of a sequence as it will be served; 0: the model's own limit. Some
    scalings of positions depend on it.

    Raises:
        UnsupportedModelError: the architecture, or the value of a hyperparameter, is not supported.
        ModelFileError: a hyperparameter is missing or contradicts another.
    """
    family = family_of(checkpoint.format, checkpoint.architecture)
    try:
        model = family.build(checkpoint.hyperparameters, context)
    except (ArithmeticError, ValueError) as error:  # each value is sound, but not all together
        raise ModelFileError(
            f"{checkpoint.path}: the hyperparameters contradict each other: {error}",
            field="hyperparameters",
        ) from error
    if model.head is not None and not _has_head(checkpoint, model.head):
        model = replace(model, head=None)
    _check_encoder(checkpoint, model)
    return _within_dense_context(checkpoint, model, context)


def _within_dense_context(checkpoint: Checkpoint, model: Decoder, context: int) -> Decoder:
    """The model, with a context that ends before its attention leaves out tokens.

    Raises:
        UnsupportedModelError: `context` is longer.
    """
    read, shape = checkpoint.hyperparameters, model.shape
    most = read.integer("dense_context", shape.context)
    if most >= shape.context:
        return model
    label = read.label("dense_context")
    if context > most:
        raise UnsupportedModelError(
            f"context {context:,} is not supported: beyond {most:,} tokens ({label}) the attention"
            f" of this model is sparse, which Heddle does not compute. Use --context {most}",
            param="context",
        )
    _log.warning(
        "the context is %d tokens, not the model's %d: beyond them its attention is sparse (%s)",
        *(most, shape.context, label),
    )
    return replace(model, shape=replace(shape, context=most))


def _has_head(checkpoint: Checkpoint, head: PredictionHead) -> bool:
    """Whether the checkpoint has all tensors of the head. Converters may leave some of them out."""
    claims = _Claims(checkpoint)
    head.load_beside(claims, DecoderWeights(None, (), None, None))
    if claims.missing and any(name.startswith(f"{head.name}.") for name in checkpoint.tensors):
        label = checkpoint.label(claims.missing[0])
        _log.warning("the model's prediction head is not used: the files lack tensor %s", label)
    return not claims.missing


class _Claims:
    """A `Loader` that loads nothing, and notes which tensors a checkpoint lacks."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.missing: list[str] = []
        self._tensors = checkpoint.tensors

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self._tensors

    def linear(self, name: str, out_features: int, in_features: int) -> None:
        self._claim(name)

    def experts(self, name: str, count: int, out_features: int, in_features: int) -> None:
        self._claim(name)

    def embedding(self, name: str, rows: int, width: int) -> None:
        self._claim(name)

    def vector(self, name: str, width: int) -> None:
        self._claim(name)

    def filters(self, name: str, parts: Sequence[int], taps: int) -> tuple[None, ...]:
        self._claim(name)
        return (None,) * len(parts)

    def filled(self, width: int, value: float = 1.0) -> None:
        pass

    def constants(self, name: str, width: int) -> tuple[float, ...]:
        self._claim(name)
        return (0.0,) * width

    def _claim(self, name: str) -> None:
        if not self.has(name):
            self.missing.append(f"{name}.weight")


def _check_encoder(checkpoint: Checkpoint, model: Decoder) -> None:
    """Check that the family took notice of what makes the checkpoint an encoder.

    Raises:
        UnsupportedModelError: it did not.
    """
    read = checkpoint.hyperparameters
    if read.flag("causal", True) != model.shape.causal:
        label = read.label("causal")
        raise UnsupportedModelError(
            f"{label} {read.get('causal')!r}: attention to both sides is not supported with"
            f" architecture {checkpoint.architecture!r}",
            param=label,
        )
    dense = [name for name in checkpoint.tensors if name.startswith("dense.")]
    layers = {name.split(".")[1] for name in dense}
    if len(layers) != len(model.dense_widths):
        label = checkpoint.label(dense[0]) if dense else read.label("dense.0.width")
        raise UnsupportedModelError(
            f"{label}: {len(layers)} dense layers after the last norm are not supported with"
            f" architecture {checkpoint.architecture!r} and {len(model.dense_widths)} widths",
            param=label,
        )
