"""Loads on a server: streamed completions over HTTP, all at once, in turn, or one beside others."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections import deque
from contextlib import asynccontextmanager
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from heddle.bench.exchange import Exchange, Server, authorization
from heddle.config import check_keys
from heddle.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from heddle.bench.figures import Stream

_LOAD_SECONDS = 600.0  # eight long prompts take a slow peer minutes
_ANSWER_SECONDS = 10.0  # of a server that is asked for its models


def connect(
    name: str,
    url: str,
    model: str | None = None,
    *,
    pid: int | None = None,
    key: str | None = None,
) -> Server:
    """The server at `url`, with or without `/v1`; its first model, unless one is named.

    Raises:
        PeerError: nothing that answers `/v1/models` is there, or it has no such model.
        ConfigError: no header could bring the key.
    """
    check_keys([] if key is None else [key], "peer_key")
    url = url.rstrip("/").removesuffix("/v1")
    if urlsplit(url).scheme not in {"http", "https"}:
        raise PeerError(f"{name}: {url!r} is no http address")
    try:
        question = urllib.request.Request(f"{url}/v1/models", headers=authorization(key))
        with urllib.request.urlopen(question, timeout=_ANSWER_SECONDS) as answer:
            models = [entry["id"] for entry in json.load(answer)["data"]]
    except urllib.error.HTTPError as error:
        raise PeerError(f"{name} answered {error.code} to {url}/v1/models") from error
    except (OSError, HTTPException) as error:
        raise PeerError(f"{name} cannot be reached at {url}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise PeerError(f"{name}: {url}/v1/models is no list of models") from error
    if model is None and not models:
        raise PeerError(f"{name} has no model at {url}/v1/models")
    if model is not None and model not in models:
        raise PeerError(f"{name} has no model {model!r}; it has {', '.join(models)}")
    return Server(name, url, model or models[0], pid, key=key)


def complete(server: Server, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Stream]:
    """Send one greedy completion request per prompt (token ids) at once; wait for all.

    Raises:
        PeerError: the server could not be reached, or as `Exchange.stream`.
    """
    return asyncio.run(_complete(server, prompts, max_tokens))


def complete_in_turn(
    server: Server, prompts: Sequence[Sequence[int]], clients: int, max_tokens: int
) -> list[Stream]:
    """As `complete`, but `clients` at a time: each sends the next prompt when it has its answer.

    Streams are in the order of their ends.
    """
    return asyncio.run(_complete_in_turn(server, prompts, clients, max_tokens))


def complete_beside(
    server: Server,
    running: Sequence[Sequence[int]],
    max_tokens: int,
    newcomer: Sequence[int],
    after: int,
) -> tuple[list[Stream], Stream]:
    """As `complete` for `running`, and a newcomer that wants one token beside them.

    The newcomer is sent when each of the others has sent `after` pieces of its answer.
    """
    return asyncio.run(_complete_beside(server, running, max_tokens, newcomer, after))


async def _complete(
    server: Server, prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[Stream]:
    async with _exchanges(server, prompts, max_tokens) as exchanges:
        for exchange in exchanges:
            exchange.send()
        await asyncio.gather(*(exchange.recorder.closed for exchange in exchanges))
    return [exchange.stream() for exchange in exchanges]


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
    return [exchange.stream() for exchange in done]


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
    return [exchange.stream() for exchange in exchanges], late.stream()


@asynccontextmanager
async def _exchanges(
    server: Server, prompts: Sequence[Sequence[int]], max_tokens: int
) -> AsyncIterator[list[Exchange]]:
    """Connected ones, for at most _LOAD_SECONDS. All are connected before the first is sent."""
    exchanges = [Exchange(server, prompt, max_tokens) for prompt in prompts]
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
