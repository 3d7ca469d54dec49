"""The budget of a step: how many tokens each running sequence gets."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING

from heddle.scheduler.planning import next_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Sequence as Many

    from heddle.scheduler.pace import Pace
    from heddle.scheduler.sequence import Sequence
    from heddle.step import Chunk


class Budget:
    """Divides the tokens of a step among sequences. Not thread-safe.

    Args:
        tokens: most tokens in one step.
        pace: limits the prompt tokens of steps that also decode; None: no limit.
        score_cost: extra cost of scoring a token, where computing a token costs 1.
        snapshot_every: tokens between snapshots of a fixed-size state; 0: there are none.
        whole_prompts: one step computes all tokens of a sequence.

    Attributes:
        tokens: most tokens in one step.
        whole_prompts: as above.
    """

    def __init__(
        self,
        tokens: int,
        pace: Pace | None,
        score_cost: float,
        snapshot_every: int,
        *,
        whole_prompts: bool,
    ) -> None:
        self.tokens = tokens
        self.whole_prompts = whole_prompts
        self._pace = pace
        self._score_cost = score_cost
        self._snapshot_every = snapshot_every

    def divide(self, running: Many[Sequence], *, shared: bool) -> list[tuple[Sequence, int]]:
        """How many new tokens each sequence gets: decodes 1 each, then prompts in order.

        Args:
            running: sequences with slots, in order.
            shared: whether several clients share a class. Then the order of prompts is that of the
                queue: a client that was served less comes first.
        """
        ready = [sequence for sequence in running if not sequence.waits]
        if shared:
            ready.sort(key=_prompt_order(running))
        decodes = sum(sequence.generating for sequence in ready)
        again = sum(sequence.again for sequence in ready)
        left = self.tokens - decodes - again
        if self._pace is not None and 0 < decodes < len(ready):
            left = min(left, self._pace.allowance(decodes))
        if left <= 0 and len(ready) + again > self.tokens:
            return self._take_turns(ready)
        shares = []
        room = beside_decodes = self.tokens - decodes - again
        for sequence in ready:
            if sequence.generating:
                shares.append((sequence, 1))
            elif left > 0:
                cost = 1.0 if sequence.prompt_logprobs is None else self._cost(sequence)
                count = min(sequence.remaining, max(1, int(left / cost)))
                if self.whole_prompts and count < sequence.remaining:
                    break  # the first sequence always fits
                if self._snapshot_every:
                    count = min(
                        count, next_snapshot(sequence, self._snapshot_every) - sequence.computed
                    )
                if sequence.pictures is not None:
                    count = sequence.pictures.cut(sequence.computed, count, room)
                    if not count and room == beside_decodes:
                        return self._alone(sequence)  # streams would shut it out for ever
                    if not count:
                        continue
                left -= math.ceil(count * cost)
                room -= count
                shares.append((sequence, count))
        return shares

    def measure(self, carried: Iterable[tuple[Sequence, Chunk]], seconds: float) -> None:
        """Tell the pace how long a step took, before its result is applied."""
        if self._pace is None:
            return
        decodes = guesses = 0
        cost = 0.0
        for sequence, chunk in carried:
            decodes += sequence.generating
            guesses += chunk.guesses + sequence.again
            each = 1.0 if sequence.prompt_logprobs is None else self._cost(sequence)
            cost += len(chunk.tokens) * each
        self._pace.observe(decodes, cost - decodes - guesses, seconds, guesses)

    def _cost(self, sequence: Sequence) -> float:
        """Cost of one of the next tokens of a sequence whose prompt is scored; else it is 1.0."""
        return 1.0 + self._score_cost if sequence.scores else 1.0

    def _take_turns(self, ready: list[Sequence]) -> list[tuple[Sequence, int]]:
        """Give one token each to the sequences whose turn it is.

        If decodes alone use up the budget, prompts take turns with them. Else they would starve.
        """
        ready = sorted(ready, key=lambda sequence: sequence.turn)
        if not _takes_one(ready[0]):
            return self._alone(ready[0])
        line = list(filter(_takes_one, ready))
        ends = accumulate(1 + sequence.again for sequence in line)
        fitting = zip(line, ends, strict=True)
        return [(sequence, 1) for sequence, end in fitting if end <= self.tokens]

    def _alone(self, sequence: Sequence) -> list[tuple[Sequence, int]]:
        """Give a step to a picture whose tokens see one another. It fits: `Scheduler.add`."""
        assert sequence.pictures is not None, "other sequences take any number of tokens"
        return [(sequence, sequence.pictures.cut(sequence.computed, 1, self.tokens))]


def _takes_one(sequence: Sequence) -> bool:
    """Whether its next token may be computed alone."""
    return sequence.pictures is None or sequence.pictures.cut(sequence.computed, 1, 1) == 1


def _prompt_order(running: Iterable[Sequence]) -> Callable[[Sequence], tuple[int, float]]:
    """The order in which prompts get tokens. A leader takes the place of its first follower."""
    lent: dict[int, float] = {}
    for sequence in running:
        if sequence.leader is not None:
            leader, service = id(sequence.leader), sequence.account.service
            lent[leader] = min(lent.get(leader, service), service)

    def order(sequence: Sequence) -> tuple[int, float]:
        service = sequence.account.service
        return sequence.priority, min(service, lent.get(id(sequence), service))

    return order
