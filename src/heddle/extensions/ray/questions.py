"""Questions about a deployment: its health and its metrics.

The ingress asks all replicas at once. So a question waits in no queue, and starts no replica.
Ray counts it as a request of each replica, so replicas have places that only questions take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from heddle.extensions.ray.answering import answer
from heddle.extensions.ray.exchange import Piece, joined
from heddle.extensions.ray.exposition import PATH, merged
from heddle.server.http.access import OPEN_PATHS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp

    from heddle.extensions.ray.exchange import Exchange

PLACES = 8
"""Questions that a full replica answers at once. Further ones wait for milliseconds."""

_JSON = "application/json"


def is_question(method: str, path: str) -> bool:
    """Whether a request asks about the deployment."""
    return method in ("GET", "HEAD") and path in {PATH, *OPEN_PATHS}


async def reply(exchange: Exchange, told: Sequence[Piece], own: ASGIApp, *, starts: bool) -> Piece:
    """The answer to a question.

    Args:
        exchange: the question.
        told: the answers of all replicas.
        own: an application without models. It refuses clients as a replica does.
        starts: whether a request starts a replica if there is none.
    """
    if exchange.path != PATH:
        return _health(told, starts=starts)
    refused = [piece for piece in told if piece.status != 200]
    if not told:
        pieces = [piece async for piece in answer(own, exchange, "", 1.0)]
        refused = [piece for piece in [joined(pieces)] if piece.status != 200]
    if refused:
        return refused[0]
    body = merged({piece.replica: piece.body.decode() for piece in told})
    return _piece(200, CONTENT_TYPE_PLAIN_0_0_4, body)


def _health(told: Sequence[Piece], *, starts: bool) -> Piece:
    """The best answer of the replicas."""
    if told:
        return next((piece for piece in told if piece.status == 200), told[0])
    if starts:
        return _piece(200, _JSON, b'{"status":"ok"}')
    return _piece(503, _JSON, b'{"status":"no replica"}')


def _piece(status: int, kind: str, body: bytes) -> Piece:
    headers = ((b"content-type", kind.encode()), (b"content-length", b"%d" % len(body)))
    return Piece(body=body, status=status, headers=headers, is_last=True)
