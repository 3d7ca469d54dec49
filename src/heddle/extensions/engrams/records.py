"""Records of engram tables as columns: n-grams and the tokens that followed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle.extensions.engrams.format import hashes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Entry:
    """An n-gram and the tokens that followed it.

    Attributes:
        hash: FNV-1a 64 of the n-gram, 1 for 0.
        ngram: its tokens, the oldest first; None in version 1, which has only the hash.
        followers: tokens with their frequencies, the most frequent first.
    """

    hash: int
    ngram: tuple[int, ...] | None
    followers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Records:
    """Records of n-grams of one length n.

    Attributes:
        ngrams: tokens of each n-gram, the oldest first (count, n), uint32.
        sizes: how many tokens follow each n-gram (count,), int64, at least 1.
        tokens: the tokens that follow, n-gram after n-gram (sum of sizes,), uint32.
        frequencies: how often each of them does (sum of sizes,), uint32.
    """

    ngrams: NDArray[np.uint32]
    sizes: NDArray[np.int64]
    tokens: NDArray[np.uint32]
    frequencies: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def order(self) -> int:
        """The length of the n-grams."""
        return int(self.ngrams.shape[1])

    @property
    def starts(self) -> NDArray[np.int64]:
        """The places in `tokens` at which the tokens of each record start (count,)."""
        return np.cumsum(self.sizes) - self.sizes

    def totals(self) -> NDArray[np.uint64]:
        """The sum of each record's frequencies (count,)."""
        return np.add.reduceat(self.frequencies, self.starts, dtype=np.uint64)

    def entries(self, places: Sequence[int] | None = None) -> Iterator[Entry]:
        """The records at these places, by default all, one by one."""
        places = range(len(self)) if places is None else places
        hashed, starts = hashes(self.ngrams[places]).tolist(), self.starts
        for place, hash in zip(places, hashed, strict=True):
            pairs = slice(starts[place], starts[place] + self.sizes[place])
            tokens, frequencies = self.tokens[pairs].tolist(), self.frequencies[pairs].tolist()
            followers = tuple(zip(tokens, frequencies, strict=True))
            yield Entry(hash, tuple(self.ngrams[place].tolist()), followers)

    def words(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The records as a file of version 2 has them, and where each starts, in words of 4 bytes.

        A record is the length n, the number of tokens that follow, the n-gram, then pairs of a
        token and its frequency.
        """
        lengths = 2 + self.order + 2 * self.sizes
        starts = np.cumsum(lengths) - lengths
        words = np.empty(int(lengths.sum()), np.uint32)
        words[starts] = self.order
        words[starts + 1] = self.sizes
        for place in range(self.order):
            words[starts + 2 + place] = self.ngrams[:, place]
        pairs = pair_places(starts + 2 + self.order, self.sizes)
        words[pairs] = self.tokens
        words[pairs + 1] = self.frequencies
        return words, starts

    def words_1(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The same as in version 1: the number of tokens that follow, then the pairs."""
        lengths = 1 + 2 * self.sizes
        starts = np.cumsum(lengths) - lengths
        words = np.empty(int(lengths.sum()), np.uint32)
        words[starts] = self.sizes
        pairs = pair_places(starts + 1, self.sizes)
        words[pairs] = self.tokens
        words[pairs + 1] = self.frequencies
        return words, starts


def pair_places(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places of pairs, two words each, in records whose pairs begin at `starts`."""
    return np.repeat(starts, sizes) + 2 * rank_in_group(sizes)


def rank_in_group(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ... in each group of `sizes` elements (sum of sizes,)."""
    starts = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
