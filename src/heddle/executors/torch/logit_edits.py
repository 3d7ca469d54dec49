"""The samplers that change logits of single tokens, on a torch device: penalties and DRY.

Definitions and sources are in `heddle.testing.reference_sampler`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.executors.torch.candidates import in_range
from heddle.executors.torch.staging import sent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.executors.torch.batch_rows import Rows
    from heddle.executors.torch.candidates import Candidates

    At = Callable[[torch.Tensor], torch.Tensor]
    Change = Callable[[torch.Tensor, torch.Tensor, At], torch.Tensor]


def penalties(candidates: Candidates, rows: Rows) -> Candidates:
    """Penalise the tokens of each row's sequence by their counts."""
    counts = [row.counts for row in rows.rows]
    row = _row_of_each([one.shape[-1] for one in counts], rows)
    token, output, recent = sent(np.concatenate(counts, -1), rows.device)
    repeated, frequent, present = (
        rows.number(name).float()
        for name in ("repetition_penalty", "frequency_penalty", "presence_penalty")
    )

    def change(scaled: torch.Tensor, entry: torch.Tensor, at: At) -> torch.Tensor:
        penalty, times = at(repeated), output[entry]
        divided = torch.where(scaled > 0, scaled / penalty, scaled * penalty)
        scaled = torch.where(recent[entry] > 0, divided, scaled) - at(frequent) * times.float()
        return torch.where(times > 0, scaled - at(present), scaled)

    return _edited(candidates, rows, row, token, change)


def dry(candidates: Candidates, rows: Rows) -> Candidates:
    """Subtract each row's penalties of tokens that would continue a repetition."""
    repeats = [row.repeats for row in rows.rows]
    row = _row_of_each([len(tokens) for tokens, _ in repeats], rows)
    token, penalty = (
        sent(np.concatenate(column), rows.device) for column in zip(*repeats, strict=True)
    )
    return _edited(candidates, rows, row, token, lambda scaled, entry, _: scaled - penalty[entry])


def _row_of_each(lengths: Sequence[int], rows: Rows) -> torch.Tensor:
    """The row of each entry, if each row has so many entries."""
    return sent(np.repeat(np.arange(len(lengths)), lengths), rows.device)


def _edited(
    candidates: Candidates, rows: Rows, row: torch.Tensor, token: torch.Tensor, change: Change
) -> Candidates:
    """The candidates with other logits for some tokens of some rows.

    `change` gets logits that include the temperature so far, the entries of their tokens, and a
    function from a tensor (rows, 1) to the values at these logits. It returns the new logits.
    """
    if not len(row):
        return candidates
    logits, factor = candidates.logits, candidates.factor
    if candidates.tokens is None:
        entry = torch.arange(len(row), device=rows.device)
        own = factor[row, 0]
        changed = change(logits[row, token] * own, entry, lambda one: one[row, 0]) / own
        return candidates.edit(logits.index_put((row, token), in_range(changed)))
    entries = torch.full((len(logits), rows.columns), -1, device=rows.device)
    entries[row, token] = torch.arange(len(row), device=rows.device)
    entry = entries.gather(-1, candidates.tokens)
    changed = in_range(change(logits * factor, entry, lambda one: one) / factor)
    return candidates.edit(torch.where(entry >= 0, changed, logits))
