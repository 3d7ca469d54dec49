"""What the ingress and a replica say to each other about one request of a client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

FULL = "full"
"""The failure of a replica that has as many requests as it takes. It has done nothing."""


@dataclass(slots=True)
class Exchange:
    """A client's request, and what the client has of its answer.

    Attributes:
        method, path, query, headers, body: as the client sent them. Header names are in lower case.
        client: address of the client; empty if it is unknown.
        sender: tells clients apart: a digest of the client's key, else its address.
        request_id: id of the request, for logs and the answer's head.
        seed: for the choices of a request without a seed, and for the ids in the answer.
        began_at: when the request came, in s since 1970.
        tokens: by choice, the tokens whose events the client has.
        closed: the choices whose last event the client has.
        begun: whether the client has the head of the answer.
        key: hashes of the request's beginning; see `routing/blocks.py`.
        model: name of the model; empty: the default model.
        adapter: name of the adapter; empty: none.
        avoid: ids of replicas that have failed it.
        taken: whether a replica has taken it.
    """

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    client: str
    request_id: str
    seed: int
    began_at: int
    tokens: dict[int, list[int]] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    begun: bool = False
    sender: str = ""
    key: bytes = b""
    model: str = ""
    adapter: str = ""
    avoid: tuple[str, ...] = ()
    taken: bool = False

    def note(self, piece: Piece) -> None:
        """Note what the client has after this piece."""
        self.begun = True
        for index, token in piece.tokens:
            self.tokens.setdefault(index, []).append(token)
        self.closed.update(piece.closed)


class Piece(NamedTuple):
    """A part of an answer from a replica.

    Attributes:
        replica: id of the replica.
        body: the next bytes of the answer; empty: the replica shows that it is alive.
        status, headers: the head of the answer, in its first piece; 0 and empty in all others.
        tokens: pairs of a choice and its next token, whose events are in `body`.
        closed: the choices whose last event is in `body`.
        is_last: whether the answer is complete with `body`.
        failure: why the replica cannot complete the answer, though another one may. `body` tells
            the client. Empty: it can.
    """

    replica: str = ""
    body: bytes = b""
    status: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()
    tokens: tuple[tuple[int, int], ...] = ()
    closed: tuple[int, ...] = ()
    is_last: bool = False
    failure: str = ""


def joined(pieces: Sequence[Piece]) -> Piece:
    """An answer in one piece."""
    body = b"".join(piece.body for piece in pieces)
    head = next((piece for piece in pieces if piece.status), pieces[-1])
    last = pieces[-1]
    return head._replace(body=body, is_last=last.is_last, failure=last.failure)
