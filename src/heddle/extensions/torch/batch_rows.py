"""The parameters of the rows that a chain runs for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.extensions.torch.staging import sent
from heddle.step import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from heddle.extensions.torch.sampled_row import SampledRow
    from heddle.sampling_params import SamplingParams

_NUMBERS = (
    *("repetition_penalty", "frequency_penalty", "presence_penalty", "top_n_sigma", "top_k"),
    *("typical_p", "top_p", "min_p", "top_a", "xtc_threshold"),
    *("temperature", "dynatemp_range", "dynatemp_exponent"),
)


def rounded(params: SamplingParams, name: str) -> float:
    """A number of the parameters in the native sampler's precision."""
    return float(np.float32(getattr(params, name)))


class Rows:
    """The parameters of the rows of a batch, as tensors (rows, 1)."""

    def __init__(self, rows: Sequence[SampledRow], columns: int, latest: torch.Tensor) -> None:
        """`columns` are those of the rows of logits. `latest` is as in `DevicePicks`."""
        self.rows = rows
        self.columns = columns
        self.device = latest.device
        self._latest = latest
        numbers = np.stack([np.append(row.numbers, row.uniform()) for row in rows])
        self._numbers = sent(numbers, self.device)

    def unknown_tokens(self) -> torch.Tensor | None:
        """The tokens (rows,) that only the device knows; see `unknown_tokens`."""
        return unknown_tokens(self.rows, self._latest)

    def number(self, name: str) -> torch.Tensor:
        """A number of the rows' parameters, rounded to float32, as float64."""
        column = _NUMBERS.index(name)
        return self._numbers[:, column : column + 1]

    def uniform(self) -> torch.Tensor:
        """The random numbers of the draws, float64."""
        return self._numbers[:, -1:]

    def column(self, values: Sequence[float]) -> torch.Tensor:
        """Values (rows,) as a tensor (rows, 1) float64."""
        return sent(np.array(values, np.float64), self.device).unsqueeze(-1)


def unknown_tokens(rows: Sequence[SampledRow], latest: torch.Tensor) -> torch.Tensor | None:
    """The tokens (rows,) before those of the rows that the host does not know.

    `UNKNOWN`: the host knows it. Returns None if it knows all. `latest` is as in `DevicePicks`.
    """
    slots = np.array([UNKNOWN if row.unknown_of is None else row.unknown_of for row in rows])
    if (slots == UNKNOWN).all():
        return None
    places = sent(slots, latest.device)
    return torch.where(places == UNKNOWN, UNKNOWN, latest[places.clamp(min=0)])


def numbers_of(params: SamplingParams) -> NDArray[np.float64]:
    """The numbers that samplers read on the device."""
    return np.array([rounded(params, name) for name in _NUMBERS])
