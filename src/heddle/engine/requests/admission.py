"""Decides whether the engine takes new requests: free memory, and limits of each client."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from heddle.errors import ClientLimitError
from heddle.process_memory import FreeMemory
from heddle.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Hashable
    from collections.abc import Sequence as Many

    from heddle.config import EngineConfig
    from heddle.scheduler.sequence import Sequence


@dataclass(slots=True)
class _Client:
    """The usage of one client.

    Attributes:
        requests: its accepted requests that have not ended; each choice counts.
        tokens: tokens that it may still use; negative: it has used too many.
        at: time of `tokens`, in seconds.
    """

    requests: int
    tokens: float
    at: float


class Admission:
    """Checks new requests. The engine calls `check` and `begin` under its lock, `end` without.

    A client has `client_tokens` tokens per minute, prompt and output. They come back evenly, at
    most those of a minute. A client that has used more must wait until its balance is positive. So
    a request is never too large for its client, and its output need not be known.

    Requests without a client, as from a program that uses the library, have no limits.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._memory = FreeMemory(config.min_free_memory)
        self._most_requests = config.client_requests
        self._most_tokens = config.client_tokens
        self._lock = threading.Lock()
        self._clients: OrderedDict[Hashable, _Client] = OrderedDict()  # `_forget` looks in order

    def check(self, sequences: Many[Sequence]) -> None:
        """Check that new sequences of one client can begin now.

        Raises:
            OutOfMemoryError: the system has less memory left than `min_free_memory`.
            ClientLimitError: the client has too many requests, or has used too many tokens.
        """
        self._memory.check()
        client = sequences[0].client if sequences else None
        if client is None or not (self._most_requests or self._most_tokens):
            return
        with self._lock:
            known = self._refilled(client)
        if self._most_requests and known.requests + len(sequences) > self._most_requests:
            raise ClientLimitError(
                f"this client has {counted(known.requests, 'request')} and sends"
                f" {len(sequences)} more; {self._most_requests} may run or wait at once"
                " (client_requests). Wait until one has ended"
            )
        if self._most_tokens and known.tokens <= 0.0:
            seconds = 60.0 * (1.0 - known.tokens) / self._most_tokens
            raise ClientLimitError(
                f"this client has used its {counted(self._most_tokens, 'token')} per minute"
                f" (client_tokens). Try again in {seconds:.0f} s",
                retry_after=seconds,
            )

    def begin(self, sequences: Many[Sequence]) -> None:
        """Count accepted sequences and their prompts."""
        for sequence in sequences:
            self._count(sequence, 1, sequence.prompt_tokens)

    def end(self, sequence: Sequence) -> None:
        """Count the output of a sequence that has ended."""
        self._count(sequence, -1, sequence.output_tokens)

    def _count(self, sequence: Sequence, requests: int, tokens: int) -> None:
        if sequence.client is None or not (self._most_requests or self._most_tokens):
            return
        with self._lock:
            known = self._refilled(sequence.client)
            known.requests += requests
            known.tokens -= tokens

    def _refilled(self, client: Hashable) -> _Client:
        """The client, with the tokens that it may use now."""
        now = monotonic()
        self._forget(now)
        known = self._clients.get(client)
        if known is None:
            known = self._clients[client] = _Client(0, float(self._most_tokens), now)
        self._refill(known, now)
        return known

    def _refill(self, known: _Client, now: float) -> None:
        earned = (now - known.at) * self._most_tokens / 60.0
        known.tokens = min(known.tokens + earned, float(self._most_tokens))
        known.at = now

    def _forget(self, now: float) -> None:
        """Drop clients that have no requests and all their tokens.

        Looks at two clients, in turns. At most one is new since the last look, so those with
        nothing to remember are at most about half of all.
        """
        for _ in range(min(2, len(self._clients))):
            client, known = self._clients.popitem(last=False)
            self._refill(known, now)
            if known.requests or (self._most_tokens and known.tokens < self._most_tokens):
                self._clients[client] = known
