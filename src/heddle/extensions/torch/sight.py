"""What the tokens of a step see of pictures, as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle.extensions.torch.staging import sent

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from heddle.step import Chunk

    Runs = Sequence[tuple[slice, Chunk]]


@dataclass(frozen=True, slots=True, eq=False)
class StepSight:
    """The sight of a step of T tokens, of which at least one chunk sees pictures.

    Attributes:
        rows: rows (n, columns) of pictures, and the tokens in whose places they stand.
        places: (padded T, axes) int64, what rotations of several axes turn by; None: the positions.
        last_place: the largest of the places.
        seen: (padded T, kinds, 2) int64, the positions [begin, end) of each token's runs; None:
            each token is a run.
    """

    rows: tuple[tuple[slice, torch.Tensor], ...]
    places: torch.Tensor | None
    last_place: int
    seen: torch.Tensor | None

    @classmethod
    def of(cls, runs: Runs, tokens: int, device: torch.device) -> StepSight | None:
        """The sight of chunks with these rows, padded to so many tokens; None: there is none."""
        if all(chunk.sight is None for _, chunk in runs):
            return None
        places, seen = _places(runs, tokens), _seen(runs, tokens)
        return cls(
            tuple(_rows(runs, device)),
            None if places is None else sent(places, device),
            0 if places is None else int(places.max()),
            None if seen is None else sent(seen, device),
        )

    @property
    def joint(self) -> torch.Tensor:
        """(padded T,) whether a token is in a run of several, of the first kind."""
        assert self.seen is not None, "there are runs"
        return self.seen[:, 0, 1] - self.seen[:, 0, 0] > 1

    def within(self, kind: int, queries: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Whether queries see positions because both are in one run of a kind, from 1 on.

        `queries` (A, n) are tokens, `seen` (S,) positions. The result is (A, S, n).
        """
        assert self.seen is not None, "there are runs"
        begin, end = self.seen[:, kind - 1][queries][:, None].unbind(-1)
        return (seen[None, :, None] >= begin) & (seen[None, :, None] < end)


def _rows(runs: Runs, device: torch.device) -> list[tuple[slice, torch.Tensor]]:
    """The rows of pictures."""
    found = []
    for rows, chunk in runs:
        for first, values in () if chunk.sight is None else chunk.sight.rows:
            begin = rows.start + first
            made = np.array(values, np.float32)  # a copy: torch takes no array that is read-only
            found.append((slice(begin, begin + len(values)), sent(made, device)))
    return found


def _places(runs: Runs, tokens: int) -> NDArray[np.int64] | None:
    """Places of all tokens: positions where a chunk has no others."""
    given = [one.sight.places for _, one in runs if one.sight is not None]
    axes = max((one.shape[1] for one in given if one is not None), default=0)
    if not axes:
        return None
    places = np.zeros((tokens, axes), np.int64)
    for rows, chunk in runs:
        positions = np.arange(chunk.start, chunk.start + len(chunk.tokens))[:, None]
        own = None if chunk.sight is None else chunk.sight.places
        places[rows] = positions if own is None else own
    return places


def _seen(runs: Runs, tokens: int) -> NDArray[np.int64] | None:
    """Runs of all tokens: each its own where a chunk has no others."""
    given = [one.sight.runs for _, one in runs if one.sight is not None]
    kinds = max((one.shape[1] for one in given if one is not None), default=0)
    if not kinds:
        return None
    seen = np.zeros((tokens, kinds, 2), np.int64)
    for rows, chunk in runs:
        positions = np.arange(chunk.start, chunk.start + len(chunk.tokens))
        own = None if chunk.sight is None else chunk.sight.runs
        alone = np.stack([positions, positions + 1], axis=-1)[:, None]
        seen[rows] = alone if own is None else own
    return seen
