"""Tables of the cosines and sines of rotary positions, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from heddle.models.ops import RopeSpec

_BLOCK = 1024
"""Positions that one call of NumPy computes. Its blocks begin at multiples of this, so that the
values at a position never depend on other positions of the step."""


class Rotations:
    """Tables by rotation. They grow when a step reaches later positions."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tables: dict[RopeSpec, torch.Tensor] = {}

    def table(self, spec: RopeSpec, count: int) -> torch.Tensor:
        """Cosines and sines (at least `count`, 2, dim / 2) of the positions from 0 on."""
        table = self._tables.get(spec)
        wanted = -(-count // _BLOCK)
        held = 0 if table is None else len(table) // _BLOCK
        if wanted > held:
            blocks = [_block(number, spec) for number in range(held, wanted)]
            grown = [torch.from_numpy(block).to(self._device) for block in blocks]
            table = torch.cat(grown if table is None else [table, *grown])
            self._tables[spec] = table
        assert table is not None, "a step has a position"
        return table


def _block(number: int, spec: RopeSpec) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Cosines and sines (_BLOCK, 2, dim / 2) of a block of positions, from angles in float64."""
    positions = np.arange(number * _BLOCK, (number + 1) * _BLOCK)
    pair = np.arange(spec.dim // 2)
    frequency = spec.base ** (-2.0 * pair / spec.dim) / np.array(spec.factors or 1.0)
    angle = (positions + spec.offset)[:, None] * frequency
    scale = spec.scales(positions)[:, None]
    turns = [(turn(angle) * scale).astype(np.float32) for turn in (np.cos, np.sin)]
    return np.stack(turns, axis=1)
