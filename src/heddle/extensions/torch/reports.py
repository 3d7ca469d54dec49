"""Log probabilities of candidates: the device measures sums, and the host takes logarithms.

A device may round a logarithm by the place of its row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.extensions.torch.sums import padded_width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.extensions.torch.candidates import Candidates

    Report = tuple[float, list[tuple[int, float]]]

FIELDS = 4
"""Columns of measures before the likeliest tokens."""


def padded(logits: torch.Tensor) -> torch.Tensor:
    """Rows of logits (rows, vocabulary), with columns that are no candidates behind them."""
    rows = logits.new_full((len(logits), padded_width(logits.shape[-1])), -torch.inf)
    rows[:, : logits.shape[-1]] = logits
    return rows


def measured(candidates: Candidates, column: torch.Tensor, count: int) -> torch.Tensor:
    """Measure what the log probabilities of a column (rows, 1) and of the likeliest tokens need.

    Returns:
        The column's logit, and peak, factor and mass of the candidates, then `count` pairs of a
        token and its logit: (rows, `FIELDS` + 2 * count) float64.
    """
    mass = candidates.sum(candidates.weights())
    values = [candidates.logits.gather(-1, column), candidates.peak(), candidates.factor]
    measures = torch.cat([*(one.double() for one in values), mass], -1)
    if not count:
        return measures
    best = candidates.best_first(count)
    assert best.tokens is not None, "it is a list"
    pairs = torch.stack([best.tokens.double(), best.logits.double()], -1)
    # A list may begin with tokens that a sampler removed.
    removed = (best.logits == -torch.inf).long().cumprod(-1).sum(-1, keepdim=True)
    columns = removed + torch.arange(count, device=removed.device)
    at = columns.clamp(max=pairs.shape[1] - 1).unsqueeze(-1).expand(-1, -1, 2)
    return torch.cat([measures, pairs.gather(1, at).flatten(1)], -1)


def raw_report(values: Sequence[float], count: int) -> Report:
    """Log probabilities under the model's raw distribution, rounded as in the native sampler."""
    logit, peak, _, mass = values[:FIELDS]
    normaliser = np.float32(peak + math.log(mass))
    return _report(logit, _pairs(values, count), lambda logit: np.float32(logit) - normaliser)


def chain_report(values: Sequence[float], count: int) -> Report:
    """Log probabilities among the candidates that the chain left."""
    logit, peak, factor, mass = values[:FIELDS]
    log_mass = math.log(mass)
    return _report(
        logit, _pairs(values, count), lambda logit: np.float32((logit - peak) * factor - log_mass)
    )


def _report(
    logit: float, pairs: Sequence[tuple[int, float]], logprob: Callable[[float], np.float32]
) -> Report:
    return float(logprob(logit)), [(token, float(logprob(logit))) for token, logit in pairs]


def _pairs(values: Sequence[float], count: int) -> list[tuple[int, float]]:
    """The likeliest tokens and their logits, best first, at most `count`."""
    tokens, logits = values[FIELDS::2], values[FIELDS + 1 :: 2]
    pairs = list(zip(tokens, logits, strict=True))[:count]
    return [(int(token), logit) for token, logit in pairs if logit > -math.inf]
