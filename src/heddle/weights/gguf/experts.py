"""Experts of old GGUF files, which have a tensor for each expert.

llama.cpp wrote Mixtral's experts as `blk.LAYER.ffn_gate.EXPERT.weight` until April 2024, and later
as one stacked tensor, `blk.LAYER.ffn_gate_exps.weight`. The slices of a stack are read from where
they lie.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.weights.experts import experts_in_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.checkpoint import FilePlace, TensorInfo

_ONE_OF_MANY = re.compile(
    r"(?P<before>blk\.\d{1,9}\.ffn_(?:gate|up|down))\.(?P<expert>\d{1,9})\.weight"
)


def with_stacks(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """`tensors` with a stack in place of each layer's single experts. All by the files' own names.

    Raises:
        ModelFileError: an expert is missing, or differs in type or shape from the others.
    """
    found = {}
    members: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for label, tensor in tensors.items():
        match = _ONE_OF_MANY.fullmatch(label)
        if match is None:
            found[label] = tensor
        else:
            members[match["before"]][int(match["expert"])] = label
    for before, experts in members.items():
        order = experts_in_order(
            f"{before}.*.weight", experts, lambda one: (tensors[one].type.name, tensors[one].shape)
        )
        label = f"{before}_exps.weight"
        found[label] = _stack(label, [tensors[one] for one in order])
    return found


def _stack(label: str, experts: list[TensorInfo]) -> TensorInfo:
    first = experts[0]
    places: list[FilePlace] = [one.place for one in experts if one.place is not None]
    return replace(
        first,
        name=label,
        label=label,
        shape=(len(experts), *first.shape),
        nbytes=len(experts) * first.nbytes,
        place=None,
        slices=tuple(places),
    )
