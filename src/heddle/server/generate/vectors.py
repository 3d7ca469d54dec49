"""Vectors of the many texts of one body, a few texts at a time in the engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from heddle.errors import ContextLengthError, OverloadedError
from heddle.server.http.keys import client_of
from heddle.server.http.record import record_of

if TYPE_CHECKING:
    from array import array
    from collections.abc import AsyncGenerator, Sequence

    from starlette.types import Scope

    from heddle.embedding import EmbeddingParams
    from heddle.engine.streams import AsyncStreams
    from heddle.server.generate.service import Served

_AHEAD = 4
"""Texts of one body in the engine at once, for each slot. The others follow later, so that other
clients find places in the queue, and a body may hold more texts than the queue has places."""
_NEXT_TRY = 0.05
"""Seconds until the next try to submit texts after the queue was full."""


def check_length(tokens: Sequence[int], param: str, served: Served) -> None:
    """Check that a text fits. `param` is the field that holds it.

    Raises:
        ContextLengthError: it is too long.
    """
    try:
        served.engine.check_length(len(tokens), output=False)
    except ContextLengthError as error:
        error.param = param
        raise


async def vectors(
    prompts: Sequence[Sequence[int]],
    params: EmbeddingParams,
    served: Served,
    scope: Scope,
) -> AsyncGenerator[tuple[int, array[float]], None]:
    """Index and vector of each prompt, as they are ready. Close the iterator to cancel the others.

    `scope` is the ASGI scope of the request: its client counts, and its record gets the usage.

    Raises:
        HeddleError: the engine refuses a text or fails on it; all texts are cancelled.
    """
    config = served.engine.config
    together = min(_AHEAD * config.slots, config.slots + config.queue)
    if config.client_requests:
        together = min(together, config.client_requests)
    for first in range(0, len(prompts), together):
        requests = [(prompt, params) for prompt in prompts[first : first + together]]
        streams = await _submitted(requests, served, scope, patient=first > 0)
        try:
            async for index, delta in streams:
                if delta.embedding is not None:
                    yield first + index, delta.embedding
                    await asyncio.sleep(0)  # let other tasks run: many vectors may arrive at once
        finally:
            record_of(scope).add(streams)
            streams.close()


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
    client, log_id = client_of(scope), record_of(scope).submit()
    while True:
        try:
            return served.engine.generate_many(
                requests, served.backlog, client=client, log_id=log_id
            )
        except OverloadedError:
            if not patient:
                raise
            await asyncio.sleep(_NEXT_TRY)
