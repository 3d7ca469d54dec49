"""Loads on a server over HTTP: completions all at once, one after the other, or one beside
others."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import replace
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from heddle.config import check_keys
from heddle.errors import PeerError
from heddle.extensions.bench.answers import COMPLETIONS, completion, read_stream
from heddle.extensions.bench.exchange import Exchange, Server, authorization, post

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from heddle.extensions.bench.figures import Stream

_LOAD_SECONDS = 600.0  # eight long prompts take a slow peer minutes
_ANSWER_SECONDS = 10.0  # for the answer to /v1/models


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: only the named server is asked."""

    def redirect_request(self, *_: object) -> None:
        return None


# Loads do not go through a proxy, so questions do not, either.
_OPENER = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))


def connect(
    name: str,
    url: str,
    model: str | None = None,
    *,
    pid: int | None = None,
    key: str | None = None,
) -> Server:
    """The server at `url` (with or without `/v1`), with `model` or its first model.

    Raises:
        PeerError: no server answers `/v1/models` at this URL, or the server lacks the model.
        ConfigError: the key has characters that no header can carry.
    """
    check_keys([] if key is None else [key], "peer_key")
    url = url.rstrip("/").removesuffix("/v1")
    if urlsplit(url).scheme not in {"http", "https"}:
        raise PeerError(f"{name}: {url!r} is not an http or https address")
    server = Server(name, url, "", pid, key=key)
    answer = ask(server, "/v1/models")
    try:
        models = [entry["id"] for entry in json.loads(answer)["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise PeerError(f"{name}: {url}/v1/models did not answer with a list of models") from error
    if model is None and not models:
        raise PeerError(f"{name} has no model at {url}/v1/models")
    if model is not None and model not in models:
        raise PeerError(f"{name} has no model {model!r}; it has {', '.join(models)}")
    return replace(server, model=model or models[0])


def ask(server: Server, path: str) -> bytes:
    """The body of the answer to GET `path`.

    Raises:
        PeerError: the server cannot be reached, or does not answer with status 200.
    """
    url = server.url + path
    question = urllib.request.Request(url, headers=authorization(server.key))
    try:
        with _OPENER.open(question, timeout=_ANSWER_SECONDS) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        raise PeerError(f"{server.name} answered {error.code} to {url}") from error
    except (OSError, HTTPException) as error:
        raise PeerError(f"{server.name} cannot be reached at {server.url}: {error}") from error


def complete(server: Server, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Stream]:
    """Send one greedy completion request per prompt (token ids), all at once. Wait for all.

    Raises:
        PeerError: the server cannot be reached; or see `read_stream`.
    """
    return asyncio.run(_complete(server, prompts, max_tokens))


def complete_in_turn(
    server: Server, prompts: Sequence[Sequence[int]], clients: int, max_tokens: int
) -> list[Stream]:
    """Send prompts from `clients` clients. Each sends its next prompt when it has its answer.

    Returns the streams in the order of their ends. Errors as `complete`.
    """
    return asyncio.run(_complete_in_turn(server, prompts, clients, max_tokens))


def complete_beside(
    server: Server,
    running: Sequence[Sequence[int]],
    max_tokens: int,
    newcomer: Sequence[int],
    after: int,
) -> tuple[list[Stream], Stream]:
    """Complete the prompts `running`, and send one more request for one token beside them.

    The additional prompt is `newcomer`. The client sends it when `after` pieces of each other
    answer have arrived. Errors as `complete`.
    """
    return asyncio.run(_complete_beside(server, running, max_tokens, newcomer, after))


async def _complete(
    server: Server, prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[Stream]:
    async with _exchanges(server, prompts, max_tokens) as exchanges:
        for exchange in exchanges:
            exchange.send()
        await asyncio.gather(*(exchange.recorder.closed for exchange in exchanges))
    return _streams(server, exchanges, max_tokens)


async def _complete_in_turn(
    server: Server, prompts: Sequence[Sequence[int]], clients: int, max_tokens: int
) -> list[Stream]:
    waiting = deque(prompts)
    done = []

    async def client() -> None:
        while waiting:
            async with _exchanges(server, [waiting.popleft()], max_tokens) as [exchange]:
                exchange.send()
                await exchange.recorder.closed
            done.append(exchange)

    await asyncio.gather(*(client() for _ in range(clients)))
    return _streams(server, done, max_tokens)


async def _complete_beside(
    server: Server,
    running: Sequence[Sequence[int]],
    max_tokens: int,
    newcomer: Sequence[int],
    after: int,
) -> tuple[list[Stream], Stream]:
    async with _exchanges(server, running, max_tokens) as exchanges:
        for exchange in exchanges:
            exchange.send()
        await asyncio.gather(*(exchange.recorder.until(after) for exchange in exchanges))
        async with _exchanges(server, [newcomer], 1) as [late]:
            late.send()
            await asyncio.gather(*(each.recorder.closed for each in (*exchanges, late)))
    return _streams(server, exchanges, max_tokens), read_stream(server, late, 1)


def _streams(server: Server, exchanges: Sequence[Exchange], max_tokens: int) -> list[Stream]:
    return [read_stream(server, exchange, max_tokens) for exchange in exchanges]


@asynccontextmanager
async def _exchanges(
    server: Server, prompts: Sequence[Sequence[int]], max_tokens: int
) -> AsyncIterator[list[Exchange]]:
    """Connected exchanges whose requests are not sent yet. The block has _LOAD_SECONDS."""
    bodies = [completion(server, list(prompt), max_tokens) for prompt in prompts]
    exchanges = [Exchange(server, post(server, COMPLETIONS, body)) for body in bodies]
    try:
        for exchange in exchanges:
            await exchange.connect()
        async with asyncio.timeout(_LOAD_SECONDS):
            yield exchanges
    except TimeoutError:
        raise PeerError(f"{server.name} did not answer in {_LOAD_SECONDS:.0f} s") from None
    finally:
        for exchange in exchanges:
            exchange.abort()
