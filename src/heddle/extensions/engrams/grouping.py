"""Groups rows, one for each pair of an n-gram and a token, into records, one for each n-gram."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle.extensions.engrams.format import LARGEST_FREQUENCY
from heddle.extensions.engrams.records import Records, rank_in_group
from heddle.extensions.engrams.rows import group_starts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from heddle.extensions.engrams.rows import Packing, Rows


@dataclass(frozen=True, slots=True)
class Keep:
    """The n-grams and tokens that stay in a table.

    Attributes:
        min_count: n-grams seen less often than this are dropped.
        top: tokens kept after each n-gram, the most frequent ones; None: all.
    """

    min_count: int = 1
    top: int | None = None


def records_of(rows: Iterator[Rows], packing: Packing, keep: Keep) -> Iterator[Records]:
    """The records of ordered rows. Frequencies above 2^32 - 1 become 2^32 - 1."""
    held: Rows | None = None
    for block in rows:
        known = block if held is None else np.concatenate([held, block])
        tokens = packing.unpack(known)
        starts = group_starts(tokens[:, :-1])
        # The last n-gram may go on in the next block.
        whole, held = int(starts[-1]), known[starts[-1] :]
        if whole:
            yield from _grouped(tokens[:whole], known[:whole, -1], keep)
    if held is not None:
        yield from _grouped(packing.unpack(held), held[:, -1], keep)


def _grouped(
    tokens: NDArray[np.uint32], counts: NDArray[np.uint64], keep: Keep
) -> Iterator[Records]:
    """The records of these rows, none if all are dropped. `tokens`: n-grams and what follows."""
    starts = group_starts(tokens[:, :-1])
    sizes = np.diff(starts, append=len(tokens))
    groups = np.repeat(np.arange(len(starts)), sizes)
    falling = np.lexsort((tokens[:, -1], ~counts, groups))
    kept = np.add.reduceat(counts, starts) >= np.uint64(keep.min_count)
    wanted = np.repeat(kept, sizes)
    if keep.top is not None:
        wanted &= rank_in_group(sizes) < keep.top
        sizes = np.minimum(sizes, keep.top)
    if kept.any():
        chosen = falling[wanted]
        frequencies = np.minimum(counts[chosen], np.uint64(LARGEST_FREQUENCY))
        yield Records(
            tokens[starts[kept], :-1],
            sizes[kept],
            tokens[chosen, -1],
            frequencies.astype(np.uint32),
        )
