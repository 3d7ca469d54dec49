"""Checks new sequences before they queue: lengths of prompts, and places in the queue."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from heddle.errors import ContextLengthError, InvalidRequestError, OverloadedError
from heddle.scheduler.pace import Rate
from heddle.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Many

    from heddle.scheduler.queue import Queue
    from heddle.scheduler.sequence import Sequence

_SOONEST, _LATEST = 1.0, 600.0
"""Bounds of an estimate, in seconds. A client that waits longer than the upper bound gives up."""


class Room:
    """The capacity of the scheduler: whether requests fit, and when more will fit.

    Args:
        slots: most sequences that run at once.
        queue: most sequences that wait when all slots are taken. A client without sequences may use
            as many more places as there are slots, so that no other client can shut it out.
        context: most tokens of one sequence.
        pages: tokens that the pages of the cache hold.

    Attributes:
        capacity: most tokens of a sequence, bounded by the context and by the pages.
        rate: how fast recent steps computed tokens.
    """

    def __init__(self, slots: int, queue: int, context: int, pages: int) -> None:
        self._slots = slots
        self.set_queue(queue)
        self.capacity = min(context, pages)
        self._holder = "context" if context <= pages else "KV cache"
        self.rate = Rate()

    def set_queue(self, queue: int) -> None:
        """Change how many sequences may wait."""
        self._most_requests = self._slots + queue

    def check(self, sequences: Many[Sequence], queue: Queue, live: Iterable[Sequence]) -> None:
        """Check that all of `sequences`, from one client, fit beside those in `live`.

        Raises: see `Scheduler.add`.
        """
        for sequence in sequences:
            self.check_length(sequence.prompt_tokens, output=sequence.most_output != 0)
        if len(sequences) > self._most_requests:
            raise InvalidRequestError(
                f"{counted(len(sequences), 'request')} sent at once; slots and queue hold"
                f" {self._most_requests}. Send fewer at a time or raise the setting `queue`",
                param="n",
            )
        too_many = queue.active + len(sequences) - self._most_requests
        if too_many <= 0:
            return
        client = sequences[0].client
        reserve = 0 if client is None or queue.has(client) else self._slots
        if too_many > reserve:
            seconds = self.seconds_until(too_many, live)
            raise OverloadedError(
                f"{counted(queue.active, 'request')} running or waiting; slots and queue hold"
                f" {self._most_requests}. Try again in about {seconds:.0f} s",
                retry_after=seconds,
            )

    def check_length(self, tokens: int, *, output: bool = True) -> None:
        """Check that a prompt of `tokens` tokens fits. Any thread may call this.

        With `output`, one more token must fit too.

        Raises:
            ContextLengthError: the prompt is too long, even for an empty cache.
        """
        most = self.capacity - output
        if tokens <= most:
            return
        included = ", output included" if output else ""
        raise ContextLengthError(
            f"the prompt is too large: it has {tokens} tokens; the {self._holder} holds"
            f" {self.capacity}{included}. Send at most {most} tokens",
            param="prompt",
            tokens=tokens,
            context=self.capacity,
        )

    def limit_of(self, sequence: Sequence) -> int:
        """Most tokens of a sequence: its prompt and its output, bounded by context and cache."""
        most = sequence.most_output
        wanted = self.capacity if most is None else sequence.prompt_tokens + most
        return min(wanted, self.capacity)

    def seconds_until(self, places: int, live: Iterable[Sequence]) -> float:
        """Estimated time, in seconds, until `places` of the sequences in `live` have ended."""
        work = (self.work(sequence) for sequence in live if not sequence.paused)
        return retry_after(work, places, self.rate.tokens_per_second)

    def work(self, sequence: Sequence) -> float:
        """Tokens that a sequence still needs: of its prompt, and an output of the usual length."""
        most, usual = sequence.limit - sequence.total, self.rate.output
        return sequence.remaining + min(most, most if usual is None else usual)


def retry_after(work: Iterable[float], places: int, tokens_per_second: float) -> float:
    """Estimate the seconds until `places` of the accepted requests have ended.

    All requests share the rate, so one request ends per mean work of a request.

    Args:
        work: tokens that each accepted request still needs, prompt and output.
        places: how many requests must end.
        tokens_per_second: rate of recent steps; 0.0 if it is unknown.

    Returns:
        At least 1 and at most 600; 1 if the rate is unknown.
    """
    tokens = list(work)
    if not tokens or tokens_per_second <= 0.0:
        return _SOONEST
    seconds = places * math.fsum(tokens) / len(tokens) / tokens_per_second
    return min(max(seconds, _SOONEST), _LATEST)
