"""The samplers of the chain on a torch device, for a batch of rows that run the same samplers.

Definitions and sources are in `heddle.testing.reference_sampler`. Each sampler computes a row from
this row alone, with the float32 operations of the native sampler and float64 sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.executors.torch.batch_rows import rounded
from heddle.executors.torch.candidates import Candidates
from heddle.executors.torch.logit_edits import dry, penalties
from heddle.executors.torch.sums import first, prefix_sums
from heddle.sampling_params import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.executors.torch.batch_rows import Rows
    from heddle.sampling_params import SamplingParams

LACKING = frozenset({Stage.INFILL})
"""Samplers that the device lacks."""

_COLDEST, _HOTTEST = 1e-15, 1e15
"""Below the first temperature only the best candidate stays. The second is the highest."""


def chain_of(params: SamplingParams) -> tuple[Stage, ...]:
    """The samplers that have an effect with these parameters, in their order.

    The parameters ask for no sampler of `LACKING`.
    """
    wanted = [stage for stage in params.samplers if stage not in LACKING]
    return tuple(stage for stage in wanted if _STAGES[stage].runs(params))


def apply(stage: Stage, candidates: Candidates, rows: Rows) -> Candidates:
    """Run a sampler that `chain_of` named."""
    return _STAGES[stage].apply(candidates, rows)


# --- the samplers --------------------------------------------------------------------------------


def _top_n_sigma(candidates: Candidates, rows: Rows) -> Candidates:
    alive = candidates.alive
    count = alive.sum(-1, keepdim=True)
    peak = candidates.peak().double()
    distance = torch.where(alive, candidates.logits.double() - peak, 0.0)
    mean = candidates.sum(distance) / count
    squares = candidates.sum(torch.where(alive, (distance - mean) * (distance - mean), 0.0))
    deviations = rows.number("top_n_sigma") * (squares / count).sqrt()
    floor = (peak - deviations).float()
    kept = candidates.listed(lambda some: some.logits[:, -1:] < floor)
    return kept.keep((kept.logits >= floor) | (kept.rank() == 0))


def _top_k(candidates: Candidates, rows: Rows) -> Candidates:
    kept = candidates.best_first(max(row.params.top_k for row in rows.rows))
    return kept.keep(kept.rank() < rows.number("top_k"))


def _typical_p(candidates: Candidates, rows: Rows) -> Candidates:
    ordered = candidates.best_first(candidates.logits.shape[-1])
    weights, exponents = ordered.weights(), ordered.exponents()
    mass = ordered.sum(weights)
    weighted = torch.where(weights > 0.0, weights * exponents.double(), 0.0)
    expected = (ordered.sum(weighted) / mass).float()  # log(mass) - entropy
    deviations = torch.where(ordered.alive, (exponents - expected).abs(), torch.inf)
    columns = torch.arange(deviations.shape[-1], device=rows.device)
    # The bits of floats that are not negative order like the floats. No two keys are equal.
    order = ((deviations.view(torch.int32).long() << 32) | columns).argsort(-1)
    wanted = mass * rows.number("typical_p")
    end = first(prefix_sums(weights.gather(-1, order)) >= wanted, len(columns))
    return ordered.keep((columns <= end).new_zeros(order.shape).scatter(-1, order, columns <= end))


def _top_p(candidates: Candidates, rows: Rows) -> Candidates:
    wanted = candidates.sum(candidates.weights()) * rows.number("top_p")

    def reached(some: Candidates) -> torch.Tensor:
        return prefix_sums(some.weights()) >= wanted

    kept = candidates.listed(lambda some: reached(some).any(-1, keepdim=True))
    end = first(reached(kept), kept.logits.shape[-1])
    columns = torch.arange(kept.logits.shape[-1], device=rows.device)
    return kept.keep((columns <= end) | (kept.rank() == 0))


def _at_least(candidates: Candidates, lowest: torch.Tensor) -> Candidates:
    """Keep candidates that weigh at least `lowest` (rows, 1), and always the best one."""
    kept = candidates.listed(lambda some: some.weights()[:, -1:] < lowest)
    return kept.keep((kept.weights() >= lowest) | (kept.rank() == 0))


def _min_p(candidates: Candidates, rows: Rows) -> Candidates:
    return _at_least(candidates, rows.number("min_p"))


def _top_a(candidates: Candidates, rows: Rows) -> Candidates:
    mass = candidates.sum(candidates.weights())
    return _at_least(candidates, rows.number("top_a") / mass)


def _xtc(candidates: Candidates, rows: Rows) -> Candidates:
    """The candidates stay in the order of tokens if they were."""
    applies = [row.uniform(1) < rounded(row.params, "xtc_probability") for row in rows.rows]
    if not any(applies):
        return candidates
    lowest = candidates.sum(candidates.weights()) * rows.number("xtc_threshold")
    shown = candidates.listed(lambda some: some.weights()[:, -1:] < lowest)
    above = ((shown.weights() >= lowest) & shown.alive).sum(-1, keepdim=True)
    dropped = shown.rank() < (above - 1) * rows.column(applies)
    if candidates.tokens is not None:
        return shown.keep(~dropped)
    assert shown.tokens is not None, "it is a list"
    left = torch.where(dropped, -torch.inf, shown.logits)
    logits = candidates.logits.scatter(-1, shown.tokens, left)
    return Candidates(logits, None, candidates.factor)


def _temperature(candidates: Candidates, rows: Rows) -> Candidates:
    degrees = [np.float32(min(row.params.temperature, _HOTTEST)) for row in rows.rows]
    if any(row.params.dynatemp_range for row in rows.rows):
        degrees = _dynamic(candidates, rows, degrees)
    temperature = rows.column([float(degree) for degree in degrees]).float()
    if min(degrees) >= _COLDEST:
        return candidates.cool(temperature)
    cold = temperature < _COLDEST
    columns = torch.arange(candidates.logits.shape[-1], device=rows.device)
    left = candidates.keep(~cold | (columns == candidates.best()))
    return left.cool(torch.where(cold, 1.0, temperature))


def _dynamic(candidates: Candidates, rows: Rows, degrees: Sequence[np.float32]) -> list[np.float32]:
    """Temperatures by entropy. The host computes logarithms and powers: a device may round these
    by the place of a row."""
    weights = candidates.weights()
    exponents = candidates.exponents().double()
    sums = [
        candidates.alive.sum(-1, keepdim=True).double(),
        candidates.sum(weights),
        candidates.sum(torch.where(weights > 0.0, weights * exponents, 0.0)),
    ]
    found = []
    for row, degree, (left, mass, weighted) in zip(
        rows.rows, degrees, torch.cat(sums, -1).tolist(), strict=True
    ):
        reach = np.float32(row.params.dynatemp_range)
        if reach == 0 or left <= 1 or not math.isfinite(weighted):
            found.append(degree)
            continue
        low, high = max(np.float32(0), degree - reach), degree + reach
        spread = max(0.0, (math.log(mass) - weighted / mass) / math.log(left))
        share = spread ** float(np.float32(row.params.dynatemp_exponent))
        found.append(np.float32(float(low) + float(high - low) * share))
    return found


@dataclass(frozen=True)
class _Stage:
    """A row of the table of samplers.

    Attributes:
        apply: the sampler.
        is_asked: whether parameters, rounded to float32, ask for it.
        is_greedy: whether it also runs at temperature 0.
    """

    apply: Callable[[Candidates, Rows], Candidates]
    is_asked: Callable[[SamplingParams], bool]
    is_greedy: bool = False

    def runs(self, params: SamplingParams) -> bool:
        return (self.is_greedy or params.temperature > 0) and self.is_asked(params)


def _penalises(params: SamplingParams) -> bool:
    repeats = rounded(params, "repetition_penalty") != 1 and params.repeat_last_n != 0
    others = rounded(params, "presence_penalty"), rounded(params, "frequency_penalty")
    return repeats or others != (0, 0)


def _repels(params: SamplingParams) -> bool:
    return rounded(params, "dry_multiplier") > 0 and params.dry_penalty_last_n != 0


def _cools(params: SamplingParams) -> bool:
    return rounded(params, "temperature") != 1 or rounded(params, "dynatemp_range") > 0


_STAGES = {
    Stage.PENALTIES: _Stage(penalties, _penalises, is_greedy=True),
    Stage.DRY: _Stage(dry, _repels, is_greedy=True),
    Stage.TOP_N_SIGMA: _Stage(_top_n_sigma, lambda p: rounded(p, "top_n_sigma") > 0),
    Stage.TOP_K: _Stage(_top_k, lambda p: p.top_k > 0),
    Stage.TYPICAL_P: _Stage(_typical_p, lambda p: rounded(p, "typical_p") < 1),
    Stage.TOP_P: _Stage(_top_p, lambda p: rounded(p, "top_p") < 1),
    Stage.MIN_P: _Stage(_min_p, lambda p: rounded(p, "min_p") > 0),
    Stage.TOP_A: _Stage(_top_a, lambda p: rounded(p, "top_a") > 0),
    Stage.XTC: _Stage(_xtc, lambda p: rounded(p, "xtc_probability") > 0),
    Stage.TEMPERATURE: _Stage(_temperature, _cools),
}
