"""Decides which guesses a step computes: tokens that a drafter expects after a sequence's last one.

A step that computes k guesses of a sequence yields 1 to k + 1 of its tokens (`step.py`). Guesses
never change a result, so this module may decide by measured times. It asks two questions:

* How likely is a guess right? A drafter grades its guesses. For each grade of each drafter, a
  sequence keeps the share of right guesses. It learns from all guesses of its drafters, also from
  those that no step computed: the sampled token shows whether they were right. So a sequence whose
  guesses became good is noticed, and guesses that stay bad cost nothing.
* What does a step with k more tokens cost? The pace measures it (`pace.py`).

It then takes the number of guesses with the most expected tokens per second over all sequences of
the step. If many sequences share the step, a further token costs about as much as it yields at
best, so speculation ends by itself.

`Guesses` then gives them rows and pages. `outcomes.py` tells the drafters which were right.
"""

from __future__ import annotations

from collections import Counter
from heapq import nlargest
from itertools import chain
from typing import TYPE_CHECKING

from heddle.errors import InvalidRequestError
from heddle.scheduler.guessing import (
    FIRST_CHANCES,
    GRADES,
    Counts,
    Drafting,
    Guessing,
    KnownOutput,
    repeated,
)
from heddle.scheduler.planning import next_snapshot
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Sequence as Many

    from heddle.cache.sequence_pages import SequencePages
    from heddle.scheduler.guessing import Drafter
    from heddle.scheduler.pace import Pace
    from heddle.scheduler.sequence import Sequence

_LEAST_GAIN = 1.03
"""Least expected gain for which a step computes guesses. The estimates are not better than this."""
_MOST_DRAFTED = 8
"""Most guesses in a row of a drafter that takes time."""
_TRIAL, _RETRY = 2, 64
"""Guesses of such a drafter to try it, and after how many steps without its guesses."""
KNOWN = "known"
"""The name of the drafter of a sequence whose output another engine has computed before."""
_LEAST_CHANCE = 0.05
"""Guesses that are less likely are not considered."""


class Speculator:
    """Guesses for the sequences of a scheduler.

    Args:
        drafters: make a drafter for a sequence, by the name of the kind of drafter; None: this
            sequence can have no such drafter.
        pace: knows what steps cost.
        most: most guesses of one sequence in one step.
        default: whether to guess for requests that do not say.
        recurrent: whether right guesses before a wrong one are computed again.

    Attributes:
        counts: the guesses of all sequences.
    """

    def __init__(
        self,
        drafters: Mapping[str, Callable[[Sequence], Drafter | None]],
        pace: Pace,
        most: int,
        *,
        default: bool = True,
        recurrent: bool = False,
    ) -> None:
        self._drafters = drafters
        self._pace = pace
        self._most = most
        self._default = default
        self._recurrent = recurrent
        self._shared = {name: list(FIRST_CHANCES) for name in drafters}
        self._since_draft = 0  # steps since a drafter that takes time has guessed
        self.counts = Counts()

    def check(self, sequence: Sequence) -> None:
        """Raise InvalidRequestError if the sequence asks for a drafter that is not there."""
        asked = getattr(sequence.params, "speculation", None)
        if asked is not None and asked.drafter not in {"auto", "off", *self._drafters}:
            raise InvalidRequestError(
                f"speculation names the drafter {asked.drafter!r}; this model has"
                f" {', '.join(self._drafters)}. Name one of them, auto, or off",
                param="speculation",
            )

    def guess(self, sequences: list[Sequence], rows: int) -> dict[int, Many[int]]:
        """The guesses of the next step, by sequence id: for sequences that decode, at most `rows`.

        A sequence gets no guesses at or beyond its limit: nothing is sampled there.
        """
        asked: dict[int, Many[int]] = {}
        free: list[tuple[Sequence, Drafting]] = []
        for sequence in sequences:
            most = min(self._most, rows, sequence.limit - len(sequence.tokens) - 1)
            if most <= 0:
                continue
            guessing = sequence.guessing or self._begin(sequence)
            if not guessing.draftings:
                continue
            self._look(guessing, sequence, most)
            if guessing.best is None:
                continue
            length = guessing.length
            if guessing.best.name == KNOWN:  # certain, like the tokens of a prompt
                length = self._pace.allowance(len(sequences))
            if length is None:
                free.append((sequence, guessing.best))
            else:
                asked[sequence.id] = guesses = guessing.best.guesses[:length]
                rows -= len(guesses)
        if free:
            already = sum(map(len, asked.values())) + sum(one.again for one in sequences)
            asked.update(self._that_pay(free, len(sequences), already, rows))
        return asked

    def prepare(self, sequence: Sequence) -> bool:
        """Make the drafters of a sequence before it decodes. False if it gets no guesses."""
        if sequence.driven:
            return False
        return bool((sequence.guessing or self._begin(sequence)).draftings)

    def draft_length(
        self, name: str, sequences: list[Sequence], draft_seconds: float | None
    ) -> int:
        """How many guesses a drafter that takes time should make for each of the sequences.

        `draft_seconds` is the time of one guess for all of them; None: unknown. Now and then a
        drafter whose guesses do not pay makes some nevertheless, or nobody would notice that they
        have become good.
        """
        lengths = [one.guessing.length for one in sequences if one.guessing is not None]
        asked = max((length for length in lengths if length is not None), default=0)
        decodes = len(sequences)
        alone = self._pace.guess_seconds(decodes, 0) if sequences else None
        if alone is None:
            return asked
        self._since_draft += 1
        if draft_seconds is None or self._since_draft > _RETRY:
            self._since_draft = 0
            return max(asked, _TRIAL)
        chances = [_chances(one, name) for one in sequences]
        best, count, tokens = _LEAST_GAIN * decodes / alone, 0, float(decodes)
        for number in range(1, _MOST_DRAFTED + 1):
            tokens += sum(likelihoods[number - 1] for likelihoods in chances)
            again = sum(repeated(one[:number]) for one in chances) if self._recurrent else 0
            steps = self._pace.guess_seconds(decodes, number * decodes + again)
            if steps is not None and tokens / (steps + number * draft_seconds) > best:
                best, count = tokens / (steps + number * draft_seconds), number
        if count:
            self._since_draft = 0
        return max(asked, count)

    def _begin(self, sequence: Sequence) -> Guessing:
        """Make the drafters of a sequence: none if it wants no guesses, and no output is known."""
        asked = sequence.params.speculation  # type: ignore[union-attr]  # only texts decode
        wanted = self._default if asked is None else not asked.off
        draftings = [
            Drafting(name, drafter, self._shared[name])
            for name, make in self._drafters.items()
            if wanted and (asked is None or asked.drafter in ("auto", name))
            if (drafter := make(sequence)) is not None
        ]
        if sequence.known:
            known = KnownOutput(sequence.prompt_tokens, sequence.known)
            draftings.append(Drafting(KNOWN, known, [1.0] * GRADES))
        length = None if asked is None else asked.length
        sequence.guessing = Guessing(draftings, length, self.counts)
        return sequence.guessing

    def _look(self, guessing: Guessing, sequence: Sequence, most: int) -> None:
        """Ask the drafters of a sequence, and choose the one whose next guess is the likeliest."""
        new = sequence.tokens[guessing.seen :]
        guessing.seen = len(sequence.tokens)
        guessing.best, likeliest = None, 0.0
        for drafting in guessing.draftings:
            drafting.drafter.append(new)
            drafting.guesses, drafting.grade = drafting.drafter.guess(most)
            chances = drafting.likelihoods(len(drafting.guesses), drafting.grade)
            if chances and chances[0] > likeliest:
                guessing.best, likeliest = drafting, chances[0]

    def _that_pay(
        self, free: list[tuple[Sequence, Drafting]], decodes: int, already: int, rows: int
    ) -> dict[int, Many[int]]:
        """The guesses with which the step yields the most tokens per second.

        `already` guesses are asked for in any case.
        """
        alone = self._pace.guess_seconds(decodes, already)
        if alone is None:
            return {}
        likelihoods = {
            sequence.id: drafting.likelihoods(len(drafting.guesses), drafting.grade)
            for sequence, drafting in free
        }
        # A guess is less likely than those before it, so the likeliest ones hold no gaps.
        chances = chain.from_iterable(
            ((likelihood, id) for likelihood in of_sequence)
            for id, of_sequence in likelihoods.items()
        )
        likeliest = nlargest(rows, (one for one in chances if one[0] >= _LEAST_CHANCE))
        best, count, tokens = _LEAST_GAIN * decodes / alone, 0, float(decodes)
        again: dict[int, float] = {}
        taken: Counter[int] = Counter()
        for number, (likelihood, id) in enumerate(likeliest, 1):
            tokens += likelihood
            if self._recurrent:
                taken[id] += 1
                again[id] = repeated(likelihoods[id][: taken[id]])
            more = already + number + sum(again.values())
            seconds = self._pace.guess_seconds(decodes, more)
            if seconds is None or (decodes > 1 and seconds > self._pace.longest_step(alone)):
                break
            if tokens / seconds > best:
                best, count = tokens / seconds, number
        counts = Counter(id for _, id in likeliest[:count])
        return {
            sequence.id: drafting.guesses[: counts[sequence.id]]
            for sequence, drafting in free
            if sequence.id in counts
        }


class Guesses:
    """The guesses in the steps of a scheduler, with rows and pages for them. Not thread-safe.

    Args:
        speculator: makes them.
        pages: provides pages for them.
        most_rows: most rows of logits in one step.

    Attributes:
        most_rows: as above.
    """

    def __init__(self, speculator: Speculator, pages: SequencePages, most_rows: int) -> None:
        self.most_rows = most_rows
        self._speculator = speculator
        self._pages = pages
        self._snapshot_every = pages.snapshot_tokens

    def choose(self, shares: list[tuple[Sequence, int]]) -> dict[int, Many[int]]:
        """The guesses of a step by sequence id, with pages for them. Only if no prompt shares it.

        No sequence is preempted for guesses: without free pages, there are fewer guesses.
        """
        if not all(sequence.generating and count for sequence, count in shares):
            return {}
        decoding = [sequence for sequence, _ in shares if not sequence.driven]
        taken = len(shares) + sum(sequence.again for sequence, _ in shares)
        guesses = self._speculator.guess(decoding, self.most_rows - taken)
        for sequence in decoding:
            if sequence.id in guesses:
                made = guesses[sequence.id]
                guesses[sequence.id] = made[: self._room(sequence, len(made))]
        return guesses

    def would_pay(self, decoding: list[Sequence]) -> bool:
        """Whether a step of these sequences would have guesses."""
        return bool(self._speculator.guess(decoding, self.most_rows))

    def _room(self, sequence: Sequence, wanted: int) -> int:
        """How many of the wanted guesses of a sequence may be computed.

        They need pages, and the state of a snapshot must not be that of a guess.
        """
        total = len(sequence.tokens)
        if self._snapshot_every:
            before = next_snapshot(sequence, self._snapshot_every) - total - 1
            wanted = max(0, min(wanted, before))
        if self._pages.grow(sequence.table, total + wanted):
            return wanted
        return len(sequence.table.pages) * PAGE_TOKENS - total


def _chances(sequence: Sequence, name: str) -> list[float]:
    """How likely the first n guesses of a drafter are all right, for n from 1."""
    if sequence.guessing is not None:
        for drafting in sequence.guessing.draftings:
            if drafting.name == name:
                return drafting.likelihoods(_MOST_DRAFTED)
    return [0.0] * _MOST_DRAFTED
