"""The samplers that change logits of single tokens, on a torch device: penalties and DRY.

Definitions and sources are in `heddle.extensions.reference.sampler`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.extensions.torch.candidates import in_range
from heddle.extensions.torch.staging import sent
from heddle.step import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.extensions.torch.batch_rows import Rows
    from heddle.extensions.torch.candidates import Candidates

    At = Callable[[torch.Tensor], torch.Tensor]
    Change = Callable[[torch.Tensor, torch.Tensor, At], torch.Tensor]


def penalties(candidates: Candidates, rows: Rows) -> Candidates:
    """Penalise the tokens of each row's sequence by their counts."""
    counts = [row.counts for row in rows.rows]
    row = _row_of_each([one.shape[-1] for one in counts], rows)
    table = sent(np.concatenate(counts, -1), rows.device)
    unknown = rows.unknown_tokens()
    token, output, recent = table if unknown is None else _with_unknown(table, row, unknown)
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


def _with_unknown(table: torch.Tensor, row: torch.Tensor, unknown: torch.Tensor) -> torch.Tensor:
    """A table of tokens and counts (3, n) with the unknown token of each row (rows,).

    If a row has this token twice, both get the sum, so that their logits get the same value.
    """
    own = unknown[row]
    token, counts = torch.where(table[0] == UNKNOWN, own, table[0]), table[1:]
    is_own = token == own
    sums = counts.new_zeros(2, len(unknown)).index_add(1, row, torch.where(is_own, counts, 0))
    return torch.cat([token.unsqueeze(0), torch.where(is_own, sums[:, row], counts)])


def dry(candidates: Candidates, rows: Rows) -> Candidates:
    """Subtract each row's penalties of tokens that would continue a repetition."""
    repeats = [row.repeats for row in rows.rows]
    numbers = np.repeat(np.arange(len(repeats)), [len(tokens) for tokens, *_ in repeats])
    tokens, penalties, after = (np.concatenate(column) for column in zip(*repeats, strict=True))
    cells, places = np.unique(numbers * rows.columns + tokens, return_inverse=True)
    row, token = sent(np.stack(np.divmod(cells, rows.columns)), rows.device)
    penalty, unknown = sent(penalties, rows.device), rows.unknown_tokens()
    if unknown is not None:
        condition = sent(after, rows.device)
        holds = (condition == UNKNOWN) | (condition == unknown[sent(numbers, rows.device)])
        penalty = torch.where(holds, penalty, 0.0)
    # Of a token at most one penalty is not 0.
    subtracted = penalty.new_zeros(len(cells)).index_add(0, sent(places, rows.device), penalty)

    def change(scaled: torch.Tensor, entry: torch.Tensor, _: At) -> torch.Tensor:
        return scaled - subtracted[entry]

    return _edited(candidates, rows, row, token, change, applies=subtracted > 0)


def _row_of_each(lengths: Sequence[int], rows: Rows) -> torch.Tensor:
    """The row of each entry, if each row has so many entries."""
    return sent(np.repeat(np.arange(len(lengths)), lengths), rows.device)


def _edited(
    candidates: Candidates,
    rows: Rows,
    row: torch.Tensor,
    token: torch.Tensor,
    change: Change,
    applies: torch.Tensor | None = None,
) -> Candidates:
    """The candidates with other logits for some tokens of some rows: the entries (n,).

    Entries of the same token have the same result. Those with false in `applies` (n,) change
    nothing. `change` gets logits that include the temperature so far, the entries of their tokens,
    and a function from a tensor (rows, 1) to the values at these logits. It returns the new logits.
    """
    if not len(row):
        return candidates
    logits, factor = candidates.logits, candidates.factor
    if candidates.tokens is None:
        entry = torch.arange(len(row), device=rows.device)
        own, before = factor[row, 0], logits[row, token]
        changed = in_range(change(before * own, entry, lambda one: one[row, 0]) / own)
        if applies is not None:
            changed = torch.where(applies, changed, before)
        return candidates.edit(logits.index_put((row, token), changed))
    entries = torch.full((len(logits), rows.columns), -1, device=rows.device)
    entries[row, token] = torch.arange(len(row), device=rows.device)
    entry = entries.gather(-1, candidates.tokens)
    changed = in_range(change(logits * factor, entry, lambda one: one) / factor)
    is_edited = entry >= 0 if applies is None else (entry >= 0) & applies[entry]
    return candidates.edit(torch.where(is_edited, changed, logits))
