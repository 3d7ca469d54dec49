"""Experts in Hugging Face folders, as stacked tensors.

A folder stores the matrices of a layer's experts one by one, or stacked; where stacked, gate and up
may be one tensor, gate first. The canonical tensors are stacked, gate and up apart. Their slices
are read from where they lie.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError
from heddle.weights.experts import experts_in_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.huggingface.stored import FolderTensor
    from heddle.weights.tensor_names import TensorNames

_ONE_OF_MANY = re.compile(r"(?P<before>.+\.experts)\.(?P<expert>\d{1,9})\.(?P<after>.+)")
_GATE_AND_UP = re.compile(
    r".+\.((mlp\.)?experts\.gate_up_proj|block_sparse_moe\.input_linear\.weight)"
)


@dataclass(frozen=True, slots=True)
class Slice:
    """Bytes [start, start + size) of the stored tensor `label`."""

    label: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Stack:
    """A stacked tensor: one slice for each expert.

    Attributes:
        label: the files' own name. `*` stands for the number of the expert.
        shape: (experts, rows, columns), or (experts, rows) for biases.
        slices: in the order of the experts.
    """

    label: str
    shape: tuple[int, ...]
    slices: tuple[Slice, ...]


def stacked_label(label: str) -> str:
    """The name of the stacked tensor that `label` is a slice of; `label` itself if it is whole."""
    match = _ONE_OF_MANY.fullmatch(label)
    return label if match is None else f"{match['before']}.*.{match['after']}"


def stacks_of_singles(tensors: Mapping[str, FolderTensor]) -> dict[str, Stack]:
    """Stacks of matrices that are stored one by one, by :func:`stacked_label`.

    Raises:
        ModelFileError: an expert is missing, or differs in shape or dtype from the others.
    """
    members: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for label in tensors:
        match = _ONE_OF_MANY.fullmatch(label)
        if match is not None:
            members[stacked_label(label)][int(match["expert"])] = label
    return {label: _stack(label, experts, tensors) for label, experts in members.items()}


def _stack(label: str, experts: Mapping[int, str], tensors: Mapping[str, FolderTensor]) -> Stack:
    order = experts_in_order(label, experts, lambda one: (tensors[one].dtype, tensors[one].shape))
    first = tensors[order[0]]
    slices = tuple(Slice(one, 0, first.nbytes) for one in order)
    return Stack(label, (len(experts), *first.shape), slices)


def stacks_of_pairs(tensors: Mapping[str, FolderTensor], names: TensorNames) -> dict[str, Stack]:
    """Stacks of gate and of up that one stored tensor holds, by canonical name.

    Raises:
        ModelFileError: the tensor has not two matrices of one shape for each expert.
    """
    found = {}
    for label, stored in tensors.items():
        canonical = names.canonical(f"{label.removesuffix('.weight')}.weight")
        if canonical is None or _GATE_AND_UP.fullmatch(label) is None:
            continue
        if len(stored.shape) != 3 or stored.shape[1] % 2 or 0 in stored.shape:
            raise ModelFileError(
                f"tensor {label} has shape {stored.shape}; it must have gate and up for each"
                " expert: (experts, 2 * rows, columns)",
                field=label,
            )
        experts, rows, columns = stored.shape
        shape = (experts, rows // 2, columns)
        size = stored.nbytes // (2 * experts)
        before = canonical.removesuffix(".weight").rpartition(".")[0]
        for part, name in enumerate(("gate", "up")):
            slices = tuple(Slice(label, (2 * i + part) * size, size) for i in range(experts))
            found[f"{before}.{name}.weight"] = Stack(label, shape, slices)
    return found
