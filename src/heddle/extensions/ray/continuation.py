"""An answer that another process goes on with when the first one is lost.

The tokens of a request depend on the request alone. So the process that keeps the client's
connection needs to know only the request and the tokens whose events it has sent. It sends both to
another process, which takes the known tokens as guesses: it computes many of them in one step, and
finds any that it would not have sampled itself. It writes all events again, and leaves out those of
the known tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from heddle.errors import (
    EngineClosedError,
    EngineFailedError,
    HeddleError,
    ModelUnavailableError,
    NonFiniteLogitsError,
)

if TYPE_CHECKING:
    from heddle.outputs import Delta
    from heddle.sampling_params import SamplingParams


class AnswerChangedError(HeddleError):
    """An answer cannot go on here: this process gives other tokens than the one that began it."""

    status = 503
    code = "answer_changed"


@dataclass(slots=True)
class Continuation:
    """What was sent of an answer, and what this process adds. See the protocol in `record.py`.

    Attributes:
        seed: the choices of a request without a seed draw theirs from it.
        tokens: by choice, the tokens whose events were sent.
        closed: the choices whose last event was sent.
        failure: the error of this process that ended the answer, if another process may go on.
        new_tokens, new_closed: what this process adds to `tokens` and `closed`. Whoever sends the
            events takes them.
    """

    seed: int
    tokens: dict[int, list[int]] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    begun: bool = False
    is_stream: bool = False
    complete: bool = False
    failure: HeddleError | None = None
    new_tokens: list[tuple[int, int]] = field(default_factory=list)
    new_closed: list[int] = field(default_factory=list)
    _read: dict[int, int] = field(default_factory=dict)  # by choice, tokens of its deltas so far

    def known(self, choices: int) -> list[list[int]]:
        return [self.tokens.get(index, []) for index in range(choices)]

    def seeded(self, choices: list[SamplingParams]) -> list[SamplingParams]:
        seeds = Random(self.seed)
        return [
            one.with_seed(seeds.getrandbits(63)) if one.seed is None else one for one in choices
        ]

    def was_sent(self, index: int, delta: Delta) -> bool:
        """As in the protocol.

        Raises:
            AnswerChangedError: this process has sampled another token than the one before it.
        """
        known, at = self.tokens.get(index, []), self._read.get(index, 0)
        self._read[index] = at + len(delta.tokens)
        for place, one in enumerate(delta.tokens, at):
            if place >= len(known):
                self.new_tokens.append((index, one.token))
            elif known[place] != one.token:
                raise AnswerChangedError(
                    f"token {place} of choice {index} is {one.token} here, and was"
                    f" {known[place]} where the answer began. Serve the same files with the same"
                    " version and settings everywhere"
                )
        if delta.finish is not None and index not in self.closed:
            self.new_closed.append(index)
            return False
        return self._read[index] <= len(known)

    def fail(self, error: HeddleError) -> None:
        ended = isinstance(error, (EngineClosedError, EngineFailedError, ModelUnavailableError))
        if ended and not isinstance(error, NonFiniteLogitsError):  # it would be so elsewhere, too
            self.failure = error
