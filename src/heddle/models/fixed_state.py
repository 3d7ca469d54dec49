"""The layout of the fixed-size state of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.ops import StatePlace
from heddle.state import Fixed

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNIT = 16
"""Parts begin at multiples of so many elements, which kernels handle together."""


def fixed_state(layer: int, counts: Sequence[int]) -> tuple[Fixed, list[StatePlace]]:
    """The state of layer `layer` with parts of `counts` float32 elements: its kind and places."""
    places, end = [], 0
    for count in counts:
        places.append(StatePlace(layer, end, count))
        end += -(-count // _UNIT) * _UNIT
    return Fixed(4 * end), places
