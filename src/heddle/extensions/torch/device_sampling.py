"""Chooses tokens on a torch device: only tokens and log probabilities come to the host.

The chain runs for many rows at once, but a row's result depends on the row alone. Random numbers
and the parameters of rows come from the host (`slot_history.py`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.extensions.torch.batch_rows import Rows, unknown_tokens
from heddle.extensions.torch.candidates import Candidates, in_range
from heddle.extensions.torch.chain import apply
from heddle.extensions.torch.reports import (
    FIELDS,
    chain_report,
    measured,
    padded,
    raw_report,
)
from heddle.extensions.torch.staging import Fetched, sent
from heddle.extensions.torch.sums import BLOCK, prefix_sums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle._native import Pick
    from heddle.extensions.torch.sampled_row import SampledRow
    from heddle.sampling_params import SamplingParams, Stage
    from heddle.token_rules import TokenRules

_NOT_FINITE, _NOTHING_LEFT = -1, -2
"""In place of a token, as in the native sampler."""

_MOST_LOGITS = 5_000_000
"""Most logits of a batch: 32 rows of a vocabulary of 152,000."""

_BYTES_OF_LOGIT = 100
"""Bytes that a batch takes for each logit: 36 to draw among all tokens, 42 for top-k, 50 for top-p,
70 for all samplers. Measured on a processor, with a vocabulary of 152,000; a GPU's sort takes
some more."""


def runs_here(params: SamplingParams, rules: TokenRules) -> bool:
    """Whether the device has all samplers of a request.

    It lacks mirostat, whose bound follows from the token before, `infill`, which compares texts,
    and the biases of logits processors, which the host makes.
    """
    return not params.mirostat and rules.pieces is None and not rules.processors


def prepare(device: torch.device) -> None:
    """Compile the kernel of the samplers, so that no step waits for the compiler."""
    prefix_sums(torch.zeros(1, BLOCK, dtype=torch.float64, device=device))


class DevicePicks:
    """Tokens that the device was asked to choose, one for each row of logits.

    Attributes:
        tokens: (rows,) int64 on the device; any known token where none could be chosen.
    """

    def __init__(
        self, logits: torch.Tensor, rows: Sequence[SampledRow], latest: torch.Tensor
    ) -> None:
        """Ask for a token for each row of logits (rows, vocabulary) float32.

        `latest` (slots,) int64 has the token that each slot sampled last.
        """
        most = _rows_of_batch(logits.shape[-1])
        self._batches = [
            _Batch(logits[begin : begin + most], rows[begin : begin + most], latest)
            for begin in range(0, len(rows), most)
        ]
        self.tokens = torch.cat([batch.tokens for batch in self._batches])

    def read(self) -> list[Pick]:
        """Wait for the device.

        Returns:
            For each row the token, its logprob, and the likeliest tokens with theirs. The token is
            -1 if a logit is NaN or infinite, and -2 if all tokens are forbidden.
        """
        return [pick for batch in self._batches for pick in batch.read()]


def sampling_bytes(rows: int, vocabulary: int) -> int:
    """Bytes on the device that a step takes for sampling after `rows` tokens."""
    batch = min(rows, _rows_of_batch(vocabulary)) * vocabulary
    return 2 * rows * vocabulary * 4 + batch * _BYTES_OF_LOGIT  # the logits, twice


def _rows_of_batch(vocabulary: int) -> int:
    return max(1, _MOST_LOGITS // max(1, vocabulary))


class _Batch:
    """A batch of rows, and the results on the device."""

    def __init__(
        self, logits: torch.Tensor, rows: Sequence[SampledRow], latest: torch.Tensor
    ) -> None:
        self._rows = rows
        self._device = logits.device
        self._latest = latest
        self._raw = padded(logits)
        self._edited = _forbid_late(_allow(_bias(self._raw, rows), rows), rows, latest)
        finite = logits.isfinite().all(-1)
        left = (self._edited > -torch.inf).any(-1)
        failures = torch.where(finite, torch.where(left, 0, _NOTHING_LEFT), _NOT_FINITE)
        most = max((row.params.logprobs or 0 for row in rows), default=0)
        self._count = min(most, logits.shape[-1])
        # A failure, the token, and the measures of its report.
        width = 2 + FIELDS + 2 * self._count
        self._results = torch.zeros(len(rows), width, dtype=torch.float64, device=self._device)
        self._results[:, 0] = failures.double()
        self._run_chains()

    @property
    def tokens(self) -> torch.Tensor:
        """See `DevicePicks.tokens`."""
        return self._results[:, 1].long()

    def read(self) -> list[Pick]:
        """See `DevicePicks.read`."""
        fetched = self._fetched.read().tolist()
        return [_pick_of(row, values) for row, values in zip(self._rows, fetched, strict=True)]

    def _run_chains(self) -> None:
        groups = defaultdict(list)
        for place, row in enumerate(self._rows):
            groups[row.chain, row.params.temperature == 0, _report(row.params)].append(place)
        for (chain, greedy, report), places in groups.items():
            self._run(chain, places, greedy=greedy, report=report)
        self._fetched = Fetched(self._results)

    def _run(
        self, chain: Sequence[Stage], places: Sequence[int], *, greedy: bool, report: str
    ) -> None:
        """Run a chain for the rows at some places."""
        at = sent(np.array(places), self._device)
        rows = Rows([self._rows[place] for place in places], self._raw.shape[-1], self._latest)
        candidates = Candidates(self._edited[at])
        for stage in chain:
            candidates = apply(stage, candidates, rows)
        column = candidates.best() if greedy else candidates.draw(rows.uniform())
        token = candidates.tokens_at(column)
        self._results[at, 1] = token[:, 0].double()
        if report == "raw":
            self._results[at, 2:] = measured(Candidates(self._raw[at]), token, self._count)
        elif report == "chain" and not greedy:
            self._results[at, 2:] = measured(candidates, column, self._count)


def _report(params: SamplingParams) -> str:
    if params.logprobs is None:
        return ""
    return "chain" if params.post_sampling_probs else "raw"


def _bias(logits: torch.Tensor, rows: Sequence[SampledRow]) -> torch.Tensor:
    """Logits with each row's biases."""
    for biases in zip_longest(*(row.biases for row in rows)):
        given = [(place, bias) for place, bias in enumerate(biases) if bias and len(bias[0])]
        if not given:
            continue
        places = np.repeat([place for place, _ in given], [len(bias[0]) for _, bias in given])
        row, token, values = (
            sent(column, logits.device)
            for column in (
                places,
                np.concatenate([tokens for _, (tokens, _) in given]),
                np.concatenate([values for _, (_, values) in given]),
            )
        )
        logits = logits.index_put((row, token), in_range(logits[row, token] + values))
    return logits


def _allow(logits: torch.Tensor, rows: Sequence[SampledRow]) -> torch.Tensor:
    """Logits of minus infinity where a row does not allow the token."""
    masked = [place for place, row in enumerate(rows) if row.allowed is not None]
    if not masked:
        return logits
    bits = np.zeros((len(masked), logits.shape[-1] // 8), np.uint8)
    for i, place in enumerate(masked):
        allowed = rows[place].allowed
        assert allowed is not None, "only rows with a mask are here"
        bits[i, : len(allowed)] = allowed
    masks = sent(bits, logits.device)
    shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
    flags = (masks.unsqueeze(-1) >> shifts & 1).flatten(1).bool()
    at = sent(np.array(masked), logits.device)
    return logits.index_put((at,), torch.where(flags, logits[at], -torch.inf))


def _forbid_late(
    logits: torch.Tensor, rows: Sequence[SampledRow], latest: torch.Tensor
) -> torch.Tensor:
    """Logits of minus infinity where an unknown token before forbids the token."""
    numbers = np.repeat(np.arange(len(rows)), [row.late_bans.shape[-1] for row in rows])
    unknown = unknown_tokens(rows, latest) if len(numbers) else None
    if unknown is None:
        return logits
    tokens, after = np.concatenate([row.late_bans for row in rows], -1)
    cells, places = np.unique(numbers * logits.shape[-1] + tokens, return_inverse=True)
    row, token = sent(np.stack(np.divmod(cells, logits.shape[-1])), logits.device)
    number, condition, place = sent(np.stack([numbers, after, places]), logits.device)
    holds = (condition == unknown[number]).long()
    is_banned = holds.new_zeros(len(cells)).index_add(0, place, holds) > 0
    values = torch.where(is_banned, -torch.inf, logits[row, token])
    return logits.index_put((row, token), values)


def _pick_of(row: SampledRow, values: Sequence[float]) -> Pick:
    """A pick from a row of results."""
    failure, token = int(values[0]), int(values[1])
    if failure:
        return failure, math.nan, []
    report, count = _report(row.params), row.params.logprobs or 0
    if not report:
        return token, math.nan, []
    if report == "raw":
        return token, *raw_report(values[2:], count)
    if row.params.temperature == 0:
        return token, 0.0, [(token, 0.0)][:count]
    return token, *chain_report(values[2:], count)
