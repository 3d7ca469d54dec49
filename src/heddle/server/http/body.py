"""Reads request bodies up to a limit, parses them as JSON and checks them against a schema.

A body grows when it is parsed: 8 MB can be two million token ids, or take 800 MB on the way from
text to token ids. So the server reads only a few large bodies at once. The others wait in their
sockets. Small bodies do not wait for large bodies.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import WeakValueDictionary

from pydantic import BaseModel, ValidationError

from heddle.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    InvalidRequestError,
    MediaTypeError,
    ModelUnloadedError,
    OutOfMemoryError,
)
from heddle.process_memory import available_bytes, trim_memory
from heddle.server.http.connection import unless_gone
from heddle.server.http.errors import from_validation
from heddle.server.http.hints import Notes
from heddle.server.http.lenient import parse_leniently
from heddle.server.http.record import record_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Set

    from starlette.requests import Request

    from heddle.config import ServerConfig
    from heddle.server.http.record import RequestRecord

S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")

_UNDECLARED = frozenset({"", "application/octet-stream", "application/x-www-form-urlencoded"})
"""Content types of clients that declare none: nothing, and the defaults of aiohttp and of curl. A
form of a web page cannot send JSON in them: it percent-encodes braces. A script can, but then the
request has the headers of `_OF_PAGES`."""
_OF_PAGES = ("origin", "sec-fetch-site")
"""Headers of requests that browsers send for web pages. Every browser sends `Origin` with a POST to
a foreign site."""

_SMALL = 16 * 1024
"""Largest body, in bytes, that the event loop parses and tokenises itself, in about 10 ms."""
_LARGE = 256 * 1024
"""Smallest large body, in bytes. A large body needs a place from its arrival until it is
translated. One large body is translated at a time: tokenising 8 MB of text takes 2 s and 800 MB."""
_PLACES = 16
"""Large bodies in memory at once."""
_PLACES_OF_CLIENT = 4
"""Of these, the bodies of one client. Its bodies may arrive slowly or take seconds to tokenise."""

_MEMORY_A_BYTE = 100
"""Bytes of memory that must be available for each byte of a large body. The check comes before the
work, because some libraries end the process if an allocation fails."""

_MOST_PARTS = 200_000
"""Most lists, objects and strings of a body. Parsing holds the GIL: 0.4 s for the 570,000 names of
a `logit_bias` in a body of 8 MB, 2 s (and 400 MB) for 2.8 million lists."""
_PART = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]', re.DOTALL)

_PICTURES = 2
"""Bodies with pictures that are translated at once. A picture may take a second to decode, and its
address may take many seconds to answer. One client can occupy one of these threads."""

_GRAMMARS = 2
"""Grammars compiled at once. One client can occupy one of these threads, for up to 3 s with each
grammar."""


class Bodies:
    """Reads, checks and translates the bodies of one application. Used from its event loop."""

    def __init__(self, config: ServerConfig, constraints: Set[str]) -> None:
        """
        Args:
            config: has the limits on the length of a body and on the time of its arrival.
            constraints: names of the fields that `--lenient` never ignores.
        """
        self._limit = config.max_body
        self._timeout = config.body_timeout
        self._lenient = config.lenient
        self._constraints = constraints
        self._places = asyncio.Semaphore(_PLACES)
        self._worker = ThreadPoolExecutor(1, "heddle-body")
        self._worker_of_large = ThreadPoolExecutor(1, "heddle-large-body")
        self._workers_of_pictures = ThreadPoolExecutor(_PICTURES, "heddle-pictures")
        self._workers_of_grammars = ThreadPoolExecutor(_GRAMMARS, "heddle-grammar")
        self._turns: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        self._own_places: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    async def take(
        self,
        request: Request,
        schema: type[S],
        translate: Callable[[S], T],
        load: Callable[[ModelUnloadedError], Awaitable[None]] | None = None,
    ) -> T:
        """Read and parse the request's body, and return the result of `translate`.

        The call keeps neither the text nor the parsed body. `translate` runs in the event loop or
        in a thread; for a body with slow fields, such as pictures, always in a thread. Its
        exceptions pass through, but after a ModelUnloadedError this calls `load`, if there is one,
        and translates the body again.

        Raises:
            MediaTypeError: see `_check_declared`.
            BodyTooLargeError: the body is longer than `max_body` bytes.
            BodyTimeoutError: the body did not arrive within `body_timeout` seconds.
            InvalidRequestError: the body is not JSON, has too many parts, or breaks the schema.
            OutOfMemoryError: the body is large, and too little memory is left to translate it.
            ClientGoneError: the client closed the connection before the body was translated.
        """
        _check_declared(request)
        length = request.headers.get("content-length")  # a number: h11 refuses anything else
        if length is not None and int(length) > self._limit:
            raise self._too_large()
        async with AsyncExitStack() as place:
            try:
                raw = await self._read(request, place)
            except TimeoutError:
                raise BodyTimeoutError(
                    f"the body did not arrive within {self._timeout} s; send it faster, or"
                    " raise the setting `body_timeout`"
                ) from None
            try:
                return await self._translated(raw, request, schema, translate)
            except ModelUnloadedError as error:
                if load is None:
                    raise
                await load(error)
            return await self._translated(raw, request, schema, translate)

    async def _read(self, request: Request, place: AsyncExitStack) -> bytes:
        """Read the whole body. The read takes a place when the bytes read make a large body.

        A large content-length takes no place: any client could send the header without a body.
        """
        parts: list[bytes] = []
        size = 0
        async with asyncio.timeout(self._timeout) as clock:
            async for part in request.stream():
                is_first_large = size < _LARGE <= size + len(part)
                size += len(part)
                if size > self._limit:
                    raise self._too_large()
                if is_first_large:
                    await self._take_place(place, clock, record_of(request.scope).client)
                parts.append(part)
        return b"".join(parts)

    async def _take_place(
        self, place: AsyncExitStack, clock: asyncio.Timeout, client: Hashable
    ) -> None:
        """Take a place. The wait does not count as arrival time, because the server causes it."""
        own = self._own_places.setdefault(client, asyncio.Semaphore(_PLACES_OF_CLIENT))
        loop = asyncio.get_running_loop()
        deadline = clock.when()
        assert deadline is not None
        left = deadline - loop.time()
        clock.reschedule(None)
        await place.enter_async_context(own)
        await place.enter_async_context(self._places)
        clock.reschedule(loop.time() + left)

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(
            f"the body must be at most {self._limit} bytes long; send less, or raise the setting"
            " `max_body`"
        )

    async def _translated(
        self, raw: bytes, request: Request, schema: type[S], translate: Callable[[S], T]
    ) -> T:
        def work() -> tuple[T | None, S | None]:
            """The result of `translate`; of a body with slow fields, the body instead."""
            try:
                if len(raw) >= _LARGE:
                    _check_memory(len(raw))
                body, notes = self._parse(raw, schema, record_of(request.scope))
                return (None, body) if notes.slow else (translate(body), None)
            finally:
                if len(raw) >= _LARGE:
                    trim_memory()

        result: T | None = None
        slow: S | None
        if len(raw) <= _SMALL:
            slow, notes = self._parse(raw, schema, record_of(request.scope))
            if not notes.slow:
                return translate(slow)
        else:
            worker = self._worker if len(raw) < _LARGE else self._worker_of_large
            result, slow = await self._in_turn(request, worker, work)
        if slow is not None:
            workers = self._workers_of_pictures
            result = await self._in_turn(request, workers, partial(_read, translate, slow))
        return cast("T", result)

    async def work(self, request: Request, task: Callable[[], T]) -> T:
        """Run `task`, which takes too long for the event loop. One task runs at a time.

        Raises:
            ClientGoneError: the client closed the connection before the task ended.
        """
        return await self._in_turn(request, self._worker, task)

    async def compile(self, request: Request, task: Callable[[], T]) -> T:
        """Run `task`, which compiles a grammar, in a thread.

        Raises:
            ClientGoneError: the client closed the connection before the task ended.
        """
        return await self._in_turn(request, self._workers_of_grammars, task)

    async def _in_turn(
        self, request: Request, workers: ThreadPoolExecutor, task: Callable[[], T]
    ) -> T:
        """Run `task` in a thread of `workers`.

        At most one task of each client runs or waits for a thread. So clients take turns, even if
        one client sends many grammars or texts.

        Raises:
            ClientGoneError: the client closed the connection before the task ended.
        """
        place = (record_of(request.scope).client, workers)
        turn = self._turns.setdefault(place, asyncio.Lock())

        async def wait() -> T:
            await turn.acquire()
            work = workers.submit(copy_context().run, task)  # ids of the answer
            result = asyncio.wrap_future(work)
            result.add_done_callback(lambda _: turn.release())
            try:  # a client that leaves keeps its turn until a task that has begun ends
                return await asyncio.shield(result)
            except asyncio.CancelledError:
                work.cancel()
                raise

        return await unless_gone(request.receive, wait())

    def _parse(self, raw: bytes, schema: type[S], record: RequestRecord) -> tuple[S, Notes]:
        _check_parts(raw)
        notes = Notes(record.ignored)
        try:
            try:
                return schema.model_validate_json(raw, context=notes), notes
            except ValidationError:
                if not self._lenient:
                    raise
                return parse_leniently(raw, schema, record, self._constraints)
        except ValidationError as error:
            raise from_validation(error) from None


def _check_declared(request: Request) -> None:
    """Check the content type of a request.

    The check protects a local server from web pages: a browser sends a body of the type
    `application/json` to a foreign site only if the site allows it (CORS). Clients that are no
    browsers often declare no JSON: Ollama's and llama.cpp's servers never look. So a request
    without the headers of a web page may have the types of `_UNDECLARED`. Go's
    `net/http.CrossOriginProtection` recognises web pages by the same headers.

    Raises:
        MediaTypeError: the body is not declared as JSON.
    """
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_of_page = any(name in request.headers for name in _OF_PAGES)
    if declared == "application/json" or (declared in _UNDECLARED and not is_of_page):
        return
    raise MediaTypeError(
        f"Content-Type must be application/json, got {declared!r}; send this header (curl:"
        " -H 'Content-Type: application/json')"
    )


def _read(translate: Callable[[S], T], body: S) -> T:
    """The result of `translate` for a body with pictures, which need much memory for a moment."""
    try:
        return translate(body)
    finally:
        trim_memory()


def _check_memory(size: int) -> None:
    """Check that the memory holds the translation of a body of `size` bytes.

    Raises:
        OutOfMemoryError: too little memory is available.
    """
    needed, available = size * _MEMORY_A_BYTE, available_bytes()
    if needed > available:
        raise OutOfMemoryError(
            f"a body of {size:,} bytes may need {needed / 1e6:,.0f} MB of memory;"
            f" {available / 1e6:,.0f} MB are available. Send a shorter body, or try again later"
        )


def _check_parts(raw: bytes) -> None:
    """Check the number of a body's parts before it is parsed.

    Raises:
        InvalidRequestError: the body has too many parts.
    """
    if raw.count(b"[") + raw.count(b"{") + raw.count(b'"') // 2 <= _MOST_PARTS:
        return
    # The brackets and quotes may be inside of strings. This loop lets other threads run.
    if any(count > _MOST_PARTS for count, _ in enumerate(_PART.finditer(raw), 1)):
        raise InvalidRequestError(
            f"the body has more than {_MOST_PARTS:,} lists, objects and strings; send fewer of them"
        )
