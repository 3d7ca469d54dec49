"""The ingress: keeps the clients' connections, and lets replicas answer.

It knows no API. What a client sends goes to a replica as it is, and what the replica answers goes
to the client as it is. So every route works as on one machine.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import ray.exceptions
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
)
from starlette.responses import Response, StreamingResponse

from heddle.errors import BodyTimeoutError, BodyTooLargeError, HeddleError, OverloadedError
from heddle.extensions.ray.exchange import Exchange
from heddle.extensions.ray.flow import Flow
from heddle.extensions.ray.keeping import Patience, ReplicaLostError, kept
from heddle.extensions.ray.logs import log_as_serve
from heddle.extensions.ray.questions import is_question, reply
from heddle.hosting.registry import Registry
from heddle.server.app import create_app
from heddle.server.http.errors import error_response
from heddle.server.http.record import RequestRecord
from heddle.sizes import counted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ray.serve.handle import DeploymentHandle
    from starlette.requests import Request

    from heddle.extensions.ray.config import Deployed
    from heddle.extensions.ray.exchange import Piece

_AGAIN = 1.0
"""Seconds after which a request that a replica has taken before looks for a place again."""


class Ingress:
    """One ingress, for Ray Serve."""

    def __init__(self, replicas: DeploymentHandle, deployed: Deployed) -> None:
        """`replicas` sends requests to the replicas."""
        log_as_serve(deployed.server.log_level)
        self._replicas = replicas
        self._answer = replicas.options(stream=True).answer
        self._flow = Flow()
        self._waiting = deployed.deploy.waiting
        self._starts = not deployed.deploy.replicas
        self._tries = deployed.registry.resume_tries
        self._patience = Patience(deployed.deploy.start_wait, deployed.deploy.silence)
        self._server = deployed.server
        self._app = create_app(
            Registry(), deployed.server
        )  # for the shapes of errors; it has no model

    async def __call__(self, request: Request) -> Response:
        """Answer a client."""
        scope = {**request.scope, "app": self._app}
        try:
            exchange = await self._exchange(request)
            if is_question(exchange):
                told = await self._told(exchange)
                return _whole(await reply(exchange, told, self._app, starts=self._starts))
            shape = self._app.state.error_shapes.of(exchange.path)
            pieces = kept(exchange, self._ask, self._tries, self._patience, shape)
            first = await anext(pieces)
        except HeddleError as error:
            return error_response(error, scope)
        return _response(first, pieces)

    async def _exchange(self, request: Request) -> Exchange:
        """The request of a client, with its body.

        Raises:
            BodyTooLargeError, BodyTimeoutError: as on one machine.
        """
        scope = request.scope
        record = RequestRecord.of(scope, _nowhere)
        parts, size, most = [], 0, self._server.max_body
        try:
            async with asyncio.timeout(self._server.body_timeout):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise BodyTooLargeError(
                            f"the body must be at most {most} bytes long; send less, or raise the"
                            " setting `max_body`"
                        )
                    parts.append(part)
        except TimeoutError:
            raise BodyTimeoutError(
                f"the body did not arrive within {self._server.body_timeout} s; send it faster, or"
                " raise the setting `body_timeout`"
            ) from None
        return Exchange(
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"],
            headers=list(scope["headers"]),
            body=b"".join(parts),
            client=record.address,
            request_id=record.request_id,
            seed=secrets.randbits(63),
            began_at=int(time.time()),
        )

    async def _ask(self, exchange: Exchange) -> AsyncGenerator[Piece]:
        """The pieces of an answer from the replica that the router chooses.

        A request that a replica has taken before waits until the queue has a place.

        Raises:
            OverloadedError: too many requests wait.
            ReplicaLostError: the replica, or the network to it, has failed.
        """
        while True:
            try:
                async with aclosing(self._pieces(exchange)) as pieces:
                    async for piece in pieces:
                        yield piece
                return
            except OverloadedError:
                if not exchange.taken:
                    raise
            await asyncio.sleep(_AGAIN)

    async def _pieces(self, exchange: Exchange) -> AsyncGenerator[Piece]:
        """The pieces of an answer from a replica. Raises as `_ask`."""
        stream = self._answer.remote(exchange)
        is_first = True
        try:
            async for piece in stream:
                if is_first:
                    is_first, exchange.taken = False, True
                    self._flow.note(time.monotonic())
                yield piece
        except BackPressureError:  # does not tell how many wait: as many as may
            waiting = self._waiting
            seconds = self._flow.seconds(waiting, time.monotonic())
            raise OverloadedError(
                f"{counted(waiting, 'request')} wait for a replica, as many as `waiting` allows."
                f" Try again in about {seconds:.0f} s",
                retry_after=seconds,
            ) from None
        except (ray.exceptions.RayError, RayServeException) as error:
            raise ReplicaLostError(f"the replica failed: {type(error).__name__}") from error
        except BaseException:  # the client has left, or the replica is silent
            with suppress(ray.exceptions.RayError, RayServeException):
                stream.cancel()
            raise

    async def _told(self, exchange: Exchange) -> list[Piece]:
        """The answers of all replicas to a question. Replicas that fail give none.

        Raises:
            ReplicaLostError: a replica is silent.
        """
        seconds = self._patience.silence
        asked = self._replicas.broadcast("tell", exchange)
        try:
            told = await asked.results_async(timeout_s=seconds, return_exceptions=True)
        except DeploymentUnavailableError:  # there is no replica
            return []
        except TimeoutError:
            raise ReplicaLostError(f"a replica was silent for {seconds:g} s") from None
        return [piece for piece in told if not isinstance(piece, BaseException)]


def _whole(piece: Piece) -> Response:
    response = Response(piece.body, status_code=piece.status)
    response.raw_headers = [*piece.headers]
    return response


def _response(first: Piece, rest: AsyncGenerator[Piece]) -> Response:
    async def body() -> AsyncGenerator[bytes]:
        async with aclosing(rest) as pieces:
            yield first.body
            async for piece in pieces:
                yield piece.body

    response = StreamingResponse(body(), status_code=first.status)
    response.raw_headers = [*first.headers]
    return response


async def _nowhere(_: object) -> None:
    """The `send` of a record that sends nothing."""
