"""Repetitions in a sequence, for the sampler DRY on the device.

Definition: `heddle.testing.repetition.repetition_lengths`.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from heddle.executors.torch.batch_rows import rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from heddle.executors.torch.sampled_row import Biases
    from heddle.sampling_params import SamplingParams
    from heddle.step import TokenSequences

    Lengths = NDArray[np.int32]

_MOST_DRY = 1e30
"""The largest penalty."""


class RepetitionState(NamedTuple):
    """What follows from the tokens so far.

    Attributes:
        tokens: the sequence (n,).
        lengths: for each place but the last, how many tokens that end there are those that end the
            sequence (n - 1,).
        breaker: where the breaker that begins last begins and ends; None: there is none.
    """

    tokens: NDArray[np.int64]
    lengths: Lengths
    breaker: tuple[int, int] | None


class Repetitions:
    """The repetitions that a token would continue.

    Attributes:
        state: never changed in place, so a caller can keep it and set it again.
    """

    def __init__(
        self, params: SamplingParams, breakers: TokenSequences | None, tokens: Sequence[int]
    ) -> None:
        self._params = params
        self._breakers = _Breakers(()) if breakers is None else _of(breakers)
        array = np.array(tokens, np.int64)
        breaker = self._breakers.latest(array, 0)
        self.state = RepetitionState(array, _suffix_lengths(tokens), breaker)

    def append(self, token: int) -> None:
        """The sequence continues with `token`."""
        before, lengths, breaker = self.state
        grown = np.append(before, token)
        continued = np.where(before == token, np.append(0, lengths)[: len(before)] + 1, 0)
        latest = self._breakers.latest(grown, max(0, len(grown) - self._breakers.longest))
        self.state = RepetitionState(grown, continued.astype(np.int32), latest or breaker)

    def penalties(self) -> Biases:
        """The tokens that DRY penalises, each once, and what to subtract from their logits."""
        params, (tokens, lengths, breaker) = self._params, self.state
        count, last = len(tokens), params.dry_penalty_last_n
        begin = 0 if last < 0 else max(0, count - last)
        limit = count - begin if breaker is None or breaker[0] < begin else count - breaker[1]
        inside = np.minimum(lengths[begin:], np.arange(1, count - begin))
        found = np.minimum(inside, limit)
        places = np.flatnonzero(found >= params.dry_allowed_length)
        places = places[np.argsort(found[places], kind="stable")]  # the longest last
        longest = dict(
            zip(tokens[begin + 1 + places].tolist(), found[places].tolist(), strict=True)
        )
        kept = [token for token in longest if token not in self._breakers.alone]
        excess = [longest[token] - params.dry_allowed_length for token in kept]
        with np.errstate(over="ignore"):
            powers = _powers(np.float32(rounded(params, "dry_base")), excess)
            penalty = np.float32(rounded(params, "dry_multiplier")) * powers
        return np.array(kept, np.int64), np.minimum(penalty, np.float32(_MOST_DRY))


class _Breakers:
    """Token sequences across which no repetition reaches.

    Attributes:
        alone: breakers of one token.
        longest: tokens of the longest breaker.
    """

    def __init__(self, sequences: Sequence[tuple[int, ...]]) -> None:
        self.alone = {sequence[0] for sequence in sequences if len(sequence) == 1}
        self.longest = max(map(len, sequences), default=0)
        self._tails: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
        for sequence in sorted(sequences, key=len, reverse=True):
            self._tails[sequence[0]].append(sequence[1:])

    def latest(self, tokens: NDArray[np.int64], first: int) -> tuple[int, int] | None:
        """Begin and end of the breaker that begins last, at `first` or later.

        If several begin there, the longest counts.
        """
        if not self._tails:
            return None
        heads = np.isin(tokens[first:], [*self._tails])
        for begin in (first + np.flatnonzero(heads))[::-1].tolist():
            for tail in self._tails[int(tokens[begin])]:
                end = begin + 1 + len(tail)
                if tuple(tokens[begin + 1 : end].tolist()) == tail:
                    return begin, end
        return None


@lru_cache(maxsize=8)
def _of(breakers: TokenSequences) -> _Breakers:
    """Made once for all requests with the same breakers (perhaps thousands)."""
    return _Breakers(breakers.sequences)


def _powers(base: np.float32, exponents: Sequence[int]) -> NDArray[np.float32]:
    """Powers as the native sampler computes them, with the C library's function for one number.

    NumPy's power of an array has vector code on some processors, which rounds otherwise.
    """
    found = {exponent: base ** np.float32(exponent) for exponent in set(exponents)}
    return np.array([found[exponent] for exponent in exponents], np.float32)


def _suffix_lengths(tokens: Sequence[int]) -> Lengths:
    """See `RepetitionState.lengths`. Read backwards, these are lengths of prefixes: the Z algorithm
    (Gusfield 1997, Algorithms on Strings, Trees and Sequences, 1.4) takes linear time."""
    back, count = [*reversed(tokens)], len(tokens)
    found, left, right = [0] * count, 0, 0
    for i in range(1, count):
        length = min(right - i, found[i - left]) if i < right else 0
        while i + length < count and back[length] == back[i + length]:
            length += 1
        found[i] = length
        if i + length > right:
            left, right = i, i + length
    return np.array(found[:0:-1], np.int32)
