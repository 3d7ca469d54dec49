"""The samplers of the chain on a torch device, for a batch of rows that run the same samplers.

Definitions and sources are in `heddle.extensions.reference.sampler`. Each sampler computes a row
from this row alone, with the float32 operations of the native sampler and float64 sums.

No sampler reads a number on the host: that would wait for the forward pass, and the next step would
begin late. So no shape follows from logits. Where parameters bound the number of candidates (top-k,
XTC), a list has that many. Top-p, min-p, top-a, typical and top-n-sigma may keep all tokens of a
flat distribution, so they sort all tokens unless top-k runs before. With 32 rows of 152,000 tokens,
top-p alone moves about 3 GB: 0.6 in the sort, 0.4 in each of two running sums (by the Triton
kernel), the rest element by element. An H200 with 4.8 TB/s needs at least 0.65 ms for this. These
are counts; nobody has measured it. After top-k it is far less.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.extensions.torch.batch_rows import rounded
from heddle.extensions.torch.candidates import Candidates
from heddle.extensions.torch.logit_edits import dry, penalties
from heddle.extensions.torch.sums import first, log, power, prefix_sums
from heddle.parameters import MAX_INT32
from heddle.sampling_params import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.extensions.torch.batch_rows import Rows
    from heddle.extensions.torch.sampled_row import SampledRow
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
    kept = candidates.listed()
    return kept.keep((kept.logits >= floor) | (kept.rank() == 0))


def _top_k(candidates: Candidates, rows: Rows) -> Candidates:
    kept = candidates.best_first(max(row.params.top_k for row in rows.rows))
    return kept.keep(kept.rank() < rows.number("top_k"))


def _typical_p(candidates: Candidates, rows: Rows) -> Candidates:
    ordered = candidates.listed()
    weights, exponents = ordered.weights(), ordered.exponents()
    mass = ordered.sum(weights)
    weighted = ordered.sum(torch.where(weights > 0.0, weights * exponents.double(), 0.0))
    expected = (weighted / mass).float()  # log(mass) - entropy
    deviations = torch.where(ordered.alive, (exponents - expected).abs(), torch.inf)
    columns = torch.arange(deviations.shape[-1], device=rows.device)
    # The bits of floats that are not negative order like the floats.
    order = deviations.view(torch.int32).sort(dim=-1, stable=True).indices
    wanted = mass * rows.number("typical_p")
    end = first(prefix_sums(weights.gather(-1, order)) >= wanted, len(columns))
    return ordered.keep((columns <= end).new_zeros(order.shape).scatter(-1, order, columns <= end))


def _top_p(candidates: Candidates, rows: Rows) -> Candidates:
    wanted = candidates.sum(candidates.weights()) * rows.number("top_p")
    kept = candidates.listed()
    columns = torch.arange(kept.logits.shape[-1], device=rows.device)
    end = first(prefix_sums(kept.weights()) >= wanted, len(columns))
    return kept.keep((columns <= end) | (kept.rank() == 0))


def _at_least(candidates: Candidates, lowest: torch.Tensor) -> Candidates:
    """Keep candidates that weigh at least `lowest` (rows, 1), and always the best one."""
    kept = candidates.listed()
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
    shown = candidates.best_first(max(map(_most_above, compress(rows.rows, applies))))
    above = ((shown.weights() >= lowest) & shown.alive).sum(-1, keepdim=True)
    dropped = shown.rank() < (above - 1) * rows.column(applies)
    if candidates.tokens is not None:
        return shown.keep(~dropped)
    assert shown.tokens is not None, "it is a list"
    left = torch.where(dropped, -torch.inf, shown.logits)
    logits = candidates.logits.scatter(-1, shown.tokens, left)
    return Candidates(logits, None, candidates.factor)


def _most_above(row: SampledRow) -> int:
    """Most tokens whose probability may be `xtc_threshold` or more, with room for rounding."""
    threshold = rounded(row.params, "xtc_threshold")
    return MAX_INT32 if threshold * MAX_INT32 < 1 else int(1 / threshold) + 1


def _temperature(candidates: Candidates, rows: Rows) -> Candidates:
    temperature = rows.number("temperature").float().clamp(max=_HOTTEST)
    if any(row.params.dynatemp_range for row in rows.rows):
        temperature = _dynamic(candidates, rows, temperature)
    if all(_least_temperature(row.params) >= _COLDEST for row in rows.rows):
        return candidates.cool(temperature)
    cold = temperature < _COLDEST
    columns = torch.arange(candidates.logits.shape[-1], device=rows.device)
    left = candidates.keep(~cold | (columns == candidates.best()))
    return left.cool(torch.where(cold, 1.0, temperature))


def _least_temperature(params: SamplingParams) -> float:
    """A bound of the temperature that the host knows."""
    degree = np.float32(min(params.temperature, _HOTTEST))
    return float(degree - np.float32(params.dynatemp_range))


def _dynamic(candidates: Candidates, rows: Rows, degree: torch.Tensor) -> torch.Tensor:
    """Temperatures (rows, 1) by entropy, around `degree`.

    Float64 until the end: the last bits of a logarithm, which may differ between devices, change
    the float32 result about once in ten million temperatures.
    """
    weights = candidates.weights()
    exponents = candidates.exponents().double()
    count = candidates.alive.sum(-1, keepdim=True).double()
    mass = candidates.sum(weights)
    weighted = candidates.sum(torch.where(weights > 0.0, weights * exponents, 0.0))
    reach = rows.number("dynatemp_range").float()
    low, high = (degree - reach).clamp(min=0.0), degree + reach
    spread = ((log(mass) - weighted / mass) / log(count)).clamp(min=0.0)
    share = power(spread, rows.number("dynatemp_exponent"))
    found = (low.double() + (high - low).double() * share).float()
    return torch.where((reach > 0) & (count > 1) & weighted.isfinite(), found, degree)


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
