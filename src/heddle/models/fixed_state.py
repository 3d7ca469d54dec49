"""The layout of the fixed-size state of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.state import Fixed

if TYPE_CHECKING:
    from collections.abc import Sequence


def fixed_state(parts: Sequence[int]) -> tuple[Fixed, list[int]]:
    """The kind of a state of parts with so many float32 elements, and where each part begins.

    Parts begin at multiples of 16 elements.
    """
    starts, end = [], 0
    for count in parts:
        starts.append(end)
        end += -(-count // 16) * 16
    return Fixed(4 * end), starts
