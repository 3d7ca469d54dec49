"""The ingress's side: keeps what the client has of an answer, and lets another replica go on.

The tokens of a request depend on the request alone, so every replica gives the same answer. When
one is lost, the next gets the request with the tokens that the client has (`continuation.py`).
"""

from __future__ import annotations

import asyncio
import logging
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


class ReplicaLostError(HeddleError):
    """A replica, or the network to it, failed while it answered."""

    status = 503
    code = "replica_lost"
    retry_after = 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the ingress waits, in seconds.

    Attributes:
        first: until a replica takes a request. Replicas may all be busy, or be starting.
        silence: between two pieces of an answer. A replica sends one every second or so.
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
    kind, left = b"", tries
    while True:
        lost: HeddleError
        try:
            async with aclosing(ask(exchange)) as pieces:
                async for piece in _steady(pieces, patience):
                    if piece.failure and left > 0:
                        lost = ReplicaLostError(f"replica {piece.replica} fails: {piece.failure}")
                        exchange.avoid += (piece.replica,)
                        break
                    if piece.body or piece.status or piece.is_last:
                        kind = dict(piece.headers).get(b"content-type", kind)
                        exchange.note(piece)
                        left = tries if piece.tokens else left
                        yield piece
                    if piece.is_last or piece.failure:
                        return
                else:
                    lost = ReplicaLostError("a replica ended its answer before it was complete")
        except ReplicaLostError as error:
            lost = error
        if left <= 0:
            if not exchange.begun:
                raise lost
            yield _failed(lost, shape, kind)
            return
        left -= 1
        known = sum(map(len, exchange.tokens.values()))
        _log.warning(
            "%s goes on at another replica after %d tokens: %s",
            exchange.request_id,
            known,
            lost.message,
        )


async def _steady(pieces: AsyncGenerator[Piece], patience: Patience) -> AsyncGenerator[Piece]:
    """The pieces, unless the wait for one is too long.

    Raises:
        ReplicaLostError: no replica takes the request, or one is silent.
    """
    seconds, what = patience.first, "no replica took the request within"
    while True:
        try:
            async with asyncio.timeout(seconds):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ReplicaLostError(f"{what} {seconds:g} s") from None
        yield piece
        seconds, what = patience.silence, "a replica was silent for"


def _failed(error: HeddleError, shape: ErrorShape, kind: bytes) -> Piece:
    """The end of a stream that no replica can complete."""
    media = kind.partition(b";")[0].decode("latin-1")
    body = {EVENTS: event(shape.body(error), "error"), LINES: line(shape.body(error))}
    return Piece(body=body.get(media, b""), is_last=True)
