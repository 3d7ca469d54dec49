"""Experts that files store one by one: the names of a layer's experts, in order and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def experts_in_order(
    label: str,
    experts: Mapping[int, str],
    described: Callable[[str], tuple[str, tuple[int, ...]]],
) -> list[str]:
    """The names of tensors, one for each expert.

    Args:
        label: the name with `*` in place of the number of the expert.
        experts: the names by number.
        described: returns type and shape of a tensor by its name.

    Raises:
        ModelFileError: an expert is missing, or differs in type or shape from the first.
    """
    missing = next((number for number in range(len(experts)) if number not in experts), None)
    if missing is not None:
        lacking = label.replace("*", str(missing))
        raise ModelFileError(f"tensor {lacking} is missing; fetch the model again", field=lacking)
    kind, shape = described(experts[0])
    for one in experts.values():
        if described(one) != (kind, shape):
            other_kind, other_shape = described(one)
            raise ModelFileError(
                f"tensor {one} is {other_kind} of shape {other_shape}; the first expert's is"
                f" {kind} of shape {shape}",
                field=one,
            )
    return [experts[number] for number in range(len(experts))]
