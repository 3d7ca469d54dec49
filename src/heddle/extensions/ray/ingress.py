"""The ingress: keeps the clients' connections, and lets replicas answer.

It knows no API. What a client sends goes to a replica as it is, and what the replica answers goes
to the client as it is. So every route works as on one machine.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import ExitStack, aclosing, contextmanager, suppress
from typing import TYPE_CHECKING

import ray.exceptions
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
)
from starlette.responses import Response, StreamingResponse

from heddle.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    HeddleError,
    MalformedHTTPError,
    OverloadedError,
)
from heddle.extensions.ray.exchange import FULL, Exchange
from heddle.extensions.ray.flow import Flow
from heddle.extensions.ray.keeping import Patience, ReplicaLostError, kept
from heddle.extensions.ray.logs import log_as_serve
from heddle.extensions.ray.questions import is_question, reply
from heddle.extensions.ray.request_key import read, sender_of
from heddle.hosting.registry import Registry
from heddle.server.app import create_app
from heddle.server.http.errors import error_response
from heddle.server.http.protocol import LONGEST_HEAD
from heddle.server.http.record import RequestRecord
from heddle.sizes import counted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator

    from ray.serve.handle import DeploymentHandle
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from heddle.extensions.ray.config import Deployed
    from heddle.extensions.ray.exchange import Piece

CONNECTIONS = 10_000
"""Most requests of one ingress at once. Those that wait for a replica have a lower limit."""

_AGAIN = 1.0
"""Seconds after which a request looks for a place again: one that a replica has taken before, or
one that a full replica refused."""


class _FullError(Exception):
    """A replica has as many requests as it takes: another ingress has sent some."""


class HeadTooLargeError(MalformedHTTPError):
    """The path and headers of a request are too long."""

    status = 431


class Room:
    """Bytes of bodies that one ingress keeps. A body stays until its answer is complete."""

    def __init__(self, most: int) -> None:
        """`most` bytes at once."""
        self.most = self.left = most


class Held:
    """What the body of one request takes of the room."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._size = 0

    def add(self, size: int) -> None:
        """Take `size` bytes more.

        Raises:
            OverloadedError: there is no room.
        """
        if size > self._room.left:
            raise OverloadedError(
                f"the bodies of other requests take the {self._room.most} bytes that an ingress"
                " keeps; try again later, or raise the setting `bodies`"
            )
        self._room.left -= size
        self._size += size

    def give_back(self) -> None:
        """Give back all."""
        self._room.left += self._size
        self._size = 0


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
        self._room = Room(deployed.deploy.bodies)
        self._running = 0
        self._app = create_app(Registry(), deployed.server)  # without models: for errors

    async def __call__(self, request: Request) -> Response:
        """Answer a client."""
        scope = {**request.scope, "app": self._app}
        held = Held(self._room)
        is_asked = is_question(scope["method"], scope["path"])
        with ExitStack() as stack:
            stack.callback(held.give_back)
            try:
                if not is_asked:
                    stack.enter_context(self._connection())
                exchange = await self._exchange(request, held)
                if is_asked:
                    told = await self._told(exchange)
                    return _whole(await reply(exchange, told, self._app, starts=self._starts))
                shape = self._app.state.error_shapes.of(exchange.path)
                pieces = kept(exchange, self._ask, self._tries, self._patience, shape)
                first = await anext(pieces)
            except HeddleError as error:
                return error_response(error, scope)
            return _Answer(first, pieces, stack.pop_all())

    @contextmanager
    def _connection(self) -> Iterator[None]:
        """Count a request while the block runs.

        Raises:
            OverloadedError: there are too many.
        """
        if self._running >= CONNECTIONS:
            raise OverloadedError(
                f"an ingress has {counted(CONNECTIONS, 'request')} at most; try again later, or"
                " raise the setting `ingresses`"
            )
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def _exchange(self, request: Request, held: Held) -> Exchange:
        """The request of a client, with its body, which `held` counts.

        A question has no body: a client that sends slowly would hold its place.

        Raises:
            HeadTooLargeError, BodyTooLargeError, BodyTimeoutError: as on one machine.
            OverloadedError: the bodies of other requests take all the room.
        """
        scope = request.scope
        _check_head(scope)
        record = RequestRecord.of(scope, _nowhere)
        is_asked = is_question(scope["method"], scope["path"])
        exchange = Exchange(
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"],
            headers=list(scope["headers"]),
            body=b"" if is_asked else await self._body(request, held),
            client=record.address,
            request_id=record.request_id,
            seed=secrets.randbits(63),
            began_at=int(time.time()),
        )
        exchange.sender = sender_of(exchange)
        tenant = exchange.sender if self._server.prefix_cache_per_key else ""
        exchange.model, exchange.key = read(exchange.body, tenant)
        return exchange

    async def _body(self, request: Request, held: Held) -> bytes:
        """The body of a request. Raises as `_exchange`."""
        body, most = bytearray(), self._server.max_body
        try:
            async with asyncio.timeout(self._server.body_timeout):
                async for part in request.stream():
                    if len(body) + len(part) > most:
                        raise BodyTooLargeError(
                            f"the body must be at most {most} bytes long; send less, or raise the"
                            " setting `max_body`"
                        )
                    held.add(len(part))
                    body += part
        except TimeoutError:
            raise BodyTimeoutError(
                f"the body did not arrive within {self._server.body_timeout} s; send it faster, or"
                " raise the setting `body_timeout`"
            ) from None
        return bytes(body)

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
            except _FullError:
                pass
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
                if piece.failure == FULL:
                    raise _FullError
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
        except DeploymentUnavailableError:
            raise ReplicaLostError("the deployment ends, or none of its replicas starts") from None
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
    response.raw_headers = _own(piece.headers)
    return response


def _own(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of an answer without the id that Ray's proxy adds itself."""
    return [pair for pair in headers if pair[0] != b"x-request-id"]


class _Answer(StreamingResponse):
    """The answer in pieces. It ends the work for it when the client leaves."""

    def __init__(self, first: Piece, rest: AsyncGenerator[Piece], held: ExitStack) -> None:
        """`held` is closed at the end."""

        async def body() -> AsyncGenerator[bytes]:
            yield first.body
            async for piece in rest:
                yield piece.body

        super().__init__(body(), status_code=first.status)
        self.raw_headers = _own(first.headers)
        self._rest, self._held = rest, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._held.close()
            await self._rest.aclose()


def _check_head(scope: Scope) -> None:
    """
    Raises:
        HeadTooLargeError: Ray's proxy takes heads of any length.
    """
    length = len(scope["path"]) + len(scope["query_string"])
    length += sum(len(name) + len(value) for name, value in scope["headers"])
    if length > LONGEST_HEAD:
        raise HeadTooLargeError(f"the head has {length:,} bytes; the limit is {LONGEST_HEAD:,}")


async def _nowhere(_: object) -> None:
    """The `send` of a record that sends nothing."""
