"""The parameters of the rows that a chain runs for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle.executors.torch.staging import sent

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from heddle.executors.torch.sampled_row import SampledRow
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

    def __init__(self, rows: Sequence[SampledRow], columns: int, device: torch.device) -> None:
        self.rows = rows
        self.columns = columns  # of the rows of logits
        self.device = device
        numbers = np.stack([np.append(row.numbers, row.uniform()) for row in rows])
        self._numbers = sent(numbers, device)

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


def numbers_of(params: SamplingParams) -> NDArray[np.float64]:
    """The numbers that samplers read on the device."""
    return np.array([rounded(params, name) for name in _NUMBERS])
