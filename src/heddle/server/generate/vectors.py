"""Vectors of the many texts of one body, a few texts at a time in the engine."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from typing import TYPE_CHECKING

from heddle.errors import ContextLengthError, InvalidRequestError, OverloadedError
from heddle.server.http import encoding
from heddle.server.http.record import record_of

if TYPE_CHECKING:
    from array import array
    from collections.abc import AsyncGenerator, Callable, Sequence

    from starlette.types import Scope

    from heddle.embedding import EmbeddingParams
    from heddle.engine.streaming.streams import AsyncStreams, Backlog
    from heddle.errors import BacklogError
    from heddle.server.generate.service import Served

_AHEAD = 4
"""Texts of one body in the engine at once, for each slot. The others follow later, so that other
clients find places in the queue, and a body may hold more texts than the queue has places."""
_LARGE = 2**16
"""Numbers of a vector that take some 30 ms to encode, so that a thread encodes them."""
_NEXT_TRY = 0.05
"""Seconds until the next try to submit texts after the queue was full."""


def check_length(tokens: Sequence[int], param: str, served: Served) -> None:
    """Check that a text has tokens and fits. `param` is the field that holds it.

    Raises:
        InvalidRequestError: it has no tokens: it is empty, and the model begins no text with BOS.
        ContextLengthError: it is too long.
    """
    if not tokens:
        raise InvalidRequestError(f"{param} has an empty text; send some text", param=param)
    try:
        served.engine.check_length(len(tokens), output=False)
    except ContextLengthError as error:
        error.param = param
        raise


def check_dimensions(given: int | None, width: int, param: str) -> int | None:
    """Check how many numbers of each vector a request wants. None: all.

    Raises:
        InvalidRequestError: not 1 to `width`.
    """
    if given is not None and not 1 <= given <= width:
        raise InvalidRequestError(
            f"{param} must be 1 to {width}, the width of this model, got {given}", param=param
        )
    return given


def shortened(vector: array[float], dimensions: int | None) -> array[float]:
    """The first numbers of a vector, with length 1 (Kusupati et al. 2022, arXiv:2205.13147).

    They mean something if the model was trained for it.
    """
    if dimensions is None or dimensions >= len(vector):
        return vector
    values = vector[:dimensions].tolist()
    length = math.hypot(*values) or 1.0
    return type(vector)(vector.typecode, [value / length for value in values])


async def vectors(
    prompts: Sequence[Sequence[int]],
    params: EmbeddingParams,
    served: Served,
    scope: Scope,
) -> AsyncGenerator[tuple[int, array[float]], None]:
    """Index and vector of each prompt, as they are ready. Close the iterator to cancel the others.

    They have the adapter that the request named as its model, or the default ones. `scope` is the
    ASGI scope of the request: its client counts, and its record gets the usage.

    Raises:
        HeddleError: the engine refuses a text or fails on it; all texts are cancelled.
    """
    config, params = served.engine.config, served.adapted(params)
    if params.extensions:
        await asyncio.to_thread(served.engine.adapters.take, params)  # loads what is not in memory
    together = min(_AHEAD * config.slots, config.slots + config.queue)
    if config.client_requests:
        together = min(together, config.client_requests)
    adapted: set[str] = set()
    for first in range(0, len(prompts), together):
        requests = [(prompt, params) for prompt in prompts[first : first + together]]
        streams = await _submitted(requests, served, scope, patient=first > 0)
        try:
            adapted.update(ticket.adapted for ticket in streams.tickets)
            _check_same(adapted)
            async for index, delta in streams:
                if delta.embedding is not None:
                    yield first + index, delta.embedding
                    await asyncio.sleep(0)  # let other tasks run: many vectors may arrive at once
        finally:
            record_of(scope).add(streams)
            streams.close()


def _check_same(adapted: set[str]) -> None:
    """Check that all texts of a body have the same adapters.

    Raises:
        InvalidRequestError: an adapter was replaced meanwhile.
    """
    if len(adapted) > 1:
        raise InvalidRequestError(
            "an adapter was replaced while the texts of this request ran; send the request again",
            param="model",
        )


async def encoded_vectors(
    prompts: Sequence[Sequence[int]],
    params: EmbeddingParams,
    served: Served,
    scope: Scope,
    encode: Callable[[int, array[float]], bytes],
    *,
    each_token: bool = False,
) -> list[bytes]:
    """The result of `encode` for the index and the vector of each prompt, in order.

    With `each_token`, a vector may be those of all tokens, one after another (`Pooling.NONE`).

    Raises:
        HeddleError: the engine refuses a text or fails on it. All texts are cancelled.
    """
    if not each_token or served.engine.model.labels:
        served.engine.model.check_one_vector(params)
    gathering = Gathering(served.backlog)
    async with aclosing(vectors(prompts, params, served, scope)) as ready:
        async for index, vector in ready:
            if len(vector) < _LARGE:
                gathering.add(index, encode(index, vector))
            else:
                gathering.add(index, await asyncio.to_thread(encode, index, vector))
    return gathering.take()


def entry_of_tokens(index: int, vector: array[float], *, width: int) -> bytes:
    """An element of llama.cpp's answer: a list of vectors, of all tokens or of their pooling."""
    starts = range(0, len(vector), width)
    rows = (encoding.encode(vector[start : start + width].tolist()) for start in starts)
    return encoding.joined({"index": index}, embedding=encoding.array(rows))


class Gathering:
    """Collects the encoded vectors of an answer. The backlog counts them.

    Attributes:
        held: bytes of the collected vectors.
    """

    def __init__(self, backlog: Backlog) -> None:
        self.held = 0
        self._backlog = backlog
        self._parts: dict[int, bytes] = {}
        self._failure: BacklogError | None = None
        backlog.holders.add(self)

    def add(self, index: int, part: bytes) -> None:
        """Add the JSON of one vector.

        Raises:
            BacklogError: unread answers take too much memory, and this answer is the largest.
        """
        self._parts[index] = part
        self.held += len(part)
        self._backlog.check()
        if self._failure is not None:
            raise self._failure

    def take(self) -> list[bytes]:
        """Return all vectors in order. The backlog no longer counts them.

        Raises:
            BacklogError: see :meth:`add`.
        """
        if self._failure is not None:
            raise self._failure
        self.held = 0
        return [part for _, part in sorted(self._parts.items())]

    def cut(self, error: BacklogError) -> None:
        """Discard all vectors. Later calls raise `error`."""
        self._failure = error
        self._parts.clear()
        self.held = 0


async def _submitted(
    requests: Sequence[tuple[Sequence[int], EmbeddingParams]],
    served: Served,
    scope: Scope,
    *,
    patient: bool,
) -> AsyncStreams:
    """The requests' streams. A `patient` caller waits for the queue instead of losing its vectors.

    Raises:
        HeddleError: the engine refuses a request.
    """
    record = record_of(scope)
    client, log_id = record.client, record.submit()
    while True:
        try:
            return served.engine.generate_many(
                requests, served.backlog, client=client, log_id=log_id
            )
        except OverloadedError:
            if not patient:
                raise
            await asyncio.sleep(_NEXT_TRY)
