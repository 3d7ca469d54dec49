"""The ingress's side: keeps what the client has of an answer, and lets another replica go on.

The tokens of a request depend on the request alone, so every replica gives the same answer. When
one is lost, the next gets the request with the tokens that the client has (`continuation.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from heddle.errors import HeddleError
from heddle.extensions.ray.exchange import Piece
from heddle.server.http.encoding import EVENTS, LINES, event, line

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from heddle.extensions.ray.exchange import Exchange
    from heddle.server.http.error_shape import ErrorShape

Ask: TypeAlias = "Callable[[Exchange], AsyncGenerator[Piece]]"
"""Sends an exchange to a replica. Raises ReplicaLostError when this or the network to it fails."""

_log = logging.getLogger(__name__)


_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
"""Seconds before a request is sent again to a replica that has failed it."""


class ReplicaLostError(HeddleError):
    """A replica, or the network to it, failed while it answered."""

    status = 503
    code = "replica_lost"
    retry_after = 1.0


class NotTakenError(ReplicaLostError):
    """No replica has taken the request yet."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the ingress waits, in seconds.

    Attributes:
        first: until a replica takes a request. Replicas may all be busy, or be starting.
        silence: between two pieces of an answer, of which a replica sends some each `silence`; and
            until the request is sent again because no replica has taken it.
    """

    first: float
    silence: float


async def kept(
    exchange: Exchange, ask: Ask, tries: int, patience: Patience, shape: ErrorShape
) -> AsyncGenerator[Piece]:
    """The pieces of an answer, from one replica or from several, one after the other.

    Args:
        exchange: the request. It keeps what the client has.
        ask: sends it to a replica.
        tries: how many replicas in a row may be lost before the client has a new token. So an
            answer outlives a rolling update, and a request that ends every replica comes to an end.
        patience: how long to wait for pieces.
        shape: of errors, for a stream that no replica can complete.

    Raises:
        ReplicaLostError: no replica can answer, and the client has nothing yet.
        HeddleError: `ask` refuses the request.
    """
    kind, losses = b"", _Losses(exchange, tries, patience.first)
    while True:
        lost: HeddleError
        replica, fails = "", False
        try:
            async with aclosing(_taken(exchange, ask, patience)) as pieces:
                async for piece in pieces:
                    replica, fails = piece.replica, bool(piece.failure)
                    if fails and losses.allow(replica, fails=True):
                        lost = ReplicaLostError(f"replica {replica} fails: {piece.failure}")
                        break
                    if piece.body or piece.status or piece.is_last:
                        kind = dict(piece.headers).get(b"content-type", kind)
                        exchange.note(piece)
                        if piece.tokens:
                            losses.forget()
                        yield piece
                    if piece.is_last or fails:
                        return
                else:
                    lost = ReplicaLostError("a replica ended its answer before it was complete")
        except ReplicaLostError as error:
            lost = error
        if isinstance(lost, NotTakenError) or not losses.allow(replica, fails=fails):
            if not exchange.begun:
                raise lost
            yield _failed(lost, shape, kind)
            return
        await losses.count(replica, lost, fails=fails)


class _Losses:
    """The replicas that one request has lost."""

    def __init__(self, exchange: Exchange, tries: int, seconds: float) -> None:
        """`tries` replicas may be lost, each of them several times within `seconds`."""
        self._exchange = exchange
        self._most = self._tries = tries
        self._end = time.monotonic() + seconds
        self._pause = _SHORTEST_PAUSE

    def allow(self, replica: str, *, fails: bool) -> bool:
        """Whether the request may go on when it has lost this replica, or an unknown one.

        The router may choose a replica again that fails at once. This is no further loss.
        """
        return self._tries > 0 or self._is_known(replica, fails)

    def forget(self) -> None:
        """Count anew: a replica has given a token. A long answer may see many updates."""
        self._tries = self._most

    async def count(self, replica: str, lost: HeddleError, *, fails: bool) -> None:
        """Count a loss; if it is no further one, wait a moment."""
        if self._is_known(replica, fails):
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            return
        self._tries -= 1
        if replica and replica not in self._exchange.avoid:
            self._exchange.avoid += (replica,)
        _log.warning(
            "%s goes on at another replica after %d tokens: %s",
            self._exchange.request_id,
            sum(map(len, self._exchange.tokens.values())),
            lost.message,
        )

    def _is_known(self, replica: str, fails: bool) -> bool:
        return fails and replica in self._exchange.avoid and time.monotonic() < self._end


async def _taken(exchange: Exchange, ask: Ask, patience: Patience) -> AsyncGenerator[Piece]:
    """The pieces from the replica that takes the request.

    One that has stopped takes nothing, and Ray's router waits for its word. So the request is sent
    again after `silence`, and then after twice as long each time.

    Raises:
        NotTakenError: no replica takes the request.
        ReplicaLostError: one is silent.
    """
    end, wait = time.monotonic() + patience.first, patience.silence
    while True:
        first = min(wait, end - time.monotonic())
        try:
            async with aclosing(ask(exchange)) as pieces:
                async for piece in _steady(pieces, first, patience.silence):
                    yield piece
            return
        except NotTakenError:
            if time.monotonic() >= end:
                raise NotTakenError(
                    f"no replica took the request within {patience.first:g} s"
                ) from None
            wait *= 2


async def _steady(
    pieces: AsyncGenerator[Piece], first: float, silence: float
) -> AsyncGenerator[Piece]:
    """The pieces, unless the wait for one is too long: `first` and then `silence` s.

    Raises:
        NotTakenError: there is no first piece in time.
        ReplicaLostError: there is no further piece in time.
    """
    lost: ReplicaLostError = NotTakenError("no replica took the request")
    seconds = first
    while True:
        try:
            async with asyncio.timeout(seconds):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise lost from None
        yield piece
        seconds, lost = silence, ReplicaLostError(f"a replica was silent for {silence:g} s")


def _failed(error: HeddleError, shape: ErrorShape, kind: bytes) -> Piece:
    """The end of a stream that no replica can complete."""
    media = kind.partition(b";")[0].decode("latin-1")
    body = {EVENTS: event(shape.body(error), "error"), LINES: line(shape.body(error))}
    return Piece(body=body.get(media, b""), is_last=True)
