"""Experts that a folder stores as transposed stacks, gate beside up: Qwen3-VL and Llama 4.

`transformers` multiplied such a stack (experts, columns, rows) from the right. Its conversion
(`conversion_mapping.py`) transposes it today.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError
from heddle.weights.huggingface.made import MadeTensor
from heddle.weights.huggingface.safetensors import DTYPE_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import Stored

    Raw = NDArray[np.uint8]

_STACK = re.compile(
    r".+\.layers\.(?P<layer>\d{1,9})\.(?:mlp|feed_forward)\.experts\.(?P<pair>gate_up|down)_proj"
)


def transposed_experts(tensors: Mapping[str, Stored], _: Config) -> dict[str, MadeTensor]:
    """The experts' canonical tensors, by canonical name.

    Raises:
        ModelFileError: a tensor has not the shape that it needs.
    """
    found = {}
    for label, stored in tensors.items():
        match = _STACK.fullmatch(label)
        if match is None:
            continue
        is_pair = match["pair"] == "gate_up"
        if len(stored.shape) != 3 or (is_pair and stored.shape[2] % 2):
            raise ModelFileError(
                f"tensor {label} has shape {stored.shape}; it must have matrices of all experts:"
                " (experts, columns, rows)",
                field=label,
            )
        half = stored.shape[2] // 2
        parts = {"gate": slice(half), "up": slice(half, None)} if is_pair else {"down": slice(None)}
        for part, rows in parts.items():
            name = f"layers.{match['layer']}.mlp.experts.{part}.weight"
            found[name] = rows_of(label, stored, rows, transposed=True)
    return found


def rows_of(label: str, stored: Stored, rows: slice, *, transposed: bool) -> MadeTensor:
    """Some rows of each matrix of a stack (experts, rows, columns), or of biases (experts, rows).

    If `transposed`, the file has the matrices transposed.
    """
    bits = np.dtype(f"u{DTYPE_BITS[stored.dtype] // 8}")

    def canonical(values: NDArray[np.generic]) -> NDArray[np.generic]:
        return (values.swapaxes(1, 2) if transposed else values)[:, rows]

    def make(raw: list[Raw]) -> Raw:
        values = raw[0].view(bits).reshape(stored.shape)
        return np.ascontiguousarray(canonical(values)).view(np.uint8).ravel()

    shape = canonical(np.broadcast_to(np.uint8(0), stored.shape)).shape
    return MadeTensor(stored.dtype, shape, (label,), make)
