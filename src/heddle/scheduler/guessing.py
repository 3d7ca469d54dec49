"""The drafters of one sequence, and how often their guesses were right."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

GRADES = 16
"""Number of grades of guesses."""

_OWN_WEIGHT, _SHARED_WEIGHT = 1 / 8, 1 / 64
"""Weight of the newest guess in the share of right guesses, of a sequence and of all."""
FIRST_CHANCES = tuple(0.4 + 0.035 * grade for grade in range(GRADES))
"""Share of right guesses of each grade, before any was seen: 0.4 to 0.925."""


class Drafter(Protocol):
    """Guesses the next tokens of one sequence."""

    def append(self, tokens: Many[int]) -> None:
        """The sequence continues with `tokens`; first its prompt."""
        ...

    def guess(self, most: int) -> tuple[Many[int], int]:
        """Up to `most` guesses, and the grade of the first, from 0 to GRADES - 1.

        Each guess counts as one grade better than the guess before it, because that guess is then
        known to be right.
        """
        ...


class KnownOutput:
    """Guesses the output that another engine has computed for the same request; see `Drafter`."""

    def __init__(self, prompt_tokens: int, output: Many[int]) -> None:
        self._next = -prompt_tokens  # index of the next token of the output
        self._output = output

    def append(self, tokens: Many[int]) -> None:
        """The text continues with `tokens`. After a wrong guess, there are no more."""
        begin, self._next = max(self._next, 0), self._next + len(tokens)
        if self._next > 0:
            new = tokens[len(tokens) - (self._next - begin) :]
            if list(new) != list(self._output[begin : self._next]):
                self._output = ()

    def guess(self, most: int) -> tuple[Many[int], int]:
        """Up to `most` tokens that follow."""
        return self._output[self._next : self._next + most], GRADES - 1


@dataclass(slots=True)
class Drafting:
    """A drafter of one sequence, its last guesses, and how often guesses were right, by grade."""

    name: str
    drafter: Drafter
    shared: list[float]
    chances: list[float | None] = field(default_factory=lambda: [None] * GRADES)
    guesses: Many[int] = ()
    grade: int = 0

    def likelihoods(self, count: int, grade: int = 0) -> list[float]:
        """The likelihood of each of `count` guesses that it and all guesses before it are right.

        `grade` is that of the first guess.
        """
        chances = (self._chance(grade + index) for index in range(count))
        return list(accumulate(chances, mul))

    def _chance(self, grade: int) -> float:
        grade = min(grade, GRADES - 1)
        own = self.chances[grade]
        return self.shared[grade] if own is None else own

    def learn(self, tokens: Many[int]) -> None:
        """Compare the guesses with the tokens that were sampled. Guesses count once."""
        for index, (guess, token) in enumerate(zip(self.guesses, tokens, strict=False)):
            grade, right = min(self.grade + index, GRADES - 1), float(guess == token)
            own = self._chance(grade)
            self.chances[grade] = own + _OWN_WEIGHT * (right - own)
            self.shared[grade] += _SHARED_WEIGHT * (right - self.shared[grade])
            if guess != token:
                break
        self.guesses = ()


def repeated(likelihoods: Many[float]) -> float:
    """Expected number of right guesses that a recurrent model computes again (`Sequence.again`).

    `likelihoods` says for each guess how likely it and all before it are right. If a of k guesses
    are right and a < k, the next step computes these a again.
    """
    *first, last = likelihoods
    return sum(first) - len(first) * last


@dataclass(slots=True)
class Counts:
    """Guesses that steps computed, and how many of them were right."""

    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Guessing:
    """The state of speculation for a sequence.

    Attributes:
        draftings: its drafters.
        length: number of guesses that its request asks for; None: as many as pay.
        seen: number of its tokens that the drafters know.
        best: the drafter whose guesses count in the step being planned; None if there is none.
        counts: the guesses of the sequence.
        all_counts: the guesses of all sequences.
    """

    draftings: list[Drafting]
    length: int | None
    all_counts: Counts
    seen: int = 0
    best: Drafting | None = None
    counts: Counts = field(default_factory=Counts)

    def learn(self, tokens: Many[int], computed: int) -> None:
        """Note the sampled tokens of a step that computed this many guesses."""
        for drafting in self.draftings:
            if drafting.guesses:
                drafting.learn(tokens)
        if computed:
            accepted = min(computed, len(tokens) - 1)
            for counts in (self.counts, self.all_counts):
                counts.drafted += computed
                counts.accepted += accepted
