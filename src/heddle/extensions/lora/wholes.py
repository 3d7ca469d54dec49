"""Whole matrices in an adapter: `modules_to_save` of PEFT, and copies that it saves of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.lora.fitting import check_values, finite, smallest_type
from heddle.weights.low_rank import Change, Whole
from heddle.weights.tensor_types import dequantize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from heddle.extensions.lora.naming import Naming
    from heddle.extensions.lora.pairs import Side
    from heddle.weights.checkpoint import Checkpoint

MOST_VALUES = 1 << 28
"""Values of a whole matrix: an adapter with more is a model of its own."""
_REPLACED = ("output.weight", "embedding.weight")
_LOSS = 0.25
"""What a model may have lost of a matrix in quantising it, as a part of its largest value."""


def wholes_of(
    wholes: Mapping[str, Side], changes: Mapping[str, Change], naming: Naming, base: Checkpoint
) -> dict[str, Change]:
    """The matrices that take the place of the model's, by canonical name without `.weight`.

    Beside a change, PEFT may save the matrix that is changed (`save_embedding_layers`). It must be
    that of the model.

    Raises:
        ModelFileError: a matrix does not fit the model, or has infinite or NaN values.
        UnsupportedModelError: it is none that can be replaced.
    """
    found: dict[str, Change] = {}
    for matrix, side in wholes.items():
        name = naming.canonical(matrix)
        if name not in _REPLACED:
            raise UnsupportedModelError(
                f"tensor {side.label} is not supported: an adapter may have whole copies of the"
                " output matrix and of the embedding alone (modules_to_save). Merge the adapter"
                " into its model with PEFT's merge_and_unload(), and load the merged model",
                param=side.label,
            )
        check_values(side.label, name, naming, base)
        _check_shape(name, side, base)
        stem, values = name.removesuffix(".weight"), finite(side)
        if stem not in changes:
            if not _is_of_model(name, values, base, within=0.0):
                found[stem] = Whole(values, smallest_type(values))
        elif not _is_of_model(name, values, base, within=_LOSS):
            raise UnsupportedModelError(
                f"tensor {side.label} is not supported: the adapter changes another matrix than"
                f" {base.label(name)} of {base.path}, and has it as a whole. Merge the adapter into"
                " its model with PEFT's merge_and_unload(), and load the merged model",
                param=side.label,
            )
    return found


def _check_shape(name: str, side: Side, base: Checkpoint) -> None:
    tensor = base.tensors.get(name) or base.tensors["embedding.weight"]
    if side.shape != tensor.shape:
        raise ModelFileError(
            f"tensor {side.label} has shape {side.shape}, and {tensor.label} of {base.path} has"
            f" shape {tensor.shape}. Merge the adapter into the model that it was trained for, and"
            " load the merged model",
            field=side.label,
        )
    if side.shape[0] * side.shape[1] > MOST_VALUES:
        raise UnsupportedModelError(
            f"tensor {side.label} of shape {side.shape} is not supported: whole matrices of"
            f" adapters may have {MOST_VALUES:,} values. Merge the adapter into its model, and load"
            " the merged model",
            param=side.label,
        )


def _is_of_model(
    name: str, values: NDArray[np.float32], base: Checkpoint, *, within: float
) -> bool:
    """Whether values are those of the model, within a part of the largest one."""
    tensor = base.tensors.get(name) or base.tensors["embedding.weight"]
    stored = dequantize(base.read(tensor.name), tensor.type, tensor.shape)
    far = np.abs(stored - values).max(initial=0.0)
    return bool(far <= within * np.abs(values).max(initial=0.0))
