"""Replicas in this process, of which some are lost after some pieces of an answer."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from heddle.extensions.ray.answering import answer
from heddle.extensions.ray.exchange import Exchange, Piece
from heddle.extensions.ray.keeping import Patience, ReplicaLostError, kept
from heddle.server.http.error_shape import DEFAULT
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import ASGIApp

WAITS = Patience(PATIENCE, PATIENCE)


def exchange(path: str, body: dict[str, Any], **more: Any) -> Exchange:
    headers = [(b"content-type", b"application/json")]
    raw = json.dumps(body).encode()
    return Exchange("POST", path, b"", headers, raw, "", "req_1", 6, 1_700_000_000, **more)


class Replicas:
    """Asks the replicas in turn. The first ones are lost after some pieces with bytes."""

    def __init__(self, apps: list[ASGIApp], *lost_after: int) -> None:
        self._apps = apps
        self._lost_after = list(lost_after)
        self.asked: list[list[int]] = []  # tokens known for choice 0, of each exchange

    async def ask(self, sent: Exchange) -> AsyncGenerator[Piece]:
        app = self._apps[len(self.asked) % len(self._apps)]
        name = f"replica-{len(self.asked)}"
        self.asked.append(list(sent.tokens.get(0, [])))
        left = self._lost_after.pop(0) if self._lost_after else None
        async with aclosing(answer(app, sent, name, PATIENCE)) as pieces:
            async for piece in pieces:
                if left == 0:
                    raise ReplicaLostError(f"{name} is lost")
                yield piece
                left = None if left is None else left - 1


async def whole(replicas: Replicas, sent: Exchange, tries: int = 2) -> list[Piece]:
    return [piece async for piece in kept(sent, replicas.ask, tries, WAITS, DEFAULT)]


def text(pieces: list[Piece]) -> bytes:
    return b"".join(piece.body for piece in pieces)


def timeless(pieces: list[Piece]) -> list[Any]:
    """The events of each choice, without times, and without what says how they were computed."""
    lines = [line.removeprefix(b"data: ") for line in text(pieces).splitlines()]
    events = [clean(json.loads(line)) for line in lines if line.startswith(b"{")]
    return sorted(events, key=lambda one: [each["index"] for each in one.get("choices", ())])


def clean(value: Any) -> Any:
    if isinstance(value, list):
        return [clean(one) for one in value]
    if not isinstance(value, dict):
        return value
    left_out = ("timings", "completed_at", "usage", "created_at")
    return {
        name: clean(one)
        for name, one in value.items()
        if name not in left_out and not name.endswith("_duration")
    }
